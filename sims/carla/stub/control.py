"""The control socket: JSON requests and answers, a line each."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from robotrl.errors import ConfigError, RobotrlError, unknown
from robotrl.sims.carla.stub import calls, faults
from robotrl.sims.carla.stub.loop import Peer
from robotrl.sims.carla.stub.server import RpcServer
from robotrl.sims.carla.stub.simulation.actors import StubActor, given
from robotrl.sims.carla.stub.simulation.blueprints import LIBRARY
from robotrl.sims.carla.stub.simulation.town import Pose
from robotrl.sims.carla.stub.simulation.world import Refusal


class ControlSocket:
    """Requests of a test to the server: `{"do": NAME, ...}`, answered with `{"ok": ...}` or `{"error": ...}`.

    Args:
        server: what they are about.
    """

    def __init__(self, server: RpcServer) -> None:
        self._server = server
        self._requests: dict[str, Callable[..., Any]] = {
            "calls": self._calls,
            "count": self._count,
            "forget": self._forget,
            "fault": self._fault,
            "faults": self._faults,
            "heal": self._heal,
            "state": self._state,
            "actors": self._actors,
            "spawn": self._spawn,
            "destroy": self._destroy,
            "place": self._place,
            "script": self._script,
            "light": self._light,
            "tick": self._tick,
        }
        server.loop.listen(server.control_socket, self._accept)

    def _accept(self, sock: socket.socket) -> None:
        waiting = bytearray()

        def received(peer: Peer, data: bytes) -> None:
            waiting.extend(data)
            *lines, rest = bytes(waiting).split(b"\n")
            waiting[:] = rest
            for line in lines:
                peer.send(json.dumps(self._answer(line)).encode() + b"\n")

        Peer(self._server.loop, sock, received, lambda _: None)

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            name = request.pop("do")
            if name not in self._requests:
                raise unknown("do", name, self._requests)
            return {"ok": self._requests[name](**request)}
        except (RobotrlError, Refusal) as error:
            return {"error": str(error)}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return {"error": f"request is {line.decode(errors='replace')!r}: {error}"}

    # what came

    def _calls(self, name: str = "*") -> list[Any]:
        pattern = faults.ALIASES.get(name, name)
        return [[call, _plain(args)] for call, args in self._server.received if fnmatchcase(call, pattern)]

    def _count(self) -> dict[str, int]:
        return dict(self._server.counts)

    def _forget(self) -> None:
        self._server.received.clear()
        self._server.counts.clear()

    # faults

    def _fault(self, fault: str) -> None:
        self._server.faults.list.append(faults.parse(fault, calls.NAMES))

    def _faults(self) -> list[dict[str, Any]]:
        return [vars(fault) for fault in self._server.faults.list]

    def _heal(self) -> None:
        self._server.faults.list.clear()

    # the world

    def _state(self) -> dict[str, Any]:
        world = self._server.world
        return {
            "frame": world.frame,
            "episode": world.episode,
            "seconds": world.seconds,
            "map": world.town.name,
            "synchronous": world.synchronous,
            "rendering": world.rendering,
            "settings": world.settings,
            "actors": len(world.actors.list),
            "listeners": self._server.listeners(),
        }

    def _actors(self, type: str = "*") -> list[dict[str, Any]]:
        world = self._server.world
        found = [actor for actor in world.actors.list if fnmatchcase(actor.blueprint.id, type)]
        return [
            {
                "id": actor.id,
                "type": actor.blueprint.id,
                "parent": actor.parent,
                "pose": world.actors.pose(actor.id),
                "speed": float(world.actors.body["speed"][world.actors.row[actor.id]]),
                "attributes": actor.attributes,
            }
            for actor in found
        ]

    def _spawn(self, type: str, pose: list[float], attributes: dict[str, str] | None = None, parent: int = 0) -> int:
        if type not in LIBRARY:
            raise unknown("type", type, LIBRARY)
        values = given(LIBRARY[type], attributes or {})
        return self._server.world.spawn(type, values, _pose(pose), parent).id

    def _destroy(self, id: int) -> bool:
        return self._server.world.destroy(self._known(id).id)

    def _place(self, id: int, pose: list[float], speed: float = 0.0) -> None:
        world = self._server.world
        world.place(self._known(id).id, _pose(pose))
        world.actors.body["speed"][world.actors.row[id]] = speed

    def _script(self, id: int, poses: list[list[float]]) -> None:
        """Move an actor through poses, one a frame, whatever it is told to do; no poses let it go."""
        actor = self._known(id)
        actor.script = [_pose(pose) for pose in poses]
        world = self._server.world
        world.actors.body["scripted"][world.actors.row[id]] = bool(poses)

    def _light(self, id: int | str, state: int, freeze: bool = True) -> None:
        """Set a traffic light, by actor id or OpenDRIVE id, and stop its junction's cycle."""
        world = self._server.world
        if isinstance(id, str):
            known = {
                actor_id: world.actors.record["sign_id"][world.actors.row[actor_id]].decode()
                for actor_id in world.lights.by_id
            }
            id = next((actor_id for actor_id, name in known.items() if name == id), 0)
        if id not in world.lights.by_id:
            raise ConfigError(f"id is {id!r}: expected one of the traffic lights {sorted(world.lights.by_id)}")
        world.lights.show(id, state)
        world.lights.of_junction[id].frozen = freeze

    def _tick(self) -> int:
        self._server.step(self._server.world.dt_s)
        return self._server.world.frame

    def _known(self, id: int) -> StubActor:
        found = self._server.world.actors.of(id)
        if found is None:
            raise ConfigError(f"id is {id!r}: expected an actor of this episode")
        return found


def _pose(numbers: list[float]) -> Pose:
    """Pose of x, y, z and yaw, or of all six numbers."""
    if len(numbers) == 4:
        x, y, z, yaw = (float(number) for number in numbers)
        return (x, y, z, 0.0, yaw, 0.0)
    if len(numbers) != 6:
        raise ConfigError(f"pose is {numbers}: expected x, y, z (m) and yaw (degrees), or x, y, z, pitch, yaw, roll")
    x, y, z, pitch, yaw, roll = (float(number) for number in numbers)
    return (x, y, z, pitch, yaw, roll)


def _plain(value: Any) -> Any:
    """The value with bytes written as hexadecimal digits, and long texts cut."""
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str) and len(value) > 1000:
        return value[:1000]
    return value
