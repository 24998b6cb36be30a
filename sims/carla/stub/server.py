"""The server: calls on one port, streams on the next, and a control socket for tests."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import msgpack

from robotrl.sims.carla.stub import calls, wire
from robotrl.sims.carla.stub.faults import Faults, StubFault
from robotrl.sims.carla.stub.loop import Loop, Peer, bind, bind_pair
from robotrl.sims.carla.stub.simulation.sensors import SensorFrame, Sensors
from robotrl.sims.carla.stub.simulation.town import Town
from robotrl.sims.carla.stub.simulation.world import ASYNC_DT_S, WORLD_STREAM, Refusal, World
from robotrl.sims.carla.stub.streams import FrameQueue

DEAD = 70
"""Exit code of the fault `die`."""
_KEPT_CALLS = 200_000
_STREAM = struct.Struct("<I")


class RpcServer:
    """A server of the protocol.

    Args:
        towns: maps that it can load; it begins with the first one.
        host: address that it listens on.
        port: of calls, streams have the next one; 0 for any two free ports.
        control_port: of the control socket; 0 for any free port.

    Raises:
        ConfigError: a port is taken.
    """

    def __init__(self, towns: Sequence[Town], host: str = "127.0.0.1", port: int = 0, control_port: int = 0) -> None:
        self.world, self.faults, self.loop = World(towns), Faults(), Loop()
        rpc, stream = bind_pair(host, port)
        self.control_socket = bind(host, control_port)
        self.port: int = rpc.getsockname()[1]
        self.control_port: int = self.control_socket.getsockname()[1]
        self.session = calls.Session(self.world, host, stream.getsockname()[1], self._publish, self._tick)
        self.received: deque[tuple[str, list[Any]]] = deque(maxlen=_KEPT_CALLS)
        """Calls that came, oldest first: names and arguments."""
        self.counts: Counter[str] = Counter()
        self.world.admit = self._admit
        self._listeners: dict[int, list[Peer]] = {}
        self._sensors = Sensors()
        self._queue = FrameQueue(self.faults, self._send)
        self._last_snapshot, self._snapshot_episode = b"", 0
        self.loop.listen(rpc, self._accept_calls)
        self.loop.listen(stream, self._accept_stream)
        self.loop.later(ASYNC_DT_S, self._clock)

    def listeners(self) -> dict[int, int]:
        """Number of listeners by stream."""
        return {stream: len(peers) for stream, peers in self._listeners.items() if peers}

    # time

    def _clock(self) -> None:
        """Tick by itself while no client does."""
        if not self.world.synchronous:
            self.step(self.world.dt_s)
        self.loop.later(ASYNC_DT_S, self._clock)

    def _tick(self) -> int:
        stale = self.faults.hit("tick_cue", "stale")
        if stale is None:
            self.step(self.world.dt_s)
            return self.world.frame
        self.world.advance(self.world.dt_s)
        if stale.value == "repeat":
            self._send(WORLD_STREAM, self._last_snapshot)
        return self.world.frame

    def _publish(self) -> None:
        self.step(0.0)

    def step(self, dt_s: float) -> None:
        """Simulate a frame and publish it."""
        self.world.advance(dt_s)
        number = self.world.frame
        self._queue.begin(number)
        self._last_snapshot, self._snapshot_episode = self.world.snapshot(time.time(), dt_s), self.world.episode
        if dt_s == 0:
            self._send(WORLD_STREAM, self._last_snapshot)
            return
        self._queue.put(number, SensorFrame(WORLD_STREAM, "world", self._last_snapshot))
        for frame in self._sensors.frames(self.world, self._listeners, self.session.host, self.session.stream_port):
            self._queue.put(number, frame)

    # calls

    def _accept_calls(self, sock: socket.socket) -> None:
        unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, unicode_errors="surrogateescape")

        def received(peer: Peer, data: bytes) -> None:
            try:
                unpacker.feed(data)
                requests = [(number, name, parameters) for _, number, name, parameters in unpacker]
            except (ValueError, TypeError):  # something else than a client
                peer.close()
                return
            for request in requests:
                self._call(peer, *request)

        Peer(self.loop, sock, received, lambda _: None)

    def _call(self, peer: Peer, number: int, name: str, parameters: list[Any]) -> None:
        arguments = parameters[1:]  # the first one says whether the client waits for the answer
        self.received.append((name, arguments))
        self.counts[name] += 1
        fault = self.faults.hit(name, "die", "hang", "late", "close")
        if fault is None:
            self._answer(peer, number, name, arguments)
        else:
            self._misbehave(fault, peer, number, name, arguments)

    def _misbehave(self, fault: StubFault, peer: Peer, number: int, name: str, arguments: list[Any]) -> None:
        if fault.kind == "die":
            os._exit(DEAD)
        elif fault.kind == "late":
            self.loop.later(float(fault.value), lambda: self._answer(peer, number, name, arguments))
        elif fault.kind == "close":
            for listener in [peer for peers in self._listeners.values() for peer in peers]:
                listener.close()
            self._answer(peer, number, name, arguments)
            self._snapshot_episode = 0  # what was published meanwhile is lost

    def _answer(self, peer: Peer, number: int, name: str, arguments: list[Any]) -> None:
        self.session.version = self.faults.value("version") or wire.VERSION
        self.session.map_name = self.faults.value("map")
        if name not in calls.NAMES:
            peer.send(wire.no_answer(number, f"the stub has no function {name!r}"))
            return
        try:
            result = calls.perform(self.session, name, arguments)
        except (TypeError, ValueError, IndexError) as error:  # arguments of another version of the protocol
            peer.send(wire.no_answer(number, f"the stub does not understand {name!r}: {error}"))
            return
        peer.send(wire.answer(number, result))

    def _admit(self, blueprint: str) -> None:
        fault = self.faults.hit(blueprint, "refuse")
        if fault is not None:
            raise Refusal(fault.value)

    # streams

    def _accept_stream(self, sock: socket.socket) -> None:
        asked = bytearray()

        def received(peer: Peer, data: bytes) -> None:
            asked.extend(data)
            if len(asked) >= _STREAM.size:
                stream = _STREAM.unpack_from(asked)[0]
                peers = self._listeners.setdefault(stream, [])
                if peer not in peers:
                    peers.append(peer)
                    self._welcome(peer, stream)

        def closed(peer: Peer) -> None:
            for stream, peers in list(self._listeners.items()):
                if peer in peers:
                    peers.remove(peer)
                if not peers:
                    del self._listeners[stream]

        Peer(self.loop, sock, received, closed)

    def _welcome(self, peer: Peer, stream: int) -> None:
        """Send the last snapshot of this episode to a new listener.

        A client may tick before it has connected to the stream, and this server is fast enough to answer by then.
        """
        if stream == WORLD_STREAM and self._snapshot_episode == self.world.episode:
            peer.send(self._last_snapshot)

    def _send(self, stream: int, message: bytes) -> None:
        for peer in list(self._listeners.get(stream, ())):
            peer.send(message)
