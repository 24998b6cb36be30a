"""Client without an adapter, for comparison: `python -m benchmarks.carla.bare PORT TICK_S TICKS`.

It sends a control and ticks; each line "STEPS" on its input is answered with the seconds that so many steps took.
"""

from __future__ import annotations

import importlib
import sys
import time


def main(port: int, tick_s: float, ticks: int) -> None:
    """Take the clock of a server and answer until the input ends."""
    carla = importlib.import_module("carla")
    client = carla.Client("127.0.0.1", port)
    client.set_timeout(20.0)
    world = client.get_world()
    settings = world.get_settings()
    settings.synchronous_mode, settings.fixed_delta_seconds = True, tick_s
    world.apply_settings(settings)
    (ego,) = world.get_actors().filter("vehicle.lincoln*")
    for line in sys.stdin:
        begun = time.perf_counter()
        for number in range(int(line)):
            ego.apply_control(carla.VehicleControl(throttle=0.0, steer=0.001 * (number % 2), brake=1.0))
            for _ in range(ticks):
                world.tick()
        print(time.perf_counter() - begun, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
