"""The controller: chunks, noise, checks, golden ticks, and no torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

import tests.kits.deploy_graphs as graphs
import tests.kits.deploy_kit as kit
import tests.kits.serve_kit as serve_kit
from robotrl.deploy import runtime
from robotrl.deploy.buffers import Runtime
from robotrl.deploy.bundle import manifest as schema
from robotrl.deploy.bundle import strict
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.describe import entry
from robotrl.deploy.noise import CounterNoise
from robotrl.deploy.runtime import Controller
from robotrl.deploy.session import InferenceError
from robotrl.errors import ConfigError, DataError, NumericsError
from tests.kits.refusals import raises_naming


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.made("flow", tmp_path_factory.getbasetemp())[0]


def observation(row: int) -> dict[str, np.ndarray]:
    return {key: value[row] for key, value in kit.recorded().items()}


def test_a_chunk_is_played_to_its_end_then_the_next_is_inferred(path: Path) -> None:
    controller = Controller.load(path, seed=3)
    policy = kit.TinyFlow()
    noise = CounterNoise((2, 2), seed=3)
    for decision in range(3):
        obs = observation(decision)
        with torch.inference_mode():
            batch = {key: torch.from_numpy(value[None]) for key, value in obs.items()}
            wanted = policy.deploy(batch, torch.from_numpy(noise.draw(decision)[None])).actions[0].numpy()
        assert controller.needs_inference
        first = controller.step(obs)
        assert not controller.needs_inference
        # The second action is the chunk's, whatever is seen meanwhile.
        second = controller.step(observation(100 + decision))
        assert np.abs(np.stack((first, second)) - wanted).max() < 1e-6
        assert controller.decision == decision


def test_reset_drops_the_chunk_and_goes_on_counting(path: Path) -> None:
    controller = Controller.load(path)
    first = controller.step(observation(0))
    controller.reset()
    again = controller.step(observation(0))
    assert controller.decision == 1
    assert (first != again).any()  # new noise


def test_seed_and_decision_decide_everything(path: Path) -> None:
    one, two, other = Controller.load(path, seed=5), Controller.load(path, seed=5), Controller.load(path, seed=6)
    actions = [[c.step(observation(i)).tolist() for i in range(6)] for c in (one, two, other)]
    assert actions[0] == actions[1] != actions[2]
    assert one.infer(observation(4), decision=2)[0].tolist() == actions[0][4]
    assert one.decision == 2


def test_warming_changes_nothing(path: Path) -> None:
    one, two = Controller.load(path), Controller.load(path)
    for i in range(6):
        one.warm()
        one.prepare()
        assert one.step(observation(i)).tolist() == two.step(observation(i)).tolist()


def test_the_noise_is_normal_and_the_same_everywhere() -> None:
    noise = CounterNoise((4, 4), seed=1)
    drawn = np.stack([noise.draw(i) for i in range(4000)]).astype(np.float64)
    assert abs(drawn.mean()) < 0.02
    assert abs(drawn.std() - 1) < 0.01
    assert abs((drawn**4).mean() - 3) < 0.15
    flat = drawn.reshape(4000, 16)
    assert np.abs(np.corrcoef(flat.T) - np.eye(16)).max() < 0.08
    # Addressed, not streamed: any order gives the same; another seed does not.
    assert (noise.draw(17) == drawn[17].astype(np.float32)).all()
    assert (CounterNoise((4, 4), seed=2).draw(17) != noise.draw(17)).all()
    # The definition (Philox4x64-10 and Box-Muller) once more: a change would break every log and bundle.
    key = np.random.Philox(key=7)
    state = key.state
    state["state"]["counter"][:] = (0, 0, 9, 0)
    key.state = state
    u = ((key.random_raw(4) >> np.uint64(11)).astype(np.float64) + 1) / 2**53
    wanted = [
        np.sqrt(-2 * np.log(u[0])) * np.cos(2 * np.pi * u[2]),
        np.sqrt(-2 * np.log(u[1])) * np.cos(2 * np.pi * u[3]),
    ]
    assert CounterNoise((3,), seed=7).draw(9)[:2].tolist() == pytest.approx(wanted, rel=1e-6)


def test_zero_noise_is_a_policy_of_its_own(path: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(path, tmp_path / "b"))
    data = json.loads((bundle / schema.MANIFEST_FILE).read_text())
    data["sampler"]["noise_policy"] = "zero"
    seal(bundle, data)
    one, two = Controller.load(bundle, seed=1), Controller.load(bundle, seed=2)
    assert one.step(observation(0)).tolist() == two.step(observation(0)).tolist()


def seal(bundle: Path, data: dict[str, object]) -> None:
    manifest = strict.from_json(schema.Manifest, data, "manifest")
    (bundle / schema.MANIFEST_FILE).write_bytes(schema.sealed(manifest).to_bytes())


def test_unusable_observations_give_one_clear_line(path: Path) -> None:
    controller = Controller.load(path)
    good = observation(0)
    cases: list[tuple[dict[str, np.ndarray], type[Exception], str]] = [
        ({"state": good["state"]}, ConfigError, "observation 'touch' is missing"),
        ({**good, "tuch": good["touch"]}, ConfigError, "observation 'tuch' is unknown: did you mean 'touch'?"),
        ({**good, "touch": good["state"]}, ConfigError, r"observation 'touch' has shape \(4,\): expected \(1,\)"),
        ({**good, "state": np.float32([0, np.nan, 0, 0])}, NumericsError, "'state' element 'cart_vel' is nan"),
        ({**good, "state": np.float32([0, 0, -np.inf, 0])}, NumericsError, "'state' element 'goal_pos' is -inf"),
    ]
    for obs, kind, says in cases:
        with pytest.raises(kind, match=says):
            controller.step(obs)
    assert controller.decision == -1
    assert np.isfinite(controller.step(good)).all()
    with raises_naming(ConfigError, "seed", -1):
        Controller.load(path, seed=-1)


def test_a_bundle_that_computes_something_else_here_is_refused(path: Path, tmp_path: Path) -> None:
    """Sealed correctly, but one golden action is off by a thousandth of its range."""
    bundle = Path(shutil.copytree(path, tmp_path / "b"))
    golden = safetensors.numpy.load((bundle / schema.GOLDEN_FILE).read_bytes())
    golden["actions"][70, 1, 0] -= 0.004
    (bundle / schema.GOLDEN_FILE).write_bytes(safetensors.numpy.save(golden))
    data = json.loads((bundle / schema.MANIFEST_FILE).read_text())
    made = entry((bundle / schema.GOLDEN_FILE).read_bytes())
    data["files"][schema.GOLDEN_FILE] = {"bytes": made.bytes, "sha256": made.sha256}
    seal(bundle, data)
    with pytest.raises(DataError, match=r"golden.safetensors: tick 70, actions\[1\] 'push' is"):
        Controller.load(bundle)


def test_a_graph_with_other_inputs_is_refused(path: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(path, tmp_path / "b"))
    golden = safetensors.numpy.load((bundle / schema.GOLDEN_FILE).read_bytes())
    golden["obs/tuch"] = golden.pop("obs/touch")
    (bundle / schema.GOLDEN_FILE).write_bytes(safetensors.numpy.save(golden))
    data = json.loads((bundle / schema.MANIFEST_FILE).read_text())
    data["io"]["inputs"][1]["name"] = data["transforms"]["inputs"][1]["key"] = "tuch"
    made = entry((bundle / schema.GOLDEN_FILE).read_bytes())
    data["files"][schema.GOLDEN_FILE] = {"bytes": made.bytes, "sha256": made.sha256}
    seal(bundle, data)
    with pytest.raises(DataError, match="the graph's inputs are"):
        Controller.load(bundle)


NO_TORCH = textwrap.dedent(
    """
    import sys

    class Refuse:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in ("torch", "mujoco", "gymnasium", "onnx", "onnxscript", "scipy", "pandas"):
                raise ImportError("the runtime must not import " + name)

    sys.meta_path.insert(0, Refuse())
    import numpy as np
    import robotrl
    from robotrl.deploy.control.run import run_control
    from robotrl.deploy.control.replay import replay
    from robotrl.deploy.robots import driver, sim_robot
    from robotrl.deploy.runtime import Controller

    controller = Controller.load(sys.argv[1])
    obs = {"state": np.zeros(4, np.float32), "touch": np.zeros(1, np.float32)}
    print(controller.step(obs).tolist())
    assert not [name for name in sys.modules if name.split(".")[0] in ("torch", "mujoco")]
    """
)


def test_the_runtime_imports_no_torch_and_no_simulator(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", NO_TORCH, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    here = Controller.load(path).step({"state": np.zeros(4, np.float32), "touch": np.zeros(1, np.float32)})
    assert json.loads(done.stdout) == here.tolist()


def test_a_graph_that_cannot_be_computed_is_a_typed_error(path: Path, tmp_path: Path) -> None:
    controller = Controller.load(graphs.fails_beyond(Path(shutil.copytree(path, tmp_path / "b"))))
    good, far = observation(0), observation(0)
    far["state"] = np.float32([150.0, 0, 0, 0])
    with pytest.raises(InferenceError, match=r"^policy\.onnx: onnxruntime cannot compute it: .*Gather") as caught:
        controller.step(far)
    assert "\n" not in str(caught.value)
    assert controller.decision == -1
    fresh = Controller.load(path)
    assert controller.step(good).tolist() == fresh.step(good).tolist()


def test_more_memory_than_there_is(path: Path, tmp_path: Path) -> None:
    """Of one who asks for it at run time; and of a graph whose constants alone would take it."""
    bundle = graphs.grows(Path(shutil.copytree(path, tmp_path / "b")), power=3)
    far = observation(0)
    far["state"] = np.float32([1100.0, 0, 0, 0])
    with pytest.raises(InferenceError, match="onnxruntime cannot compute it"):
        Controller.load(bundle).step(far)
    again = Path(shutil.copytree(path, tmp_path / "c"))
    graphs.huge_constant(again)
    with pytest.raises(DataError, match=r"policy\.onnx: onnxruntime (refuses|cannot compute) it") as caught:
        Controller.load(again)
    assert "\n" not in str(caught.value)


def test_a_graph_that_never_ends_is_refused(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="holds the operator Loop, which may never end"):
        Controller.load(graphs.endless(Path(shutil.copytree(path, tmp_path / "b"))))
    # without a loop, but slow: 300 products of matrices of 400 rows at each golden tick
    slow = graphs.grows(Path(shutil.copytree(path, tmp_path / "c")), power=1, chain=300, least=400)
    monkeypatch.setattr(runtime, "FIRST_LIMIT_S", 0.05)
    with pytest.raises(DataError, match=r"policy\.onnx: an inference has not ended after"):
        Controller.load(slow)


def test_no_more_memory_than_is_free_is_given_inside_the_block() -> None:
    script = (
        "from robotrl.deploy.bounded import bounded_memory; import resource, mmap\n"
        "before = resource.getrlimit(resource.RLIMIT_AS)\n"
        "with bounded_memory():\n"
        "    most = resource.getrlimit(resource.RLIMIT_AS)[0]\n"
        "    try:\n        mmap.mmap(-1, most)\n    except OSError as error:\n        print(error.strerror)\n"
        "assert resource.getrlimit(resource.RLIMIT_AS) == before\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Cannot allocate memory"


@pytest.mark.parametrize("language", ["python", "native"])
def test_nothing_is_committed_before_somebody_commits(tmp_path: Path, language: Runtime) -> None:
    """The golden ticks are computed with committed actions, of which none may stay in the graph's inputs."""
    bundle = serve_kit.committed_bundle(tmp_path)
    none = {port.name: np.zeros(port.shape, np.float32) for port in open_bundle(bundle).manifest.prefix}
    obs = {"state": np.float32([0.3, -0.2, 0.1, 0.5])}
    wanted = Controller.load(bundle, runtime=language).infer({**obs, **none}, 0)
    assert Controller.load(bundle, runtime=language).infer(obs, 0).tobytes() == wanted.tobytes()
    stepped = Controller.load(bundle, runtime=language)
    assert stepped.step(obs).tobytes() == wanted[0].tobytes()
