"""Live viewer of a sim in the browser, on viser (`robotrl[viewer]`): scene, controls and clock of a session."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import trimesh
import viser
from numpy.typing import NDArray

from robotrl.api.live import BareActions, BareActor, LiveSession
from robotrl.api.viewing import ViewRequest
from robotrl.errors import ConfigError
from robotrl.report.server import HOST, free_port
from robotrl.report.text import number
from robotrl.spec import shown_dt_s
from robotrl.spec.geometry import SceneShape

PORT = 8080
"""Port without `--port`, or the nearest free one above."""
PLANE_M = 20.0
"""Side of a plane that the sim takes as infinite."""
VIEW_FROM = np.array([1.2, -1.2, 0.8])
"""Position of the camera from the middle of all bodies, in multiples of their extent."""
FRAMED_M = 0.5
"""Movement of the bodies, m, after which new clients look at their present place."""
STATUS_S = 0.1
"""Seconds between two updates of the text."""
LAG_S = 0.25
"""A clock that is further behind than this is set anew: the sim cannot keep up."""


def checked_port(port: int | None) -> int:
    """Port to serve at.

    Args:
        port: the port asked for; 0 takes any free one, None the nearest free one to `PORT`.

    Raises:
        ConfigError: the port is taken; the nearest free one is named.
    """
    if port is None:
        return free_port(PORT)
    if port == 0:
        return free_port(0)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ConfigError(
                f"--port is {port}: it is taken or not allowed ({error.strerror}); expected a free port:"
                f" {free_port(port)}, or 0 for any"
            ) from error
    return port


class LiveView:
    """Server of the viewer; `run` steps the session in real time until it is stopped.

    Args:
        session: the episodes to show.
        title: title of the page.
        port: see `checked_port`.

    Raises:
        ConfigError: the port is taken.
    """

    def __init__(self, session: LiveSession, title: str, port: int | None = None) -> None:
        self.session, self.env = session, 0
        self._dt_s = shown_dt_s(session.sim)
        self.port = checked_port(port)
        with contextlib.redirect_stdout(io.StringIO()):  # its own banner
            self.server = viser.ViserServer(host=HOST, port=self.port, label=f"{title}: robotrl", verbose=False)
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._wanted: list[Callable[[], None]] = []
        self._bodies: list[Any] = []
        self._drawn: list[SceneShape] = []
        self._at: NDArray[np.float64] | None = None
        self._framed: NDArray[np.float64] | None = None
        self._controls(title)
        self.draw()

    @property
    def address(self) -> str:
        """URL of the viewer."""
        return f"http://{HOST}:{self.port}/"

    # scene

    def draw(self) -> None:
        """Show the present state; the shapes are made again where an episode changed them."""
        geometry = self.session.geometry
        shapes = geometry.geometry(self.env)
        if not _alike(shapes, self._drawn):
            self._build(shapes)
        poses = geometry.body_poses(self.env)
        with self.server.atomic():
            for body, handle in enumerate(self._bodies):
                handle.position, handle.wxyz = poses.pos_w[body], poses.quat_w[body]
        moving = poses.pos_w[1:]
        if self._framed is None or np.linalg.norm(moving.mean(0) - self._framed) > FRAMED_M:
            self._frame(moving)
        self._follow_to(poses.pos_w[geometry.tracked_body])

    def _build(self, shapes: list[SceneShape]) -> None:
        scene, names = self.server.scene, self.session.geometry.body_names
        for handle in self._bodies:
            handle.remove()
        scene.set_up_direction("+z")
        self._bodies = [scene.add_frame(f"/{_node(name)}", show_axes=False) for name in names]
        for shape in shapes:
            _add(scene, f"/{_node(names[shape.body])}/{_node(shape.name)}", shape)
        self._drawn = shapes

    def _follow_to(self, at: NDArray[np.float64]) -> None:
        """Move every camera as the tracked body has moved."""
        moved = np.zeros(3) if self._at is None else at - self._at
        self._at = at.copy()
        if not self._follow.value or not moved.any():
            return
        for client in self.server.get_clients().values():
            with contextlib.suppress(AssertionError):  # a client whose camera is not known yet
                client.camera.position = client.camera.position + moved
                client.camera.look_at = client.camera.look_at + moved

    def _frame(self, pos: NDArray[np.float64]) -> None:
        """Place the camera of new clients, and of "reset view", so that all bodies (n, 3) are in view."""
        center = pos.mean(0)
        reach = max(float(np.ptp(pos, axis=0).max()), 0.5)
        camera = self.server.initial_camera
        camera.position, camera.look_at, camera.up = center + reach * VIEW_FROM, center, (0.0, 0.0, 1.0)
        self._framed = center

    # controls

    def _controls(self, title: str) -> None:
        gui, session = self.server.gui, self.session
        # sharing would open the page to others through a server of viser's makers
        gui.configure_theme(show_logo=False, show_share_button=False)
        self._status = gui.add_markdown(f"**{title}**")
        self._playing = gui.add_checkbox("Play", True, hint="pause or go on")
        gui.add_button("Step").on_click(lambda _: self.ask(self._step_once))
        gui.add_button("Reset").on_click(lambda _: self.ask(session.reset))
        self._speed = gui.add_slider("Speed", 0.1, 4.0, 0.1, 1.0)
        envs = [str(env) for env in range(session.sim.num_envs)]
        choice = gui.add_dropdown("Env", envs, initial_value="0", visible=len(envs) > 1)
        choice.on_update(lambda _: self.ask(lambda: self.choose(int(choice.value))))
        moves = session.geometry.tracked_body > 0
        self._follow = gui.add_checkbox("Follow", moves, visible=moves, hint="move the camera with the robot")

    def ask(self, action: Callable[[], None]) -> None:
        """Do something between two steps; callable from any thread."""
        with self._lock:
            self._wanted.append(action)

    def choose(self, env: int) -> None:
        """Show another env.

        Raises:
            ConfigError: there is no such env.
        """
        self.session.check_env(env)
        self.env, self._at = env, None

    def pause(self, paused: bool = True) -> None:
        """Pause, or go on."""
        self._playing.value = not paused

    def _step_once(self) -> None:
        self.pause()
        self.session.step()

    def status(self) -> str:
        """Text beside the scene: instruction, step and return of the episode, and how the last one ended."""
        session, env = self.session, self.env
        lines = [f"**{session.name}**"]
        if instruction := session.instruction(env):
            lines.append(f"“{instruction}”")
        lines.append(f"step {session.steps[env]}, {session.steps[env] * self._dt_s:.1f} s")
        lines.append(f"return {number(float(session.returns[env]))}, start id {session.start_ids[env]}")
        if (ended := session.ended[env]) is not None:
            outcome = "success" if ended.success else "no success"
            lines.append(f"last episode: {outcome}, return {number(ended.ret)}, {ended.steps} steps")
        return "  \n".join(lines)

    # clock

    def run(self, steps: int | None = None) -> None:
        """Step in real time until `stop`, or for a number of steps."""
        due, last_status_s = time.monotonic(), 0.0
        done = 0
        while not self._stop.is_set() and (steps is None or done < steps):
            with self._lock:
                wanted, self._wanted = self._wanted, []
            for action in wanted:
                action()
            if self._playing.value:
                self.session.step()
                done += 1
            if self._playing.value or wanted:
                self.draw()
            now = time.monotonic()
            if now - last_status_s > STATUS_S:
                self._status.content, last_status_s = self.status(), now
            due = max(due + self._dt_s / self._speed.value, now - LAG_S)
            self._stop.wait(max(due - now, 0.0))

    def stop(self) -> None:
        """End `run`."""
        self._stop.set()

    def close(self) -> None:
        """Stop, and free the port."""
        self.stop()
        with contextlib.redirect_stdout(io.StringIO()):
            self.server.stop()


def go_live(request: ViewRequest, actions: BareActions | None, port: int | None) -> LiveView:
    """Serve a live viewer of a sim; its `run` steps it.

    Args:
        request: path or sim, options, split, seed and number of envs; the rest is ignored.
        actions: actions of a sim without a policy; None lets the run or the expert act.
        port: see `checked_port`.

    Raises:
        CapabilityError: the sim lacks what is needed; sim and capability are named.
        ConfigError: the sim is unknown, or the port is taken.
    """
    sim = request.open(request.num_envs)
    try:
        actor = (
            request.actor(sim)
            if actions is None
            else BareActor(sim.action_spec, request.num_envs, actions, request.seed)
        )
        session = LiveSession(sim, actor, request.sim_name, request.split)
        title = request.sim_name if actions is not None else f"{request.actor_name} on {request.sim_name}"
        return LiveView(session, title, port)
    except BaseException:
        sim.close()
        raise


def _node(name: str) -> str:
    """A name as one part of a path in the scene."""
    return name.replace("/", "_")


def _alike(new: list[SceneShape], drawn: list[SceneShape]) -> bool:
    """True if the shapes look the same; meshes belong to the model and do not change."""
    return [shape[:7] for shape in new] == [shape[:7] for shape in drawn]


def _add(scene: viser.SceneApi, path: str, shape: SceneShape) -> None:
    """Add a shape below the frame of its body."""
    red, green, blue, alpha = shape.rgba
    color = (round(255 * red), round(255 * green), round(255 * blue))
    x, y, _ = shape.size
    if shape.kind == "plane":
        scene.add_grid(path, 2 * x or PLANE_M, 2 * y or PLANE_M, position=shape.pos_b, wxyz=shape.quat_b)
        return
    vertices, faces = shape.vertices, shape.faces
    if vertices is None or faces is None:
        vertices, faces = _primitive(shape)
    scene.add_mesh_simple(
        path,
        vertices,
        faces,
        color=color,
        opacity=alpha if alpha < 1 else None,
        flat_shading=shape.kind == "box",
        side="double" if shape.kind == "mesh" else "front",
        position=shape.pos_b,
        wxyz=shape.quat_b,
    )


def _primitive(shape: SceneShape) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Vertices (V, 3) and faces (F, 3) of a primitive shape in its own frame."""
    x, y, z = shape.size
    if shape.kind == "box":
        mesh: Any = trimesh.creation.box((2 * x, 2 * y, 2 * z))
    elif shape.kind == "cylinder":
        mesh = trimesh.creation.cylinder(x, 2 * y)
    elif shape.kind == "capsule":
        mesh = trimesh.creation.capsule(2 * y, x)
        # some versions place the lower end at the origin
        mesh.vertices = mesh.vertices - (mesh.vertices.max(0) + mesh.vertices.min(0)) / 2
    else:
        mesh = trimesh.creation.icosphere(3, 1.0)
        mesh.vertices = mesh.vertices * (x if shape.kind == "sphere" else np.array(shape.size))
    return np.asarray(mesh.vertices, np.float32), np.asarray(mesh.faces, np.int32)
