"""Server of a batch of environments to robotrl, for any Python from 3.8 on; needs numpy and no robotrl.

robotrl starts it as `PYTHON worker.py SOCKET LIFELINE MEMORY GRACE_S` with three inherited descriptors. The process
forks: the first part guards the second, kills it when robotrl is gone or asks for it, and leaves none of its
descendants behind. The second part loads `MODULE:FUNCTION`, calls it with the number of envs and keyword arguments,
and serves the environment that it returns. Arrays of a step are in shared memory, and one byte in each direction
announces them; everything else is a frame of JSON and raw arrays. Nothing is pickled.

The environment is any object with

    observation_spec    {name: {"shape": [...], "dtype": "float32", "names": [...], "units": [...], "low": [...],
                        "high": [...]}}; all but the shape may be left out; names and bounds are of the last axis
    action_spec         {"shape": [A], "low": [...], "high": [...], ...}, bounds finite; or "choices": [...]
    step(actions)       (n, A) -> obs, reward (n,), terminated (n,), truncated (n,), info {name: (n,)}
    start(envs, ids)    begin the episodes `ids` (k,) in the envs `envs` (k,) and return the observation of all envs;
                        an id is the episode's seed. `step` then restarts nothing: the server asks for it.
    reset(seed)         instead of `start`, for environments that restart by themselves within `step`: begin new
                        episodes in all envs; `seed` is an int or None. With `final_obs = True`, info["final_obs"] has
                        the last observations of the episodes that ended, (n, ...) or only their rows.

and may have `control_dt_s`, `info_spec` {name: dtype} (of all of `info`; "success" is a bool), `close()`, and methods
and constants named in `METHODS` and `CONSTANTS`; `single_start = False` if `start` takes all envs alone. One that has
`observe_into(obs)` is given, before each step and start, arrays of all its observations: it may write the next ones
there and return these arrays, which are then not copied. An environment that wants a new process raises SystemExit.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import math
import mmap
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from typing import Any

PROTOCOL = 1
"""Version of all that is said between the two sides; raised by each change that an older side would not understand."""
MAGIC = "robotrl-remote"
STEP, BEGIN, DONE, CALL, RESULT, ERROR, HELLO, QUIT = b"S", b"B", b"D", b"C", b"R", b"E", b"H", b"Q"
"""First byte of each message. STEP, BEGIN, DONE and QUIT are that byte alone, the others begin a frame."""
KILL = b"K"
"""Said on the lifeline: end the served process at once. Its end without a word leaves it `GRACE_S`."""
LONGEST = 1 << 31
"""Largest frame, bytes."""
ORDER = ("bank", "count", "generation")
"""Numbers of a worker's order in shared memory: observation bank to write; ids at its disposal; number of the queue."""
METHODS = (
    "queue",
    "stagger",
    "get_state",
    "set_state",
    "render",
    "picture_size",
    "get_params",
    "set_params",
    "distance",
    "instructions",
    "scenario_of",
    "make_expert",
    "caption_classes",
    "action_contexts",
    "time_to_collision_s",
    "time_to_collision_ahead_s",
    "plan_frame",
    "progress_ratio",
    "elapsed_steps",
)
"""Optional methods, as in robotrl's sims, of numpy arrays; the arguments are passed by name.

`queue(ids)`: an env that restarts by itself takes its starts from here; replaces what was queued. `stagger(share)`:
called after all envs have begun; env i has spent `share[i]` of its time limit; returns the observation."""
CONSTANTS = (
    "cameras",
    "params",
    "privileged",
    "grounding_keys",
    "scenarios",
    "vocabulary",
    "success_rule",
    "solved_return",
    "vehicle_obs",
    "trajectory_dt_s",
    "action_captions",
    "caption_topics",
    "caption_camera",
    "limit_steps",
    "reasons",
)
"""Optional attributes, sent once as JSON."""
OTHERS = (
    "observation_spec",
    "action_spec",
    "step",
    "start",
    "reset",
    "final_obs",
    "single_start",
    "control_dt_s",
    "info_spec",
    "observe_into",
    "close",
)
"""Further names of an environment that are read."""
PACKED = {"set_state": "state", "set_params": "values"}
"""Methods that take arrays by name in one argument, and its name."""
OBSERVED = ("reset", "set_state", "stagger")
"""Methods that return the observation of all envs, which goes into shared memory."""
np: Any = None  # numpy, imported in the served process alone: the guard forks before it


class Fault(Exception):
    """An environment gave what it may not give."""


class NotFinite(Exception):
    """A number of an environment is NaN or infinite."""


# frames


class FrameChannel:
    """Frames of JSON and arrays, and single bytes, over a socket.

    Args:
        sock: one end of a connected pair.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def signal(self, kind: bytes) -> None:
        """Send one byte."""
        self.sock.send(kind)

    def kind(self) -> bytes:
        """Receive one byte.

        Raises:
            EOFError: the other side is gone.
            BlockingIOError: nothing came within the socket's time limit.
        """
        found = self.sock.recv(1)
        if not found:
            raise EOFError("the other side is gone")
        return found

    def send(self, kind: bytes, data: dict[str, Any], arrays: dict[str, Any] | None = None) -> None:
        """Send a frame: its kind, JSON and arrays by name."""
        parts = {key: np.asarray(value) for key, value in (arrays or {}).items()}
        listed = [[key, value.dtype.str, list(value.shape)] for key, value in parts.items()]
        text = json.dumps([data, listed]).encode()
        self.sock.sendall(kind + struct.pack("<I", len(text)) + text)
        for value in parts.values():
            self.sock.sendall(value.tobytes())

    def body(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Receive a frame after its kind: JSON and arrays by name.

        Raises:
            EOFError: the other side is gone.
            ValueError: this is no frame.
        """
        (length,) = struct.unpack("<I", self._exactly(4))
        if length > LONGEST:
            raise ValueError("a frame of %d bytes: expected up to %d" % (length, LONGEST))
        data, listed = json.loads(bytes(self._exactly(length)).decode())
        return data, {key: self._array(dtype, shape) for key, dtype, shape in listed}

    def _array(self, dtype: str, shape: list[int]) -> Any:
        kind = np.dtype(dtype)
        size = int(kind.itemsize * math.prod(shape))
        if kind.kind not in "biuf" or not 0 <= size <= LONGEST:
            raise ValueError("an array of type %s and shape %s: expected numbers" % (dtype, shape))
        return np.frombuffer(self._exactly(size), kind).reshape(shape) if size else np.zeros(shape, kind)

    def _exactly(self, size: int) -> bytearray:
        out = bytearray(size)
        view, at = memoryview(out), 0
        while at < size:
            count = self.sock.recv_into(view[at:])
            if not count:
                raise EOFError("the other side is gone")
            at += count
        return out


def use_numpy() -> Any:
    """Import numpy for this module; returns it."""
    global np
    np = importlib.import_module("numpy")
    return np


# the environment


def load(factory: str, path: list[str]) -> Any:
    """The function MODULE:FUNCTION; modules are looked up in `path`, then as usual, then in the working directory."""
    sys.path[:0] = path
    sys.path.append(os.getcwd())
    name, _, function = factory.partition(":")
    return getattr(importlib.import_module(name), function)


def plain(value: Any) -> Any:
    """JSON form of a value; infinite numbers become None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and math.isinf(value):
        return None
    return value


def describe(env: Any) -> dict[str, Any]:
    """EnvDescription of an environment for the handshake.

    Raises:
        Fault: a part is missing.
    """
    for name in ("observation_spec", "action_spec", "step"):
        if not hasattr(env, name):
            raise Fault("the environment has no %s: expected an object as the head of worker.py describes" % name)
    if not hasattr(env, "start") and not hasattr(env, "reset"):
        raise Fault("the environment has neither start(envs, ids) nor reset(seed): expected one of them")
    starts = ("queued" if hasattr(env, "queue") else "given") if hasattr(env, "start") else "own"
    constants = {name: plain(getattr(env, name)) for name in CONSTANTS if hasattr(env, name)}
    return {
        "observation_spec": plain(env.observation_spec),
        "action_spec": plain(env.action_spec),
        "info_spec": plain(getattr(env, "info_spec", {})),
        "control_dt_s": plain(getattr(env, "control_dt_s", None)),
        "starts": starts,
        "final_obs": bool(starts == "given" or getattr(env, "final_obs", False)),
        "single_start": bool(getattr(env, "single_start", True)),
        "methods": [name for name in METHODS if callable(getattr(env, name, None))],
        "constants": constants,
        "misspelled": misspelled(env),
    }


def misspelled(env: Any) -> list[list[str]]:
    """Public attributes that are probably meant to be one that is read, each with that name."""
    read = {*METHODS, *CONSTANTS, *OTHERS}
    found = []
    for name in sorted(name for name in set(dir(env)) - read if not name.startswith("_")):
        likely = [other for other in sorted(read) if looks_like(name, other)]
        if len(likely) == 1 and not hasattr(env, likely[0]):
            found.append([name, likely[0]])
    return found


def looks_like(name: str, other: str) -> bool:
    """True if `name` is probably `other` with a slip; words of their own, as "camera" for "cameras", are not."""
    if "_" not in other and (name[0], name[-1]) != (other[0], other[-1]):
        return False
    return slips(name, other) <= (2 if len(other) >= 10 else 1)


def slips(a: str, b: str) -> int:
    """Letters to be added, left out, replaced or swapped with the next one, to get from `a` to `b`."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a):
        before, last, row = row, before, [i + 1]
        for j, y in enumerate(b):
            row.append(min(before[j] + (x != y), before[j + 1] + 1, row[j] + 1))
            if i and j and (x, a[i - 1]) == (b[j - 1], y):
                row[-1] = min(row[-1], last[j - 1] + 1)
    return row[-1]


class Slot:
    """Array, in shared memory or not, that takes an array of the environment.

    Args:
        what: its name, for errors.
        array: (n, ...), without gaps between its elements.
        key: name of the observation; "" for another array.
    """

    def __init__(self, what: str, array: Any, key: str = "") -> None:
        self.what, self.array, self.shape, self.key = what, array, array.shape, key
        self._flat = array.reshape(-1) if array.dtype.kind == "f" else None

    def is_finite(self) -> bool:
        """False if an element is not finite, or, rarely, if the square of one overflows."""
        # one call of BLAS instead of a search: a sum of squares is not finite if an element is not
        return self._flat is None or math.isfinite(self._flat.dot(self._flat))


class Server:
    """Answers the requests of robotrl about one environment.

    Args:
        env: the environment.
        said: its description.
        layout: array name to [offset, dtype, shape] in `memory`.
        rows: first env of this worker, and the end of its envs.
        worker: number of this worker.
    """

    def __init__(
        self, env: Any, said: dict[str, Any], layout: dict[str, Any], memory: Any, rows: tuple[int, int], worker: int
    ) -> None:
        self.observe_into = getattr(env, "observe_into", None)
        self.env, self.starts, self.first = env, said["starts"], rows[0]
        self.n = rows[1] - rows[0]
        self.gives_final = said["final_obs"]
        self.names = {key: list(spec.get("names") or ()) for key, spec in said["observation_spec"].items()}

        def view(name: str, scale: int = 1) -> Any:
            offset, dtype, shape = layout[name]
            count = math.prod(shape)
            whole = np.frombuffer(memory, np.dtype(dtype), count, offset).reshape(shape)
            return whole[scale * rows[0] : scale * rows[1]]

        self.order = view_of_row(memory, layout["order"], worker)
        self.actions = view("actions")
        self.ids, self.envs = view("ids", 2), view("envs")
        self.reward, self.terminated, self.truncated = (
            Slot(name, view(name)) for name in ("reward", "terminated", "truncated")
        )
        keys = said["observation_spec"]
        self.banks = [{k: Slot("observation %r" % k, view("obs%d/%s" % (b, k)), k) for k in keys} for b in (0, 1)]
        self.obs = [{key: slot.array for key, slot in bank.items()} for bank in self.banks]
        self.aimed = -1
        """Bank that the environment writes into by itself; -1 for none yet."""
        self.final = {key: view("final/" + key) for key in keys}
        self.finals: dict[int, dict[str, Slot]] = {}
        self.info = {key: Slot("info %r" % key, view("info/" + key)) for key in said["info_spec"]}
        self.known_info = {*self.info, "final_obs"}
        self.experts: list[Any] = []
        self.generation, self.taken = -1, 0
        """Of the queue that the environment has, and how many of its ids it has taken."""
        self.doing = ""
        """Method that runs, for errors."""

    def step(self) -> None:
        """Advance all envs by the actions in shared memory."""
        bank, count, generation = self.order.tolist()
        if self.starts == "queued" and count:
            self._queue(generation)
        self._aim(bank)
        self.doing = "step"
        out = self.env.step(self.actions.copy())
        if not isinstance(out, tuple) or len(out) != 5:
            found = "a tuple of %d" % len(out) if isinstance(out, tuple) else type(out).__name__
            raise Fault("gave %s: expected obs, reward, terminated, truncated, info" % found)
        obs, reward, terminated, truncated, info = out
        if not info.keys() <= self.known_info:
            named = sorted(map(str, info.keys() - self.known_info))
            raise Fault("gave info %s, which info_spec lacks: expected e.g. info_spec = {'success': 'bool'}" % named)
        with quiet():
            self._put(self.reward, reward)
            self._put(self.terminated, terminated)
            self._put(self.truncated, truncated)
            for key, slot in self.info.items():
                if key not in info:
                    raise Fault("info has no %r, which info_spec promises" % key)
                self._put(slot, info[key])
            self._put_obs(bank, obs)
        # counts are quicker than the search, and in most steps no episode ends
        if np.count_nonzero(self.terminated.array) or np.count_nonzero(self.truncated.array):
            self._after_ends(bank, count, info)

    def _after_ends(self, bank: int, count: int, info: dict[str, Any]) -> None:
        """Hand on the last observations of episodes that ended, and begin the next ones."""
        ended = np.flatnonzero(self.terminated.array | self.truncated.array)
        if self.starts == "given":
            for key, target in self.final.items():
                target[: len(ended)] = self.banks[bank][key].array[ended]
            if count:
                self._start(bank, ended, self.ids[: len(ended)].copy())
            return
        self.taken += len(ended)
        if self.gives_final:
            with quiet():
                self._put_final(info, ended)

    def begin(self) -> None:
        """Begin the episodes in shared memory."""
        bank, count, _ = self.order.tolist()
        self._start(bank, self.envs[:count].copy(), self.ids[:count].copy())

    def call(self, data: dict[str, Any], arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Call a method by name; see `METHODS`."""
        name = self.doing = data["call"]
        if "expert" in data:
            return self._ask_expert(self.experts[data["expert"]], name, arrays)
        if name in ("get_state", "set_state", "queue"):
            self.generation = -1  # the environment's queue is part of its state
        if name in OBSERVED:
            self._aim(int(self.order[0]))
            self.doing = name
        packed = {PACKED[name]: arrays} if name in PACKED else arrays
        found = getattr(self.env, name)(**data["with"], **packed)
        if name in OBSERVED:
            with quiet():
                self._put_obs(int(self.order[0]), found)
            return {}, {}
        if name == "make_expert":
            self.experts.append(found)
            return {"value": [len(self.experts) - 1, list(found.modes), hasattr(found, "get_state")]}, {}
        if isinstance(found, np.ndarray):
            return {"array": True}, {"value": found}
        if isinstance(found, dict):
            return {"arrays": True}, {key: np.asarray(value) for key, value in found.items()}
        return {"value": plain(found)}, {}

    def _ask_expert(self, expert: Any, name: str, arrays: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        if name == "act":
            action = expert.act(arrays["started"])
            return {"arrays": True}, {"action": np.asarray(action), "mode": np.asarray(expert.mode)}
        if name == "set_state":
            expert.set_state(arrays)
            return {"arrays": True}, {"mode": np.asarray(expert.mode)}
        return {"arrays": True}, dict(expert.get_state())

    def _aim(self, bank: int) -> None:
        """Tell an environment that writes observations by itself where the next ones go."""
        if self.observe_into is not None and bank != self.aimed:
            self.doing = "observe_into"
            self.observe_into(self.obs[bank])
            self.aimed = bank

    def _queue(self, generation: int) -> None:
        """Refill the queue of an environment that restarts by itself before it could run empty."""
        if generation != self.generation or len(self.ids) - self.taken < self.n:
            self.doing = "queue"
            self.env.queue(self.ids.copy())
            self.generation, self.taken = generation, 0

    def _start(self, bank: int, envs: Any, ids: Any) -> None:
        self._aim(bank)
        self.doing = "start"
        obs = self.env.start(envs, ids)
        self.generation = -1
        with quiet():
            self._put_some(bank, envs, obs)

    def _put_obs(self, bank: int, obs: Any) -> None:
        self._check_keys(obs)
        for key, slot in self.banks[bank].items():
            self._put(slot, obs[key])

    def _put_some(self, bank: int, envs: Any, obs: Any) -> None:
        """Put the observations of some envs; those of the others may be other than their last step gave."""
        if len(envs) == self.n:
            self._put_obs(bank, obs)
            return
        self._check_keys(obs)
        for key, slot in self.banks[bank].items():
            rows = Slot(slot.what, slot.array[envs], key)  # a copy
            self._put(rows, np.asarray(obs[key])[envs], envs)
            slot.array[envs] = rows.array

    def _check_keys(self, obs: Any) -> None:
        if not isinstance(obs, dict) or obs.keys() != self.final.keys():
            found = sorted(obs) if isinstance(obs, dict) else type(obs).__name__
            raise Fault("gave the observation %s: expected a dict with %s" % (found, sorted(self.final)))

    def _put_final(self, info: Any, ended: Any) -> None:
        found = info.get("final_obs")
        if found is None:
            raise Fault("info has no 'final_obs' although episodes ended: expected it, as final_obs = True promises")
        self._check_keys(found)
        for key, slot in self._first_finals(len(ended)).items():
            value = np.asarray(found[key])
            self._put(slot, value if len(value) == len(ended) else value[ended], ended)

    def _first_finals(self, count: int) -> dict[str, Slot]:
        """Slots of the first rows of the final observations; those of some counts are kept."""
        if count not in self.finals:
            if len(self.finals) >= 64:
                self.finals.clear()
            rows = {key: target[:count] for key, target in self.final.items()}
            self.finals[count] = {key: Slot("final observation %r" % key, x, key) for key, x in rows.items()}
        return self.finals[count]

    def _put(self, slot: Slot, value: Any, envs: Any = None) -> None:
        """Copy an array into shared memory if it has the shape, a fitting type, and finite numbers."""
        if not isinstance(value, np.ndarray):
            value = np.asarray(value)
        if value.shape != slot.shape:
            raise Fault("gave %s of shape %s: expected %s" % (slot.what, value.shape, slot.shape))
        try:
            if value is not slot.array:
                np.copyto(slot.array, value, casting="same_kind")
        except TypeError:
            raise Fault("gave %s of type %s: expected %s" % (slot.what, value.dtype, slot.array.dtype)) from None
        if not slot.is_finite():
            self._search(slot, envs)

    def _search(self, slot: Slot, envs: Any) -> None:
        bad = np.argwhere(~np.isfinite(slot.array))
        if not len(bad):
            return
        row = int(bad[0][0])
        env = self.first + (row if envs is None else int(envs[row]))
        names = self.names.get(slot.key)
        column = ", " + repr(names[int(bad[0][-1])]) if names and slot.array.ndim > 1 else ""
        number = slot.array[tuple(bad[0])]
        raise NotFinite("env %d: %s%s is %s: expected a finite number" % (env, slot.what, column, number))


def quiet() -> Any:
    """Context in which numbers may overflow without a warning: what is not finite is an error, with its place."""
    return np.errstate(over="ignore")


def view_of_row(memory: Any, field: Any, row: int) -> Any:
    """One row of an array in shared memory."""
    offset, dtype, shape = field
    return np.frombuffer(memory, np.dtype(dtype), math.prod(shape), offset).reshape(shape)[row]


# the served process


def serve(sock_fd: int, memory_fd: int) -> int:
    """Serve until robotrl says so or is gone; returns the exit code."""
    for fd in (sock_fd, memory_fd):
        os.set_inheritable(fd, False)  # children of the environment must not hold the connection open
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != os.path.dirname(os.path.abspath(__file__))]
    channel = FrameChannel(socket.socket(fileno=sock_fd))
    hello = {"magic": MAGIC, "protocol": PROTOCOL, "python": sys.version.split()[0], "pid": os.getpid()}
    try:
        hello["numpy"] = use_numpy().__version__
    except ImportError as error:
        hello["fault"] = "numpy does not import there: %s" % error
    channel.send(HELLO, hello)
    doing, env, code = "making it", None, 0
    try:
        if channel.kind() != HELLO:
            return 0
        order, _ = channel.body()
        # tracebacks and prints of the environment do not mix with the results of a command
        os.dup2(2, 1)
        os.environ["ROBOTRL_WORKER"] = str(order["worker"])
        first, end = order["rows"]
        env = load(order["factory"], order["path"])(end - first, **order["kwargs"])
        said = describe(env)
        channel.send(HELLO, said)
        if channel.kind() != HELLO:
            return 0
        layout, _ = channel.body()
        memory = mmap.mmap(memory_fd, layout["bytes"])
        server = Server(env, said, layout["arrays"], memory, (first, end), order["worker"])
        channel.send(HELLO, {})
        doing = ""
        code = answer(channel, server)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0  # robotrl is gone
    except Exception as error:
        tell(channel, error, doing)
        code = 1
    finally:
        if env is not None and hasattr(env, "close"):
            env.close()
    return code


def answer(channel: FrameChannel, server: Server) -> int:
    """Answer requests; returns the exit code."""
    while True:
        kind = channel.kind()
        try:
            if kind == STEP:
                server.step()
                channel.signal(DONE)
            elif kind == CALL:
                channel.send(RESULT, *server.call(*channel.body()))
            elif kind == BEGIN:
                server.begin()
                channel.signal(DONE)
            elif kind == QUIT:
                return 0
            else:
                raise Fault("robotrl said %r: expected a request of protocol %d" % (kind, PROTOCOL))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            tell(channel, error, server.doing + "()")


def tell(channel: FrameChannel, error: Exception, doing: str) -> None:
    """Send an error: its type, message and place."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if os.path.abspath(frame.filename) != os.path.abspath(__file__)]
    where = "%s, line %s" % (os.path.basename(theirs[-1].filename), theirs[-1].lineno) if theirs else ""
    message = " ".join(str(error).split())
    channel.send(ERROR, {"type": type(error).__name__, "message": message, "where": where, "doing": doing})


# the guard


def adopt_descendants() -> None:
    """Become the parent of all orphans below this process (Linux), so that none outlives it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Let the kernel kill this process when the guard is gone (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)


def kill_group(pid: int) -> None:
    """Kill a process and its group, stopped ones included."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def sweep() -> None:
    """Kill and reap all remaining descendants, also those that left the process group."""
    for _ in range(200):
        try:
            with open("/proc/self/task/%d/children" % os.getpid()) as file:
                pids = [int(word) for word in file.read().split()]
        except OSError:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not pids:
            return
        time.sleep(0.01)


def watch(child: int, lifeline: int, grace_s: float) -> int:
    """Wait for the served process, and kill it when robotrl is gone or says so; returns its wait status."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write)
    watched = select.poll()
    for fd in (read, lifeline):
        watched.register(fd, select.POLLIN)
    parent, deadline = os.getppid(), math.inf
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        if time.monotonic() >= deadline:
            kill_group(child)
            return os.waitpid(child, 0)[1]
        left_s = max(0.0, min(1.0, deadline - time.monotonic()))
        ready = [fd for fd, _ in watched.poll(math.ceil(1000 * left_s))]
        if read in ready:
            os.read(read, 64)
        if lifeline in ready:
            watched.unregister(lifeline)
            deadline = time.monotonic() + (0.0 if os.read(lifeline, 1) == KILL else grace_s)
        elif os.getppid() != parent:
            deadline = min(deadline, time.monotonic() + grace_s)


def main(argv: list[str]) -> int:
    """Fork into the guard and the served process; returns the exit code of either."""
    sock, lifeline, memory = (int(word) for word in argv[:3])
    adopt_descendants()
    child = os.fork()
    if child == 0:
        os.close(lifeline)
        os.setpgid(0, 0)
        die_with_parent()
        return serve(sock, memory)
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    os.close(sock)
    os.close(memory)
    status = watch(child, lifeline, float(argv[3]))
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # the rest of its group
    sweep()
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
