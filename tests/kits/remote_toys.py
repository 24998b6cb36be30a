"""Environments that a worker serves with numpy alone, some of which misbehave; runs under Python 3.8."""

import importlib.util
import os
import time

import numpy as np


class Point:
    """A point on a line that wants to be at zero.

    Args:
        num_envs: number of envs.
        limit_steps: time limit of an episode.
        goal: distance at which there is success, which ends an episode.
        step_s: seconds that a step takes.
        fault: kind of misbehavior, see `misbehave`; "" for none.
        at: step of the process at which it misbehaves, from 1.
        once: file that is made when it has misbehaved, which it then does no more; "" to do so in each process.
    """

    observation_spec = {
        "state": {
            "shape": [2],
            "names": ["pos", "left"],
            "units": ["m", "1"],
            "low": [-2, 0],
            "high": [2, 1],
        },
        "far": {"shape": [1], "dtype": "uint8", "low": [0], "high": [255]},
    }
    action_spec = {"shape": [1], "names": ["step"], "units": ["0.1 m"], "low": [-1], "high": [1]}
    info_spec = {"success": "bool", "height": "float32"}
    control_dt_s = 0.1

    def __init__(self, num_envs, limit_steps=50, goal=0.02, step_s=0.0, fault="", at=5, once=""):
        self.limit_steps, self.step_s, self.fault, self.at, self.once = limit_steps, step_s, fault, at, once
        self.pos, self.steps = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self.made, self.goal = 0, goal

    def start(self, envs, ids):
        self.pos[envs] = ids * 0.6180339887 % 2 - 1  # a function of the id alone
        self.steps[envs] = 0
        return self.obs()

    def obs(self):
        left = 1 - self.steps / self.limit_steps
        return {
            "state": np.stack([self.pos, left], 1),
            "far": (np.abs(self.pos[:, None]) * 100).astype(np.uint8),
        }

    def step(self, actions):
        self.made += 1
        time.sleep(self.step_s)
        self.pos = np.clip(self.pos + 0.1 * actions[:, 0].astype(np.float64), -2, 2)
        self.steps += 1
        success = np.abs(self.pos) < self.goal
        truncated = (self.steps >= self.limit_steps) & ~success
        info = {"success": success, "height": self.pos**2}
        out = self.obs(), success - 0.01 * np.abs(self.pos), success, truncated, info
        return self.misbehave(*out) if self.fault and self.made == self.at and self.again() else out

    def again(self):
        if not self.once:
            return True
        try:
            os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def misbehave(self, obs, reward, terminated, truncated, info):
        if self.fault == "raise":
            raise ValueError("the hinge\nbroke")
        if self.fault == "exit":
            os._exit(7)
        if self.fault == "leave":
            raise SystemExit(3)
        if self.fault == "hang":
            time.sleep(1000)
        if self.fault == "late":
            time.sleep(0.4)
        if self.fault == "nan":
            obs["state"][-1, 0] = np.nan
        if self.fault == "nan reward":
            reward[0] = np.inf
        if self.fault == "shape":
            obs["state"] = obs["state"][:, :1]
        if self.fault == "missing":
            del obs["far"]
        if self.fault == "type":
            obs["far"] = obs["far"] * 0.5
        if self.fault == "unlisted":
            info["solved"] = terminated
        if self.fault == "four":
            return obs, reward, terminated, info
        return obs, reward, terminated, truncated, info

    def stagger(self, share):
        self.steps = (share * self.limit_steps).astype(np.int64)
        return self.obs()

    def get_state(self):
        return {"pos": self.pos.copy(), "steps": self.steps.copy()}

    def set_state(self, state):
        self.pos, self.steps = state["pos"].copy(), state["steps"].copy()
        return self.obs()

    def distance(self):
        return np.abs(self.pos)

    def elapsed_steps(self):
        return self.steps.copy()

    def close(self):
        if self.once:
            with open(self.once + ".closed", "a") as file:
                file.write(f"{os.getpid()}\n")


class OwnStarts:
    """The same, restarting by itself; `final_obs` are whole arrays, not only the rows that ended."""

    observation_spec, action_spec, info_spec = Point.observation_spec, Point.action_spec, Point.info_spec
    final_obs = True

    def __init__(self, num_envs, **options):
        self.inner, self.n = Point(num_envs, **options), num_envs
        self.random = np.random.RandomState(0)

    def reset(self, seed):
        if seed is not None:
            self.random = np.random.RandomState(seed)
        return self.inner.start(np.arange(self.n), self.random.randint(1 << 30, size=self.n))

    def step(self, actions):
        obs, reward, terminated, truncated, info = self.inner.step(actions)
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            info["final_obs"] = obs
            obs = self.inner.start(ended, self.random.randint(1 << 30, size=len(ended)))
        return obs, reward, terminated, truncated, info


class Tuned(Point):
    """The same with a parameter: what an action is worth."""

    params = ("gain",)

    def __init__(self, num_envs, **options):
        super().__init__(num_envs, **options)
        self.gain = np.ones(num_envs)

    def step(self, actions):
        return super().step(actions * self.gain[:, None])

    def get_params(self):
        return {"gain": self.gain.copy()}

    def set_params(self, ids, values):
        self.gain[ids] = values["gain"]

    def get_state(self):
        return {**super().get_state(), "gain": self.gain.copy()}

    def set_state(self, state):
        self.gain = state["gain"].copy()
        return super().set_state(state)


class Direct(Point):
    """The same, writing its observations into the memory of both processes by itself, and dying in between."""

    place = None

    def observe_into(self, obs):
        self.place = obs

    def obs(self):
        for key, value in super().obs().items():
            if self.fault == "half" and self.made == self.at and self.again():
                self.place[key][:1] = 99
                os.kill(os.getpid(), 9)
            self.place[key][:] = value
        return self.place


def direct(num_envs, **options):
    return Direct(num_envs, **options)


class Misspelled(Point):
    """The same with slips, and with names of its own that are near names that are read."""

    contol_dt_s = 0.1
    control_dt_s = None
    camera = renderer = states = None
    _get_sate = None
    get_sate = None
    get_state = None

    def __getattribute__(self, name):
        if name in ("control_dt_s", "get_state"):
            raise AttributeError(name)
        return super().__getattribute__(name)


def tuned(num_envs, **options):
    return Tuned(num_envs, **options)


def misspelled(num_envs):
    return Misspelled(num_envs)


def point(num_envs, **options):
    return Point(num_envs, **options)


def own_starts(num_envs, **options):
    return OwnStarts(num_envs, **options)


def alone(num_envs, **options):
    if importlib.util.find_spec("robotrl") is not None:
        raise RuntimeError("robotrl can be imported here")
    return Point(num_envs, **options)


def broken(num_envs):
    raise RuntimeError(f"no license for {num_envs} envs")


def with_child(num_envs, file):
    """Starts a process in a session of its own, as a launcher of simulators does, and writes its id to a file."""
    import subprocess

    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with open(file, "w") as out:
        out.write(str(child.pid))
    return Point(num_envs, step_s=0.0)


def without(num_envs, part):
    env = Point(num_envs)
    spec = {**Point.observation_spec["state"], "names": ["one"]}
    if part == "names":
        env.observation_spec = {"state": spec}
    if part == "bounds":
        env.action_spec = {"shape": [1]}
    if part == "start":
        return type("Still", (), {"observation_spec": {}, "action_spec": {}, "step": None})()
    return env


def shot(num_envs, once):
    env = Point(num_envs, once=once)
    if env.again():
        os.kill(os.getpid(), 9)
    return env
