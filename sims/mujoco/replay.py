"""Replay a dump of the numerics guard and name what leaves the finite numbers.

`python -m robotrl.sims.mujoco.replay DUMP`, with the directory that the error named.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mujoco
import numpy as np

from robotrl.errors import DataError


def replay(dump: Path) -> tuple[int, str] | None:
    """Step the dumped state again, one physics step at a time.

    Args:
        dump: directory that `SimNumericsError.dump` named.

    Returns:
        (physics step, field) of the first number that is not finite, or None if all stay finite.

    Raises:
        DataError: the directory does not hold a dump.
    """
    if not (dump / "state.json").is_file():
        raise DataError(f"dump {str(dump)!r}: expected a directory with state.json and model.mjb")
    record = json.loads((dump / "state.json").read_text())
    model = mujoco.MjModel.from_binary_path(str(dump / "model.mjb"))
    data = mujoco.MjData(model)
    state = np.array([float(x) for x in record["state"]])
    mujoco.mj_setState(model, data, state, int(mujoco.mjtState.mjSTATE_INTEGRATION))
    for step in range(int(record["substeps"]) + 1):
        for field in ("ctrl", "qpos", "qvel", "qacc"):
            if not np.isfinite(getattr(data, field)).all():
                return step, field
        mujoco.mj_step(model, data)
    return None


def main() -> None:
    """Command line."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m robotrl.sims.mujoco.replay DUMP")
    found = replay(Path(sys.argv[1]))
    print("all finite" if found is None else f"physics step {found[0]}: {found[1]} is not finite")


if __name__ == "__main__":
    main()
