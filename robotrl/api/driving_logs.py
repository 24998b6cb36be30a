"""Driving logs for `bev/warp`: recorded from a driving sim, or made of logs in other layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robotrl.errors import CapabilityError
from robotrl.registry import make_sim

if TYPE_CHECKING:
    from robotrl.sims.driving.logs.record import LogReport


def record_driving_log(
    out: Path | str,
    sim: str = "bev/drive",
    *,
    train: int = 64,
    val: int = 16,
    test: int = 16,
    frames: bool = True,
    pixels: int = 96,
    pixels_per_m: float = 2.0,
    margin_m: float = 16.0,
    num_envs: int = 16,
    seed: int = 0,
    sim_options: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
) -> LogReport:
    """Record drives of a driving sim's rule-based driver as a log that `bev/warp` replays.

    The first starts of each split are driven, and those that succeed are written.

    Args:
        out: folder of the log; absent or empty.
        sim: name of a driving sim.
        train: number of training starts.
        val: number of validation starts.
        test: number of test starts.
        frames: record bird's-eye frames, two bytes a pixel, besides vectors.
        pixels: height and width of the view that the frames are for, even.
        pixels_per_m: resolution of the frames.
        margin_m: margin of the frames around that view, for deviations from the logged drives.
        num_envs: drives at the same time.
        seed: seed of sim and driver.
        sim_options: options of the sim.
        progress: called with the number of finished drives.

    Raises:
        CapabilityError: the sim is no driving sim.
        ConfigError: a value out of range, or a folder with contents.
        DataError: no drive succeeded.
    """
    from robotrl.sims.driving.logs.record import RecordedFrames, record_drives
    from robotrl.sims.driving.sim import DrivingSim

    options = {"obs": "none", **(sim_options or {})}
    made: Any = make_sim(sim, num_envs=num_envs, seed=seed, **options)
    if not isinstance(made, DrivingSim):
        made.close()
        raise CapabilityError(f"sim {sim!r} is no driving sim: expected one such as 'bev/drive'")
    try:
        shown = RecordedFrames(pixels, pixels_per_m, margin_m) if frames else None
        return record_drives(made, Path(out), {"train": train, "val": val, "test": test}, shown, seed, progress)
    finally:
        made.close()
