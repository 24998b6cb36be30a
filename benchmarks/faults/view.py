"""Episodes that cannot be rendered, written or run, given to `robotrl view` and to the page of `robotrl eval`."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import shutil
import tempfile
from collections.abc import Callable, Generator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

from benchmarks.faults.kind import Kind, Outcome, outcome_of
from robotrl.api.filming import FOR_PAGE, FOR_VIDEO, pictures, rendered_steps
from robotrl.cli.commands import eval as evaluating
from robotrl.cli.commands import view as viewing
from robotrl.policies.gaussian import GaussianCfg
from robotrl.registry import make_sim
from robotrl.report.eval_page import EvalPage, render_evaluation
from robotrl.report.histogram import ValueGroup, histogram
from robotrl.report.replay import EpisodePictures
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import policy_tree
from robotrl.spec import visible
from robotrl.transforms import TransformGroup, bounds_to_unit, inverse

Rng = np.random.Generator
DOT, PLANE = "gym/RobotrlDot-v0", "gym/RobotrlPlane-v0"
STEPS = 5
HEIGHT, WIDTH = 24, 32


class Hooks(NamedTuple):
    """Test hooks for the images and episodes of `Dot`."""

    drawn: Callable[[int, np.ndarray], Any] = lambda step, picture: picture
    """Result of `render`, from the step's number and the regular image."""
    length: Callable[[int], int] = lambda born: STEPS
    """Episode length, from the number of environments at the time when this one was made."""


class Dot(gymnasium.Env[Any, Any]):
    """A dot on a line that renders itself, with hooks for its images and episodes.

    Args:
        render_mode: "rgb_array" or None.
        size: numbers in its observation.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  # as Gymnasium has it
    hooks = Hooks()
    """Hooks of all instances."""
    made = 0

    def __init__(self, render_mode: str | None = None, size: int = 2) -> None:
        Dot.made += 1
        self.born, self.render_mode = Dot.made, render_mode
        self.observation_space = gymnasium.spaces.Box(-1, 1, (size,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (size - 1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start at a random position."""
        super().reset(seed=seed)
        self.step_number, self.last = 0, Dot.hooks.length(self.born)
        self.x = self.np_random.uniform(-1, 1, self.observation_space.shape).astype(np.float32)
        return self.x, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move the dot."""
        self.step_number += 1
        self.x = np.clip(self.x + 0.2, -1, 1)
        return self.x, 1.0, self.step_number >= self.last, False, {"success": bool(self.x[0] > 0)}

    def render(self) -> Any:
        """A gray image that grows lighter."""
        shade = 40 + 30 * min(self.step_number, 6)
        return Dot.hooks.drawn(self.step_number, np.full((HEIGHT, WIDTH, 3), shade, np.uint8))


def _register() -> None:
    for name, size in ((DOT, 2), (PLANE, 4)):
        env_id = name.removeprefix("gym/")
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point=f"{__name__}:Dot", kwargs={"size": size}, max_episode_steps=50)


@functools.cache
def _run() -> Path:
    """A run with an untrained policy on the dot."""
    _register()
    sim = make_sim(DOT, num_envs=1, camera=False)
    spec = sim.action_spec
    torch.manual_seed(0)
    group = TransformGroup((), (inverse(bounds_to_unit("action", spec.low, spec.high)),))
    policy = GaussianCfg(horizon=1, hidden=(8,)).build(visible(sim), spec, group)
    sim.close()
    path = Path(tempfile.mkdtemp(prefix="robotrl-view-")) / "dot"
    with Run.create(path, {"sim": {"name": DOT, "options": []}}, seed=0, command=["x"]) as run:
        run.save({"policy": policy_tree(policy)}, step=1, score=0.0)
    return path


@contextlib.contextmanager
def _dot(**hooks: Any) -> Generator[None]:
    """Set other hooks for the dot."""
    Dot.made, Dot.hooks = 0, Hooks(**hooks)
    try:
        yield
    finally:
        Dot.hooks = Hooks()


def _quietly(main: Callable[[list[str]], int], *argv: object) -> str:
    """Capture the output of a command."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        main([str(part) for part in argv])
    return said.getvalue()


def _view(*argv: object) -> str:
    return _quietly(viewing.main, *argv)


def _one_of(rng: Rng, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


# command-line values


def output(rng: Rng, folder: Path) -> Outcome:
    """An output path that cannot be written."""
    (folder / "folder.gif").mkdir()
    (folder / "folder.html").mkdir()
    (folder / "file").write_text("")
    option, ending = _one_of(rng, ("--video", ".gif"), ("--out", ".html"), ("--report", ".html"))
    name = "".join(chr(int(c)) for c in rng.integers(97, 123, int(rng.integers(1, 9))))
    bad = _one_of(
        rng,
        folder / "no" / name,
        folder / "file" / name,
        folder / "folder",
        Path("/proc") / name,
        folder / (name * 300),
        Path("/dev/full") / name,
    )
    main = evaluating.main if option == "--report" else viewing.main
    return outcome_of(lambda: _quietly(main, _run(), "--episodes", 1, option, f"{bad}{ending}"))


def ending(rng: Rng, folder: Path) -> Outcome:
    """A video of an unsupported format."""
    name = "".join(chr(int(c)) for c in rng.integers(97, 123, int(rng.integers(1, 5))))
    wrong = _one_of(rng, f".{name}x", "", f".gif.{name}q", ".", f"gif{name}", ".mp", ".webm", ".avi", ".png")
    return outcome_of(lambda: _view(_run(), "--episodes", 1, "--video", folder / f"film{wrong}"))


def camera(rng: Rng, folder: Path) -> Outcome:
    """A camera that the sim does not have."""
    letters = list("rgb_array")
    letters[int(rng.integers(9))] = chr(int(rng.integers(65, 91)))
    name = _one_of(rng, "".join(letters), "".join(letters[: int(rng.integers(1, 8))]), "front", "0")
    return outcome_of(lambda: _view(_run(), "--camera", name, "--video", folder / "a.gif"))


def wishes(rng: Rng, folder: Path) -> Outcome:
    """Starts that do not exist, or contradictory arguments."""
    number = int(rng.integers(1, 10**6))
    given = _one_of(
        rng,
        ["--episodes", 0],
        ["--episodes", -number],
        ["--episodes", 16 + number],
        ["--among", number],
        ["--pick", "worst", "--among", 0],
        ["--pick", "neither"],
        ["--state-id", -number],
        ["--state-id", 2**31 + number],
        ["--state-id", number, number],
        ["--scenario", "roundabout"],
        ["--split", "vale"],
        ["--seed", -number],
        ["--expert"],
        ["--sim.camera", str(number + 1)],
        ["--sim.camera", "False"],
        ["--sim.no-such", "1"],
        ["--sim", f"gym/RobotrlDot-v{number}"],
    )
    return outcome_of(lambda: _view(_run(), "--video", folder / "a.gif", *given))


# objects to view


def other_sim(rng: Rng, folder: Path) -> Outcome:
    """A policy for another sim."""
    other = _one_of(rng, PLANE, "gym/Pendulum-v1", "gym/CartPole-v1", "mujoco/hopper", "mujoco/reach")
    main = _one_of(rng, viewing.main, evaluating.main)
    option = "--video" if main is viewing.main else "--report"
    target = folder / ("a.gif" if main is viewing.main else "a.html")
    return outcome_of(lambda: _quietly(main, _run(), "--sim", other, "--episodes", 1, option, target))


@functools.cache
def _sound() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return _view(_run(), "--episodes", 2, "--out", Path(folder) / "a.html").splitlines()[0]


def broken_run(rng: Rng, folder: Path) -> Outcome:
    """A run with a file that is cut, altered or missing."""
    path = folder / "run"
    shutil.copytree(_run(), path)
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and file.suffix in (".json", ".safetensors")]
    file = files[int(rng.integers(len(files)))]
    data = bytearray(file.read_bytes())
    what = int(rng.integers(4))
    if what == 0:
        file.unlink()
    elif what == 1:
        file.write_bytes(bytes(data[: int(rng.integers(len(data)))]))
    elif what == 2 and data:
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        file.write_bytes(bytes(data))
    else:
        file.write_bytes(rng.bytes(int(rng.integers(200))))
    said = ""

    def look() -> None:
        nonlocal said
        said = _view(path, "--episodes", 2, "--out", folder / "a.html")

    outcome = outcome_of(look)
    if outcome is Outcome.SILENT and said.splitlines()[0] == _sound():
        return Outcome.HARMLESS  # a file that is not needed here, or a byte of a time stamp
    return outcome


# rendered images


def _no_picture(rng: Rng) -> Any:
    picture = rng.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    return _one_of(
        rng,
        None,
        picture.astype(_one_of(rng, np.float32, np.float64, np.int64, np.uint16, bool)),
        picture[..., 0],
        picture[..., :2],
        np.concatenate([picture, picture[..., :1]], -1),
        picture[None],
        picture.tolist(),
        picture[:0],
        [picture],
        "picture",
        int(rng.integers(256)),
    )


def undrawn(rng: Rng, folder: Path) -> Outcome:
    """Invalid images, from the first one or from a later one on."""
    wrong, first = _no_picture(rng), int(rng.integers(STEPS))
    with _dot(drawn=lambda step, picture: wrong if step >= first else picture):
        return outcome_of(lambda: _view(_run(), "--episodes", 1, "--video", folder / "a.gif"))


def undrawn_report(rng: Rng, folder: Path) -> Outcome:
    """The same on the page of an evaluation, which must still be written and report it."""
    wrong, first, page = _no_picture(rng), int(rng.integers(STEPS)), folder / "a.html"
    with _dot(drawn=lambda step, picture: wrong if step >= first else picture):
        outcome = outcome_of(
            lambda: _quietly(evaluating.main, _run(), "--episodes", 3, "--report", page, "--replays", 2)
        )
    if outcome is Outcome.WARNED and "None of the episodes is shown: " not in page.read_text():
        return Outcome.SILENT
    return outcome


def raises(rng: Rng, folder: Path) -> Outcome:
    """A renderer that raises."""
    first = int(rng.integers(STEPS))
    kinds = (RuntimeError, ValueError, OSError, KeyError, AssertionError, ZeroDivisionError, TypeError, MemoryError)
    error = _one_of(rng, *kinds)("no\ncontext " * int(rng.integers(1, 40)))

    def drawn(step: int, picture: np.ndarray) -> Any:
        if step >= first:
            raise error
        return picture

    with _dot(drawn=drawn):
        return outcome_of(lambda: _view(_run(), "--episodes", 1, "--video", folder / "a.gif"))


def sizes(rng: Rng, folder: Path) -> Outcome:
    """Images of varying sizes, which are scaled to the first one's."""
    sizes = rng.integers(1, 90, (STEPS + 1, 2))
    shade = int(rng.integers(256))

    def drawn(step: int, picture: np.ndarray) -> Any:
        return np.full((*sizes[min(step, STEPS)], 3), shade, np.uint8)

    _register()
    with _dot(drawn=drawn):
        sim = make_sim(DOT, num_envs=1, camera=True)
        sim.reset()

        def draw() -> None:
            for _ in range(STEPS):
                size = (int(rng.integers(1, 60)), int(rng.integers(1, 60)))
                assert (pictures(sim, DOT, [0], "rgb_array", size) == shade).all()
                sim.step(torch.zeros(1, 1))

        outcome = outcome_of(draw, used=Outcome.CORRECTED)
        sim.close()
    return outcome


def motionless(rng: Rng, folder: Path) -> Outcome:
    """A camera with a constant image."""
    same = rng.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    with _dot(drawn=lambda step, picture: same):
        return outcome_of(lambda: _view(_run(), "--episodes", int(rng.integers(1, 4)), "--video", folder / "a.gif"))


def other_each_time(rng: Rng, folder: Path) -> Outcome:
    """Episodes that are longer or shorter when they are run again for rendering."""
    shift = int(_one_of(rng, -2, -1, 1, 2, 5))
    episodes = int(rng.integers(1, 4))
    # a sim probes two environments; the first sim runs the episodes, the second one renders
    first = 2 + episodes
    with _dot(length=lambda born: STEPS if born <= first else STEPS + shift):
        return outcome_of(lambda: _view(_run(), "--episodes", episodes, "--video", folder / "a.gif"))


class Foreign:
    """A third-party sim with arbitrary camera output."""

    cameras = ("any",)

    def __init__(self, gives: Any) -> None:
        self.gives = gives

    def render(self, ids: list[int], camera: str, width: int, height: int) -> Any:
        """Return the given value."""
        return self.gives


def foreign(rng: Rng, folder: Path) -> Outcome:
    """Third-party images of the wrong shape, type or number."""
    count, height, width = (int(x) for x in rng.integers(1, 6, 3))
    shape = [count, height, width, 3]
    shape[int(rng.integers(4))] += int(rng.integers(1, 4))
    right = np.zeros((count, height, width, 3), np.uint8)
    gives = _one_of(rng, np.zeros(shape, np.uint8), right.astype(float), right[0], list(right), None, right.tobytes())
    sim: Any = Foreign(gives)
    return outcome_of(lambda: pictures(sim, "own/sim", list(range(count)), "any", (width, height)))


# written pages


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)


def _page(name: str, command: str, values: np.ndarray) -> str:
    frames = np.zeros((1, 4, 6, 3), np.uint8)
    return render_evaluation(
        EvalPage(
            title=name,
            verdict=name,
            lede=name,
            dt_s=0.1,
            has_success=True,
            names=[name] * len(values),
            success=values > 0,
            length=np.ones(len(values), np.int64),
            returns=values,
            tiles=[(name, name)],
            replays=[EpisodePictures(name, 0, True, 1.0, 1, (0,), frames, (1.0,))],
            chosen=name,
            command=command,
            settings={name: name},
        )
    )


def markup(rng: Rng, folder: Path) -> Outcome:
    """Names of runs, sims and options that contain HTML markup."""
    parts = (
        "<script>alert(1)</script>",
        '" onload="x',
        "</style>",
        "<img src=x>",
        "&lt;",
        "'",
        "\u202e",
        "</pre>",
        "a",
    )
    name = "".join(_one_of(rng, *parts) for _ in range(int(rng.integers(1, 6))))
    values = np.linspace(-1, 1, 4)
    plain, written = _Tags(_page("a", "b", values)).found, ""

    def write() -> None:
        nonlocal written
        written = _page(name, name, values)

    outcome = outcome_of(write, used=Outcome.HARMLESS)
    return outcome if outcome is not Outcome.HARMLESS or _Tags(written).found == plain else Outcome.SILENT


def extremes(rng: Rng, folder: Path) -> Outcome:
    """Returns of any size, all equal, or few: the chart must keep its shape."""
    count = int(rng.integers(1, 40))
    scale = 10.0 ** rng.uniform(-300, 300)
    values = _one_of(rng, rng.normal(size=count), np.full(count, rng.normal()), rng.integers(0, 2, count) * 1.0) * scale
    values = np.clip(values + _one_of(rng, 0.0, scale * 10.0 ** rng.uniform(0, 18)), -1e300, 1e300)
    whole = bool(rng.integers(2)) and scale < 1e6
    chart = ""

    def draw() -> None:
        nonlocal chart
        given = np.abs(np.round(values)) + 1 if whole else values
        chart = histogram([ValueGroup("", "bar-all", given)], "return", 460, "wide", whole)

    outcome = outcome_of(draw, used=Outcome.HARMLESS)
    if outcome is not Outcome.HARMLESS:
        return outcome
    numbers = [float(text) for text in re.findall(r' (?:x|y|width|height)="([^"]+)"', chart)]
    shown = sum(int(text) for text in re.findall(r": (\d+) episodes?<", chart))
    inside = all(-1 <= number <= 461 for number in numbers)
    return outcome if inside and shown == count and len(chart) < 20_000 else Outcome.SILENT


def rates(rng: Rng, folder: Path) -> Outcome:
    """Episodes of any length and control rate: first and last steps are rendered, and no more than can be shown."""
    lengths = [int(n) for n in 10 ** rng.uniform(0, 5, int(rng.integers(1, 9)))]
    dt_s, rate = float(10 ** rng.uniform(-5, 2)), _one_of(rng, FOR_PAGE, FOR_VIDEO)

    def plan() -> None:
        for length, steps in zip(lengths, rendered_steps(lengths, dt_s, rate), strict=True):
            if not (steps[0] == 0 and steps[-1] == length - 1 and len(steps) <= rate.most + 1):
                raise AssertionError(steps)

    return outcome_of(plan, used=Outcome.HARMLESS)


REFUSED, HARMLESS = (Outcome.REFUSED,), (Outcome.HARMLESS,)

KINDS: tuple[Kind, ...] = (
    Kind("a place that takes no file", REFUSED, 200, output),
    Kind("a moving picture of an unknown kind", REFUSED, 150, ending),
    Kind("a camera that is not there", REFUSED, 80, camera),
    Kind("starts that there are not, and arguments that contradict each other", REFUSED, 200, wishes),
    Kind("a policy for another sim", REFUSED, 40, other_sim),
    Kind("a run of which a file is damaged", (*REFUSED, Outcome.WARNED, *HARMLESS), 100, broken_run),
    Kind("pictures that are none", REFUSED, 80, undrawn),
    Kind("pictures that are none, on the page of an evaluation", (Outcome.WARNED,), 60, undrawn_report),
    Kind("drawing that raises", REFUSED, 80, raises),
    Kind("pictures of another size each time", (Outcome.CORRECTED,), 60, sizes),
    Kind("a camera that shows no motion", (Outcome.WARNED,), 16, motionless),
    Kind("episodes that do not repeat themselves", (Outcome.WARNED,), 30, other_each_time),
    Kind("another sim's pictures of the wrong shape", REFUSED, 200, foreign),
    Kind("names that would be markup", HARMLESS, 60, markup),
    Kind("returns of any size in a chart", HARMLESS, 300, extremes),
    Kind("episodes of any length and rate", HARMLESS, 200, rates),
)
