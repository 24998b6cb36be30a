from importlib.metadata import distributions

from robotrl.utils.provenance import versions


def test_every_installed_package_is_named_with_its_version():
    packages = versions()["packages"]
    assert packages == {x.metadata["Name"]: x.version for x in distributions() if x.metadata["Name"]}
    assert "numpy" in packages and list(packages) == sorted(packages, key=str.lower)
