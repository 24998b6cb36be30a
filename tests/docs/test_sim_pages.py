"""The pages of the sims: every sim has one, its tables are those of the code, and what it shows runs."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import robotrl
from robotrl.registry import SIMS, sim_options
from robotrl.spec import HasCamera, HasExpert, HasParams, HasStateIds, Spec
from tests.kits.carla_kit import needs_carla
from tests.kits.paths_kit import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import sim_docs

DOCS = ROOT / "docs"
PAGES = {page.name: (page, sim) for page, sim in sim_docs.pages().items()}


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_of_the_page_are_those_of_the_code(name: str) -> None:
    page, sim = PAGES[name]
    assert page.exists(), f"{sim} has no page"
    assert page.read_text() == sim_docs.filled(page, sim), f"run: python tools/sim_docs.py {sim}"


@pytest.mark.parametrize("name", SIMS.names())
def test_the_page_has_every_table_and_names_every_ability(name: str) -> None:
    sim = robotrl.make_sim(name, num_envs=1, **sim_docs.example_options(name))
    text = sim_docs.page_of(name).read_text()
    assert text.startswith(f"# {name}\n")
    found = {match["block"] for match in sim_docs.BLOCK.finditer(text)}
    wanted = {"options", "observation", "action"}
    words: list[str] = []
    if isinstance(sim, HasStateIds):
        wanted |= {"starts"}
    if isinstance(sim, HasParams) and sim.params:
        wanted |= {"randomization"}
        words += sim.params
    if isinstance(sim, HasCamera):
        words += sim.cameras
    if isinstance(sim, HasExpert):
        words += sim.make_expert().modes
    assert wanted <= found
    for word in words:
        assert f"`{word}`" in text, word


def test_markers_come_in_pairs() -> None:
    for page in (DOCS / "sims").glob("*.md"):
        text = page.read_text()
        markers = re.findall(r"<!-- [^\n]*?:(?:begin|end) -->", text)
        assert len(markers) == 2 * len(list(sim_docs.BLOCK.finditer(text))), page


def test_every_page_belongs_to_a_sim() -> None:
    known = {page.name for page in sim_docs.pages()}
    # how environments of other packages are run, through sims that have pages; and which of ours run on a GPU
    assert {page.name for page in (DOCS / "sims").glob("*.md")} <= known | {"recipes.md", "carla-stub.md", "gpu.md"}


def test_pictures_of_the_pages_are_small() -> None:
    for page in (DOCS / "sims").glob("*.md"):
        for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text()):
            picture = page.parent / link
            assert picture.is_file()
            assert picture.stat().st_size < 100_000


@pytest.mark.parametrize("page", [*(DOCS / "sims").glob("*.md"), DOCS / "add-a-sim.md"], ids=lambda page: page.name)
def test_the_code_of_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name in ("carla.md", "carla-stub.md"):
        needs_carla()
    monkeypatch.chdir(tmp_path)
    module = ModuleType("page")  # dataclasses look their module up
    monkeypatch.setitem(sys.modules, "page", module)
    names = vars(module)
    found = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found or page.name in ("README.md", "recipes.md")
    for code in found:
        exec(compile(code, str(page), "exec"), names)


# the writer of tables


def test_a_page_that_parts_ways_is_seen_and_mended(tmp_path: Path) -> None:
    page = tmp_path / "peg-insert.md"
    page.write_text("Prose.\n<!-- action:begin -->\nold\n<!-- action:end -->\nMore | prose.\n")
    text = sim_docs.filled(page, "mujoco/peg-insert")
    assert text.startswith("Prose.\n<!-- action:begin -->\n`action`, float32, 4:\n")
    assert "| 3 | `tip_yaw_step_w` | 0.25 rad | -1 | 1 |\n<!-- action:end -->\nMore | prose.\n" in text
    page.write_text("<!-- acton:begin -->\n<!-- acton:end -->\n")
    with pytest.raises(KeyError, match="acton"):
        sim_docs.filled(page, "mujoco/peg-insert")


def test_runs_of_alike_columns_of_wide_specs_share_a_row() -> None:
    n = sim_docs.FOLD_ABOVE
    names = ("x", *(f"inertia_{i}" for i in range(n)), "y_1")
    spec = Spec((n + 2,), names, ("m", *["kg"] * n, "kg"), (0.0,) * (n + 2), (1.0,) * (n + 2))
    rows = sim_docs.spec_table("state", spec).splitlines()[4:]
    assert [row.split(" | ")[0] for row in rows] == ["| 0", f"| 1 to {n}", f"| {n + 1}"]
    assert f"`inertia_0` to `inertia_{n - 1}`" in rows[1]
    narrow = Spec((n,), names[1:-1], ("kg",) * n, (0.0,) * n, (1.0,) * n)
    assert len(sim_docs.spec_table("state", narrow).splitlines()) == n + 4


@dataclasses.dataclass(frozen=True)
class HalfSaid:
    """Options of which one is left without a word."""

    limit_s: float = 1.0
    """Time limit of an episode,
    in seconds."""
    room_m: float = 2.0


def test_an_option_that_has_no_docstring_is_found() -> None:
    assert sim_docs.field_docs(HalfSaid) == {"limit_s": "Time limit of an episode, in seconds.", "room_m": ""}


def test_every_option_of_every_sim_has_a_docstring() -> None:
    for name in SIMS.names():
        said = sim_docs.field_docs(type(sim_options(name)))
        assert [field for field in vars(sim_options(name)) if not said[field]] == [], name


def test_fields_and_constants_bring_their_docstrings() -> None:
    asked = sim_docs.Asked("", ("robotrl.config", "SimCfg"), {})
    assert "| `num_envs` | 64 | Number of parallel envs. |" in sim_docs.fields(asked)
    asked = sim_docs.Asked("", ("robotrl.sims.mujoco.manipulation.hand", "STEP_M", "YAW_STEP_RAD"), {})
    assert "| `STEP_M` | 0.04 | Displacement commanded by an action of 1. |" in sim_docs.constants(asked)
