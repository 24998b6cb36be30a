"""Worker process with one peer of the driving sim, controlled over stdin and stdout.

The script needs only the peer and nothing of robotrl, so that a peer may live in another Python environment:

    python -P worker.py highway_env 10hz

It prints a line of JSON when it is ready, and answers each line with a number of steps by a line of results.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

HIGHWAY: dict[str, dict[str, Any]] = {
    "10hz": {"simulation_frequency": 10, "policy_frequency": 10, "vehicles_count": 31},
    "default": {},
}
"""Settings of `highway-fast-v0`: 32 vehicles at our control rate, and the defaults (21 vehicles, 5 steps per
action)."""
IDLE = 1
"""Its action 'keep lane and speed'."""
NO_RAYS = {"num_lasers": 0}
METADRIVE: dict[str, dict[str, Any]] = {
    "default": {
        "num_scenarios": 16,
        "map": 7,
        "traffic_mode": "respawn",
        "traffic_density": 0.3,
        "vehicle_config": {
            "lidar": {**NO_RAYS, "num_others": 0},
            "side_detector": NO_RAYS,
            "lane_line_detector": NO_RAYS,
        },
        "use_render": False,
        "log_level": 50,
    }
}
"""Seven blocks of road with about 30 vehicles that stay, no rays cast for observations."""


class Peer(NamedTuple):
    """A simulator that is ready to run."""

    run: Callable[[int], int]
    """Run a number of steps; returns vehicles on the road, summed over the steps."""
    dt_s: float
    """Simulated seconds per step."""
    version: str


def highway_env(config: dict[str, Any]) -> Peer:
    """highway-env, the ego keeping lane and speed."""
    importlib.import_module("highway_env")
    gymnasium = importlib.import_module("gymnasium")
    env = gymnasium.make("highway-fast-v0", config=config, disable_env_checker=True).unwrapped
    env.reset(seed=0)

    def run(steps: int) -> int:
        vehicles = 0
        for _ in range(steps):
            _, _, terminated, truncated, _ = env.step(IDLE)
            vehicles += len(env.road.vehicles)
            if terminated or truncated:
                env.reset()
        return vehicles

    return Peer(run, 1.0 / env.config["policy_frequency"], importlib.metadata.version("highway-env"))


def metadrive(config: dict[str, Any]) -> Peer:
    """MetaDrive, the ego driven by its own IDM policy."""
    # Without graphics the textures and models, which it would first download from the internet, are never read.
    engine = importlib.import_module("metadrive.engine.base_engine").BaseEngine
    engine.try_pull_asset = staticmethod(lambda: None)
    policy = importlib.import_module("metadrive.policy.idm_policy").IDMPolicy
    env = importlib.import_module("metadrive").MetaDriveEnv({**config, "agent_policy": policy})
    env.reset()

    def run(steps: int) -> int:
        vehicles = 0
        for _ in range(steps):
            _, _, terminated, truncated, _ = env.step([0.0, 0.0])
            vehicles += 1 + env.engine.traffic_manager.get_vehicle_num()
            if terminated or truncated:
                env.reset()
        return vehicles

    dt_s = env.config["decision_repeat"] * env.config["physics_world_step_size"]
    return Peer(run, dt_s, importlib.metadata.version("metadrive-simulator"))


PEERS: dict[str, tuple[Callable[[dict[str, Any]], Peer], dict[str, dict[str, Any]]]] = {
    "highway_env": (highway_env, HIGHWAY),
    "metadrive": (metadrive, METADRIVE),
}


def main(name: str, setting: str) -> None:
    """Serve until the input ends: read a line with a number of steps, answer with a line of results."""
    # libraries print: answers use the real standard output, everything else goes to the log
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    make, settings = PEERS[name]
    peer = make(settings[setting])
    peer.run(1)

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    say({"dt_s": peer.dt_s, "version": peer.version})
    for line in sys.stdin:
        begun = time.perf_counter()
        vehicles = peer.run(int(line))
        say({"vehicles": vehicles, "seconds": time.perf_counter() - begun})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
