"""Writes the tables of the sims' pages from the code: `python tools/sim_docs.py [--check] [SIM ...]`.

A page `docs/sims/NAME.md` belongs to the sim `FAMILY/NAME`. The text between `<!-- BLOCK:begin -->` and
`<!-- BLOCK:end -->` is generated; everything else is prose. `BLOCKS` lists the blocks; words after a block's name are
its arguments, and `name=value` words are options of the sim. tests/docs/test_sim_pages.py fails if a page is out of
date.
"""

from __future__ import annotations

import ast
import atexit
import dataclasses
import functools
import importlib
import inspect
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import numpy as np

import robotrl
from robotrl.registry import SIMS, sim_options
from robotrl.spec import HasCamera, HasExpert, HasParams, HasPrivileged, HasState, HasStateIds, Spec
from robotrl.spec.json_fields import hints_of, name_values
from robotrl.spec.sim_options import NOT_LOG_ONLY, UNPERTURBED
from robotrl.utils.source_texts import class_texts, field_texts, texts_below

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "sims"
INDEX = FOLDER / "README.md"
BLOCK = re.compile(
    r"(<!-- (?P<block>\w+)(?P<words>[^\n]*?):begin -->\n)(?P<text>.*?)(<!-- (?P=block):end -->)", re.DOTALL
)
FOLD_ABOVE = 64
"""Width above which a spec's similar columns are shown as one row."""
EXAMPLE = "gym/Pendulum-v1"
"""Environment shown on the page about Gymnasium."""
ISAAC_EXAMPLE = "isaac/my_tasks:make"
"""Source whose options are shown on the page about Isaac."""
CARLA_EXAMPLE = "carla/Town01"
"""World whose options are shown on the page about CARLA."""
SERVED = "remote/mujoco/peg-insert"
"""Sim whose options the page about remote sims shows."""
FAMILY_PAGES = {"carla/TOWN": "carla.md", "gym/ID": "gymnasium.md", "isaac/...": "isaac.md", "remote/NAME": "remote.md"}
"""Sims of any environment of a kind, and their pages."""
FAMILY_FIELDS = ("env_id", "source", "served", "world")
"""Fields that hold the rest of a sim's name."""


class Asked(NamedTuple):
    """Arguments of a block."""

    sim: str
    words: tuple[str, ...]
    options: dict[str, Any]

    def make(self) -> Any:
        """Make the sim with one env."""
        return robotrl.make_sim(self.sim, num_envs=1, **{**example_options(self.sim), **self.options})


@functools.cache
def example_options(sim: str) -> dict[str, Any]:
    """Options without which a sim is not made: a driving log of a straight drive for one that replays logs."""
    if "log" not in {field.name for field in dataclasses.fields(sim_options(sim))}:
        return {}
    from robotrl.sims.driving.logs.layout import AGENT, STEP
    from robotrl.sims.driving.logs.record import FRAMES
    from robotrl.sims.driving.logs.writer import LogWriter

    raster, frames = FRAMES.view()
    count = 60
    steps = np.zeros(count, STEP)
    steps["time_s"], steps["x"], steps["speed"] = 0.1 * np.arange(count), 0.8 * np.arange(count), 8.0
    folder = Path(tempfile.mkdtemp(prefix="robotrl-docs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    route = np.stack([steps["x"], steps["y"]], axis=1)
    shown = np.zeros((count, raster.height, raster.width), np.uint16)
    with LogWriter(folder / "log", "an example", 1, frames) as writer:
        writer.add_clip("straight", "train", steps, np.zeros((count, 1), AGENT), route, frames=shown)
    return {"log": str(folder / "log")}


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ("---",) * len(header), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def spec_table(key: str, spec: Spec) -> str:
    """One row per column: position, name, unit, bounds; in wide specs, columns that differ by number share a row."""
    columns = list(zip(spec.names, spec.units, spec.low, spec.high, strict=True))
    kinds = [(re.sub(r"\d+", "#", name), *rest) for name, *rest in columns]
    runs: list[list[int]] = []
    for i, kind in enumerate(kinds):
        if len(columns) > FOLD_ABOVE and i > 0 and kind == kinds[i - 1]:
            runs[-1].append(i)
        else:
            runs.append([i])
    rows: list[Sequence[Any]] = []
    for run in runs:
        (first, unit, low, high), last_name = columns[run[0]], columns[run[-1]][0]
        if len(run) == 1:
            rows.append((run[0], f"`{first}`", unit, f"{low:g}", f"{high:g}"))
        else:
            rows.append((f"{run[0]} to {run[-1]}", f"`{first}` to `{last_name}`", unit, f"{low:g}", f"{high:g}"))
    shape = " x ".join(str(length) for length in spec.shape)
    return f"`{key}`, {spec.dtype}, {shape}:\n\n" + table(("", "name", "unit", "low", "high"), rows)


def field_docs(cls: type) -> dict[str, str]:
    """Field name of a dataclass to the docstring below it, base classes included; "" where there is none."""
    texts = field_texts(cls)
    return {field.name: texts.get(field.name, "") for field in dataclasses.fields(cls)}


def default_text(value: Any) -> str:
    """Text of a default; a nested dataclass has a table of its own."""
    if value in (UNPERTURBED, NOT_LOG_ONLY):
        return "none"
    return "see below" if dataclasses.is_dataclass(value) else f"`{value!r}`"


def choices_text(hint: Any) -> str:
    """Sentence with the choices of a field, if it has some."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    found = [repr(choice) for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    return f" Choices: {', '.join(f'`{choice}`' for choice in found)}." if found else ""


def own_fields(default: Any) -> list[dataclasses.Field[Any]]:
    """Fields of a sim's config, those of its base classes last."""
    cls = type(default)
    own = vars(cls).get("__annotations__", {})
    return sorted(dataclasses.fields(cls), key=lambda field: field.name not in own)


def options(asked: Asked) -> str:
    """Fields of the sim's config: defaults and docstrings."""
    default = sim_options(asked.sim)
    said, hints = field_docs(type(default)), hints_of(type(default))
    names = [field.name for field in own_fields(default) if field.name not in FAMILY_FIELDS]
    rows = [(f"`{n}`", default_text(getattr(default, n)), f"{said[n]}{choices_text(hints[n])}") for n in names]
    return table(("option", "default", "meaning"), rows)


def observation(asked: Asked) -> str:
    """Columns of each observation array, or of the named ones."""
    spec = asked.make().observation_spec
    return "\n".join(spec_table(key, spec[key]) for key in asked.words or tuple(spec))


def action(asked: Asked) -> str:
    """Columns of the action."""
    return spec_table("action", asked.make().action_spec)


def starts(asked: Asked) -> str:
    """Start ids of each split."""
    sim = asked.make()
    rows = [(f"`{split}`", sim.state_ids(split).start, len(sim.state_ids(split))) for split in ("train", "val", "test")]
    return table(("split", "first id", "ids"), rows)


def ends(asked: Asked) -> str:
    """Time limit and success criterion."""
    sim = asked.make()
    task = sim.core.task
    steps = f"{task.limit_steps} control steps ({task.limit_steps * sim.control_dt_s:g} s)"
    rows = [("time limit", steps)]
    rows.append(("success", "the time limit is reached" if task.survival else "as the task says; it ends the episode"))
    return table(("end", "when"), rows)


def randomization(asked: Asked) -> str:
    """Randomized parameters of a MuJoCo task: range of the multipliers, and the model's fields."""
    rows = [
        (f"`{name}`", p.low, p.high, ", ".join(f"`{field}`" for field in p.fields))
        for name, p in asked.make().core.task.params().items()
    ]
    return table(("parameter", "from", "to", "MuJoCo fields"), rows)


CAPABILITIES: dict[str, tuple[type, Callable[[Any], str]]] = {
    "exact state": (HasState, lambda _: "yes"),
    "numbered starts": (HasStateIds, lambda _: "yes"),
    "parameters": (HasParams, lambda sim: ticked(sim.params)),
    "cameras": (HasCamera, lambda sim: ticked(sim.cameras)),
    "expert": (HasExpert, lambda sim: ticked(sim.make_expert().modes)),
    "for a critic alone": (HasPrivileged, lambda sim: ticked(sim.privileged)),
}


def ticked(names: Iterable[str]) -> str:
    """Names in code format."""
    return ", ".join(f"`{name}`" for name in names) or "none"


def summary(asked: Asked) -> str:
    """Summary of the sim: rates, sizes and declared capabilities."""
    sim = asked.make()
    rows = [
        ("name", f"`{asked.sim}`"),
        ("control rate", f"{1 / sim.control_dt_s:.4g} Hz"),
        ("observation", widths(sim.observation_spec)),
        ("action", width(sim.action_spec)),
    ]
    rows += [(what, say(sim)) for what, (kind, say) in CAPABILITIES.items() if isinstance(sim, kind)]
    return table(("", ""), rows)


def width(spec: Spec) -> str:
    """Shape of a spec as text, "18" or "64 x 64 x 3"."""
    return " x ".join(str(length) for length in spec.shape)


def widths(specs: dict[str, Spec]) -> str:
    """Shapes of named arrays."""
    return ", ".join(f"`{key}` {width(spec)}" for key, spec in specs.items())


def constants(asked: Asked) -> str:
    """`constants MODULE NAME ...`: values of a module's constants, with their docstrings."""
    module = importlib.import_module(asked.words[0])
    said = texts_below(ast.parse(inspect.getsource(module)).body)
    rows = [(f"`{name}`", shown(getattr(module, name)), said[name]) for name in asked.words[1:]]
    if not any(text for *_, text in rows):
        return table(("constant", "value"), [row[:2] for row in rows])
    return table(("constant", "value", "meaning"), rows)


def fields(asked: Asked) -> str:
    """`fields MODULE CLASS`: fields of a dataclass or NamedTuple, with defaults and docstrings."""
    cls = getattr(importlib.import_module(asked.words[0]), asked.words[1])
    said = class_texts(cls) | field_texts(cls)
    default: dict[str, Any]
    if dataclasses.is_dataclass(cls):
        default = dict(sorted(((f.name, default_of(f)) for f in dataclasses.fields(cls)), key=is_given))
    else:
        default = {name: cls._field_defaults.get(name, dataclasses.MISSING) for name in cls._fields}
    rows = [(f"`{n}`", "" if v is dataclasses.MISSING else shown(v), said[n]) for n, v in default.items()]
    return table(("field", "default", "meaning"), rows)


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Default of a field, or `dataclasses.MISSING`."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def is_given(named: tuple[str, Any]) -> bool:
    """True if a field, by name and default, need not be set: those that must be come first."""
    return named[1] is not dataclasses.MISSING


def shown(value: Any) -> str:
    """Readable text of a value."""
    if dataclasses.is_dataclass(value):
        return "its defaults"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple | list):
        return ", ".join(shown(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}: {shown(item)}" for key, item in value.items())
    return str(value)


def sims(_: Asked) -> str:
    """Index of the sims, one row per sim."""
    rows: list[Sequence[Any]] = []
    for name in SIMS.names():
        sim = robotrl.make_sim(name, num_envs=1, **example_options(name))
        link = f"[`{name}`]({page_of(name).name})"
        rate = f"{1 / sim.control_dt_s:.4g} Hz"
        rows.append((link, gist(page_of(name)), widths(sim.observation_spec), width(sim.action_spec), rate))
    rows += [
        (f"[`{name}`]({page})", gist(FOLDER / page), "its own", "its own", "its own")
        for name, page in FAMILY_PAGES.items()
    ]
    return table(("sim", "task", "observation", "action", "control"), rows)


def gist(page: Path) -> str:
    """First sentence of a page; empty if the page does not exist yet."""
    if not page.exists():
        return ""
    prose = [part for part in page.read_text().split("\n\n") if not part.startswith(("#", "!", "<", "|"))]
    return re.split(r"(?<=\.)\s", " ".join(prose[0].split()))[0]


BLOCKS: dict[str, Callable[[Asked], str]] = {
    f.__name__: f for f in (summary, options, observation, action, starts, ends, randomization, constants, fields, sims)
}


def page_of(sim: str) -> Path:
    """Path of a sim's page."""
    return FOLDER / f"{sim.rpartition('/')[2]}.md"


def pages() -> dict[Path, str]:
    """All pages with generated blocks, and the sim of each ("" for the index)."""
    families = {
        FOLDER / "carla.md": CARLA_EXAMPLE,
        FOLDER / "gymnasium.md": EXAMPLE,
        FOLDER / "isaac.md": ISAAC_EXAMPLE,
        FOLDER / "remote.md": SERVED,
    }
    return {**{page_of(name): name for name in SIMS.names()}, **families, INDEX: ""}


def filled(page: Path, sim: str) -> str:
    """Text of a page with regenerated blocks.

    Raises:
        KeyError: an unknown block, or an option without docstring.
    """

    def fill(found: re.Match[str]) -> str:
        words = found["words"].split()
        given = name_values([word for word in words if "=" in word], "options")
        asked = Asked(sim, tuple(word for word in words if "=" not in word), given)
        return found[1] + BLOCKS[found["block"]](asked) + found[5]

    return BLOCK.sub(fill, page.read_text())


def main(arguments: Sequence[str]) -> int:
    """Write the pages of the named sims, or all pages and the index; with `--check`, compare them."""
    names = [word for word in arguments if not word.startswith("-")]
    stale = 0
    for page, sim in pages().items():
        if names and sim not in names:
            continue
        if not page.exists():
            print(f"{sim} has no page: expected {page}")
            stale += 1
            continue
        text = filled(page, sim)
        if text != page.read_text():
            print(page)
            stale += 1
            if "--check" not in arguments:
                page.write_text(text)
    return int(stale > 0 and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
