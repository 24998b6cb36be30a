"""Gymnasium environments with faults and oddities: spaces, probes, actions, success, options, modules."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

import robotrl
from benchmarks.faults.kind import Kind, Outcome, outcome_of
from robotrl.rollout.evaluate import evaluate, rated

Rng = np.random.Generator
SIM = "gym/RobotrlFault-v0"
LIMIT = 6


class Given(gymnasium.Env[Any, Any]):
    """A point on a line with configurable spaces and faults.

    Args:
        observation: its observation space; None is the point's.
        action: its action space; None is the point's.
        change: maps the step's number and regular result to the result that `step` returns.
        start: called at each reset with the number of resets and the environment.
    """

    def __init__(self, observation: Any = None, action: Any = None, change: Any = None, start: Any = None) -> None:
        self.observation_space = spaces.Box(-2, 2, (3,)) if observation is None else observation
        self.action_space = spaces.Box(-1, 1, (2,)) if action is None else action
        self.free = observation is not None
        self.change, self.start, self.resets = change, start, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self.t, self.x = 0, self.np_random.uniform(-1, 1, 3).astype(np.float32)
        self.resets += 1
        if self.start is not None:
            self.start(self.resets, self)
        return self.shown(), {}

    def step(self, action: Any) -> Any:
        """Take an action, which must be in the action space."""
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        self.t += 1
        out = (self.shown(), -1.0, False, False, {})
        return out if self.change is None else self.change(self.t, out)

    def shown(self) -> Any:
        """The point, or a sample of the observation space."""
        if not self.free:
            return self.x.copy()
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()


def make(num_envs: int = 1, **options: Any) -> Any:
    """Make the sim of a `Given`."""
    if "RobotrlFault-v0" not in gymnasium.registry:
        kind: Any = Given
        gymnasium.register("RobotrlFault-v0", entry_point=kind, max_episode_steps=LIMIT)
    return robotrl.make_sim(SIM, num_envs=num_envs, camera=False, **options)


class Idle:
    """An actor with a constant action."""

    def __init__(self, sim: Any) -> None:
        self._action = torch.zeros(sim.num_envs, *sim.action_spec.shape)

    def act(self, obs: Any, turn: Any) -> torch.Tensor:
        """The same action always."""
        return self._action


def played(episodes: int = 2, **options: Any) -> Any:
    """Evaluation result of a `Given`."""
    sim = make(**options)
    return evaluate(Idle(sim), sim, episodes=episodes)


def wrapped(rng: Rng, space: Any) -> Any:
    """A space, or a Dict or Tuple that contains it at some depth."""
    for _ in range(int(rng.integers(0, 3))):
        other = spaces.Discrete(int(rng.integers(2, 5)))
        space = spaces.Dict({"one": other, "two": space}) if rng.random() < 0.5 else spaces.Tuple((other, space))
    return space


def _sizes(rng: Rng, count: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(low, high, count))


def _unread(rng: Rng) -> Any:
    far = int(rng.integers(2**25, 2**50))
    drawn: tuple[Callable[[], Any], ...] = (
        lambda: spaces.Box(0, 1, (*_sizes(rng, 2, 4, 20), int(rng.choice((1, 3)))), np.float32),
        lambda: spaces.Box(0, 255, _sizes(rng, 4, 2, 6), np.uint8),
        lambda: spaces.Box(-128, 127, _sizes(rng, 3, 2, 20), np.int8),
        lambda: spaces.Box(-1, 1, (*_sizes(rng, int(rng.integers(0, 2)), 1, 4), 0)),
        lambda: spaces.Box(-far, far, _sizes(rng, 1, 1, 4), np.int64),
        lambda: spaces.Discrete(int(rng.integers(5000, 10**9))),
        lambda: spaces.MultiDiscrete(rng.integers(3000, 9000, int(rng.integers(2, 4)))),
        lambda: spaces.MultiBinary(int(rng.integers(5000, 10**4))),
        lambda: spaces.Sequence(spaces.Discrete(3)),
        lambda: spaces.OneOf([spaces.Discrete(3), spaces.Box(0, 1)]),
        lambda: spaces.Graph(spaces.Box(0, 1), None),
        lambda: spaces.Text(int(rng.integers(1, 9))),
    )
    return drawn[int(rng.integers(len(drawn)))]()


def unread_observation(rng: Rng, path: Path) -> Outcome:
    """An observation of an unsupported kind or size, alone or as a part."""
    return outcome_of(lambda: make(kwargs={"observation": wrapped(rng, _unread(rng))}))


def channels_in_front(rng: Rng, path: Path) -> Outcome:
    """An image with its channels as first axis."""
    shape = (int(rng.integers(1, 13)), *_sizes(rng, 2, 17, 40))
    space = spaces.Box(0, 255, shape, np.uint8)
    sims: list[Any] = []
    out = outcome_of(lambda: sims.append(make(kwargs={"observation": space})))
    if out is not Outcome.WARNED:
        return out
    (sim,) = sims
    sim.queue_states([7])
    found = sim.reset()["state"][0].numpy()
    env = Given(observation=spaces.Box(0, 255, shape, np.uint8))
    return Outcome.CORRECTED if np.array_equal(found, np.moveaxis(env.reset(seed=7)[0], 0, 2)) else Outcome.SILENT


def no_channels(rng: Rng, path: Path) -> Outcome:
    """A uint8 array of three axes of which none, or more than one, can be the channels."""
    shape = _sizes(rng, 3, 17, 40)
    if rng.random() < 0.5:
        shape = (int(rng.choice((1, 3, 4))), int(rng.integers(8, 40)), int(rng.integers(5, 17)))
    return outcome_of(lambda: make(kwargs={"observation": wrapped(rng, spaces.Box(0, 255, shape, np.uint8))}))


def ungiven_action(rng: Rng, path: Path) -> Outcome:
    """An action of an unsupported kind or size."""
    value, far = float(np.float32(rng.normal())), int(rng.integers(2**25, 2**50))
    ends = np.where(rng.random(3) < 0.5, 1.0, np.inf)
    ends[int(rng.integers(3))] = np.inf
    drawn: tuple[Callable[[], Any], ...] = (
        lambda: spaces.Text(3),
        lambda: spaces.Dict({"a": spaces.Discrete(3)}),
        lambda: spaces.Tuple((spaces.Box(0, 1), spaces.Discrete(3))),
        lambda: spaces.Sequence(spaces.Discrete(3)),
        lambda: spaces.Box(-ends.astype(np.float32), ends.astype(np.float32)),
        lambda: spaces.Box(value, value, _sizes(rng, 1, 1, 4)),
        lambda: spaces.Box(0, 1, (0,)),
        lambda: spaces.Discrete(1, start=int(rng.integers(-3, 4))),
        lambda: spaces.Discrete(int(rng.integers(5000, 10**9))),
        lambda: spaces.Box(-far, far, _sizes(rng, 1, 1, 4), np.int64),
    )
    space = drawn[int(rng.integers(len(drawn)))]()
    return outcome_of(lambda: make(kwargs={"action": space}))


def still_element(rng: Rng, path: Path) -> Outcome:
    """An action with constant elements; the environment accepts only actions of its own space."""
    low = rng.normal(size=4)
    high = low + np.where(rng.random(4) < 0.4, 0.0, rng.uniform(0.1, 2, 4))
    high[0], high[1] = low[0], low[1] + 1
    kind = spaces.Box(low, high, dtype=np.float64)
    if rng.random() < 0.3:
        kind = spaces.MultiDiscrete([1, 3, int(rng.integers(1, 4))], start=rng.integers(-3, 3, 3))

    def use() -> None:
        sim = make(kwargs={"action": kind})
        sim.reset()
        for end in (sim.action_spec.low, sim.action_spec.high):
            sim.step(torch.tensor([end]))

    return outcome_of(use)


def restless(rng: Rng, path: Path) -> Outcome:
    """An environment that is not reproducible in one number, from some step on."""
    since, element, size = int(rng.integers(1, 6)), int(rng.integers(3)), float(10.0 ** rng.integers(-4, 2))
    seen, fresh = int(rng.integers(2)), np.random.default_rng()

    def change(t: int, out: Any) -> Any:
        observation, reward, *rest = out
        noise = size * fresh.normal()
        if t >= since and seen:
            observation[element] += noise
        return (observation, reward + (noise if t >= since and not seen else 0.0), *rest)

    def use() -> None:
        sim = make(kwargs={"change": change})
        sim.reset(options={"state_ids": [3]})

    return outcome_of(use)


def changing_actions(rng: Rng, path: Path) -> Outcome:
    """An environment that changes its action space at a later reset."""
    when, wide = int(rng.integers(3, 6)), bool(rng.integers(2))

    def start(resets: int, env: Given) -> None:
        if resets >= when:
            env.action_space = spaces.Box(-1, 1, (3,)) if wide else spaces.Box(-1, float(rng.uniform(1.5, 3)), (2,))

    return outcome_of(lambda: played(8, kwargs={"start": start}))


def _saying(value: Any, key: str, at: int) -> Callable[[int, Any], Any]:
    def change(t: int, out: Any) -> Any:
        return (*out[:4], {key: value} if t == at else {})

    return change


def no_flag(rng: Rng, path: Path) -> Outcome:
    """A success in `info` that is not a flag."""
    drawn = (
        float(rng.uniform(0.01, 0.99)),
        math.nan,
        math.inf,
        int(rng.integers(2, 9)),
        "yes",
        [0, 1],
        np.ones(3),
        {},
        b"1",
    )
    value, key = drawn[int(rng.integers(len(drawn)))], str(rng.choice(("success", "is_success", "solved")))
    rule = f"info:{key}" if key == "solved" or rng.random() < 0.5 else "auto"
    over = str(rng.choice(("last", "ever")))
    change = _saying(value, key, int(rng.integers(1, LIMIT + 1)))
    return outcome_of(lambda: played(success=rule, success_over=over, kwargs={"change": change}))


def missing_key(rng: Rng, path: Path) -> Outcome:
    """A success rule on a key that `info` never has."""
    key = "".join(rng.choice(list("abcdefgh"), int(rng.integers(1, 8))))
    change = _saying(True, "success", int(rng.integers(1, LIMIT)))
    over = str(rng.choice(("last", "ever")))
    return outcome_of(lambda: played(success=f"info:{key}_", success_over=over, kwargs={"change": change}))


def unstated(rng: Rng, path: Path) -> Outcome:
    """An environment without a success rule: a rate must not be shown as if it had one."""
    length = int(rng.integers(1, LIMIT + 1))

    def change(t: int, out: Any) -> Any:
        return (*out[:2], t >= length, False, {"note": "text"})

    found: list[Any] = []
    out = outcome_of(lambda: found.append(played(kwargs={"change": change})), used=Outcome.CONTAINED)
    if out is not Outcome.CONTAINED:
        return out
    return out if "not stated" in rated(found[0]) else Outcome.SILENT


def moment_of_success(rng: Rng, path: Path) -> Outcome:
    """Success at some steps of an episode: each rule must follow its definition, and name itself."""
    success_flags = [bool(x) for x in rng.random(LIMIT) < 0.3]
    over = str(rng.choice(("last", "ever")))
    wanted = any(success_flags) if over == "ever" else success_flags[-1]

    def change(t: int, out: Any) -> Any:
        return (*out[:4], {"is_success": success_flags[t - 1]})

    found = played(success_over=over, kwargs={"change": change})
    named = ("at any step" if over == "ever" else "at the last step") in rated(found)
    return Outcome.CONTAINED if named and found.success.tolist() == [wanted] * 2 else Outcome.SILENT


def wrong_option(rng: Rng, path: Path) -> Outcome:
    """An option of the wrong type, or out of range."""
    names = ("limit_steps", "control_dt_s", "action_bound", "success", "success_over", "reward", "end_at_success")
    names = (*names, "kwargs", "wrapper", "vectorization", "processes", "actions")
    values = (
        -1,
        0,
        2.5,
        math.nan,
        math.inf,
        "many",
        [1],
        {"a": {1: 2}},
        "",
        "info:",
        "return>=",
        "return>=x",
        b"x",
        -1e9,
    )
    name, value = str(rng.choice(names)), values[int(rng.integers(len(values)))]
    # a valid value of that option after all
    sound = {"control_dt_s": (2.5,), "action_bound": (2.5,), "kwargs": ({"a": {1: 2}},)}.get(name, ())
    if any(value is x or value == x for x in sound):
        value = "wrong"
    options: dict[str, Any] = {name: value}
    return outcome_of(lambda: make(**options))


def wrong_results(rng: Rng, path: Path) -> Outcome:
    """A step with an invalid return value."""
    at, wide = int(rng.integers(1, LIMIT)), np.zeros(4, np.float32)
    drawn: tuple[Callable[[Any], Any], ...] = (
        lambda out: out[:4],
        lambda out: (*out, {}),
        lambda out: None,
        lambda out: (np.array([0, math.nan, 0], np.float32), *out[1:]),
        lambda out: (np.array([0, math.inf, 0], np.float32), *out[1:]),
        lambda out: (wide, *out[1:]),
        lambda out: (np.array(["a", "b", "c"]), *out[1:]),
        lambda out: (None, *out[1:]),
        lambda out: (out[0], math.nan, *out[2:]),
        lambda out: (out[0], "1", *out[2:]),
        lambda out: (out[0], np.ones(2), *out[2:]),
        lambda out: (out[0], None, *out[2:]),
        lambda out: (*out[:2], None, *out[3:]),
        lambda out: (*out[:2], "no", *out[3:]),
        lambda out: (*out[:3], 0.5, out[4]),
        lambda out: (*out[:4], None),
        lambda out: (*out[:4], [("success", True)]),
    )
    wrong = drawn[int(rng.integers(len(drawn)))]
    return outcome_of(lambda: played(kwargs={"change": lambda t, out: wrong(out) if t >= at else out}))


def wrong_choice(rng: Rng, path: Path) -> Outcome:
    """An invalid categorical action."""
    counts = rng.integers(2, 6, int(rng.integers(1, 4)))
    sim = make(kwargs={"action": spaces.MultiDiscrete(counts)})
    sim.reset()
    action = rng.integers(0, counts).astype(np.float32)
    element = int(rng.integers(len(counts)))
    drawn = (float(rng.uniform(0.05, 0.95)), -1.0, float(counts[element]), math.nan, math.inf, -0.4)
    action[element] = drawn[int(rng.integers(len(drawn)))]
    return outcome_of(lambda: sim.step(torch.from_numpy(action[None])))


def wrong_arguments(rng: Rng, path: Path) -> Outcome:
    """Arguments that the environment does not accept."""
    name = str(
        rng.choice(("sise", "render_mode", "id", "max_episode_steps", "disable_env_checker", "observations", ""))
    )
    value = [3, None, "x", True][int(rng.integers(4))]
    return outcome_of(lambda: make(kwargs={name: value}))


def wrong_module(rng: Rng, path: Path) -> Outcome:
    """A user module that is missing, raises, or lacks the named attribute."""
    name = "beside_" + "".join(rng.choice(list("abcdefgh"), 8))
    texts = (
        "def (",
        "import no_such_module_of_theirs",
        "raise KeyError('x')",
        "raise SystemExit(1)",
        "x = 1",
        "\x00",
        "1/0",
    )
    before = Path.cwd()
    at = int(rng.integers(len(texts) + 1))
    if at < len(texts):
        (path / f"{name}.py").write_text(texts[at])
    asked = str(rng.choice(("sim", "wrapper", "robot")))
    spelt = str(rng.choice((name, f"{name}.py", f"./{name}", f"{name}.part", f"{name} ")))

    def use() -> None:
        if asked == "sim":
            robotrl.make_sim(f"gym/{spelt}:Theirs-v0", num_envs=1)
        elif asked == "wrapper":
            make(wrapper=f"{spelt}:Theirs")
        else:
            from robotrl.deploy.robots.sim_robot import factory

            factory(f"{spelt}:make")

    os.chdir(path)
    try:
        return outcome_of(use)
    finally:
        os.chdir(before)


REFUSED = (Outcome.REFUSED,)
KINDS: tuple[Kind, ...] = (
    Kind("observation that no policy reads", REFUSED, 150, unread_observation),
    Kind("channels in front of a picture", (Outcome.CORRECTED,), 80, channels_in_front),
    Kind("bytes of three axes without channels", REFUSED, 80, no_channels),
    Kind("action that no policy gives", REFUSED, 120, ungiven_action),
    Kind("element of an action that cannot move", (Outcome.WARNED,), 100, still_element),
    Kind("episodes that differ from run to run", REFUSED, 120, restless),
    Kind("action space exchanged by a later reset", REFUSED, 60, changing_actions),
    Kind("success that is no flag", REFUSED, 120, no_flag),
    Kind("success by a key that info never has", REFUSED, 60, missing_key),
    Kind("success that nobody stated", (Outcome.CONTAINED,), 60, unstated),
    Kind("success at some steps only", (Outcome.CONTAINED,), 80, moment_of_success),
    Kind("option of an environment of another kind", REFUSED, 160, wrong_option),
    Kind("step that returns what it may not", REFUSED, 120, wrong_results),
    Kind("choice that does not exist", REFUSED, 100, wrong_choice),
    Kind("argument that is not the environment's", REFUSED, 60, wrong_arguments),
    Kind("module beside the user that fails", REFUSED, 120, wrong_module),
)
"""Faults of Gymnasium environments."""
