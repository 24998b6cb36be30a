"""The tables of a sim's page agree with its code. `python tests/test_sim_docs.py` writes tables and picture anew."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import robotrl
from robotrl.registry import SIMS
from robotrl.spec import Spec

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = {"mujoco/peg-insert": DOCS / "sims" / "peg-insert.md"}
BLOCK = re.compile(r"(<!-- (\w+):begin -->\n)(.*?)(<!-- \2:end -->)", re.DOTALL)


def table(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


def spec_table(spec: Spec) -> str:
    rows = zip(range(len(spec.names)), (f"`{n}`" for n in spec.names), spec.units, spec.low, spec.high, strict=True)
    return table(("", "name", "unit", "low", "high"), [(i, n, u, f"{lo:g}", f"{hi:g}") for i, n, u, lo, hi in rows])


def option_table(factory: Any) -> str:
    assert factory.__doc__
    rows = []
    for name, parameter in inspect.signature(factory).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            meaning = re.search(rf"^ +{name}: (.*?)(?=\n +\w+: |\n\n)", factory.__doc__, re.MULTILINE | re.DOTALL)
            assert meaning, name
            rows.append((f"`{name}`", f"`{parameter.default!r}`", " ".join(meaning[1].split())))
    return table(("option", "default", "meaning"), rows)


def blocks(name: str) -> dict[str, str]:
    """What stands between the markers of the page."""
    from robotrl.sims.mujoco import peg_insert

    sim = robotrl.make_sim(name, num_envs=1)
    params = sim.core.task.params()
    corners = zip("xyz", peg_insert.WORKSPACE_LOW_M, peg_insert.WORKSPACE_HIGH_M, strict=True)
    return {
        "options": option_table(SIMS.load(name)),
        "observation": spec_table(sim.observation_spec["state"]),
        "action": spec_table(sim.action_spec),
        "workspace": ", ".join(f"{axis} {low:g} to {high:g} m" for axis, low, high in corners) + ".\n",
        "starts": table(
            ("split", "first id", "ids"),
            [(f"`{s}`", sim.state_ids(s).start, len(sim.state_ids(s))) for s in ("train", "val", "test")],
        ),
        "randomisation": table(
            ("parameter", "from", "to", "MuJoCo fields"),
            [(f"`{n}`", p.low, p.high, ", ".join(f"`{f}`" for f in p.fields)) for n, p in params.items()],
        ),
    }


def filled(name: str) -> str:
    found = blocks(name)
    return BLOCK.sub(lambda m: m[1] + found[m[2]] + m[4], PAGES[name].read_text())


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_of_the_page_are_those_of_the_code(name: str) -> None:
    assert {m[2] for m in BLOCK.finditer(PAGES[name].read_text())} == set(blocks(name))
    assert PAGES[name].read_text() == filled(name), "run: python tests/test_sim_docs.py"


def test_every_sim_has_a_page_that_names_its_abilities() -> None:
    assert set(PAGES) == set(SIMS.names())
    for name, page in PAGES.items():
        sim = robotrl.make_sim(name, num_envs=1)
        text = page.read_text()
        for word in (*sim.cameras, *sim.params, *sim.make_expert().modes):
            assert f"`{word}`" in text, word


def test_pictures_of_the_pages_are_small() -> None:
    for page in PAGES.values():
        for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text()):
            picture = page.parent / link
            assert picture.is_file()
            assert picture.stat().st_size < 100_000


@pytest.mark.parametrize("page", [*PAGES.values(), DOCS / "add-a-sim.md"], ids=lambda page: page.name)
def test_the_code_of_the_page_runs(page: Path) -> None:
    names: dict[str, Any] = {}
    found = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    for code in found:
        exec(compile(code, str(page), "exec"), names)


def draw() -> None:
    """The picture of peg-insert: one episode of the expert."""
    import torch
    from PIL import Image

    sim = robotrl.make_sim("mujoco/peg-insert", num_envs=1)
    sim.queue_states(sim.state_ids("val")[:1])
    sim.reset()
    expert, started = sim.make_expert(mode="left"), torch.ones(1, dtype=torch.bool)
    pictures = []
    for step in range(sim.core.task.limit_steps):
        if step in (0, 10):
            pictures.append(sim.render([0], "front" if step == 0 else "side", 384, 288, samples=4)[0])
        before = sim.get_state()
        done = bool(sim.step(expert.act(started)).terminated[0])
        started[:] = False
        if done:
            sim.set_state(before)
            pictures.append(sim.render([0], "top", 384, 288, samples=4)[0])
            break
    picture = Image.fromarray(np.concatenate(pictures, axis=1)).quantize(192, dither=Image.Dither.NONE)
    picture.save(DOCS / "images" / "peg-insert.png", optimize=True)


if __name__ == "__main__":
    for sim_name in PAGES:
        PAGES[sim_name].write_text(filled(sim_name))
    draw()
