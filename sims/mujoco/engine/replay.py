"""Replays a dump of the numerics guard and reports the first number that becomes bad.

`python -m robotrl.sims.mujoco.engine.replay DUMP`, with the directory named in the error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import NDArray

from robotrl.errors import DataError

DUMP_SCHEMA = 1
LIMIT = 1e10
"""Magnitude from which MuJoCo itself treats a number as bad (mjMAXVAL)."""
FIELDS = ("qpos", "qvel", "act", "mocap_pos", "mocap_quat", "qacc_warmstart", "ctrl")
"""Fields of the state, in the order in which they are searched."""


def bad_value(read: Callable[[str], NDArray[np.float64]], fields: Sequence[str] = FIELDS) -> tuple[str, float] | None:
    """First of `fields` with a NaN, an infinity or a number beyond `LIMIT`, and that number."""
    for field in fields:
        values = np.ravel(read(field))
        bad = values[~(np.abs(values) < LIMIT)]
        if len(bad):
            return field, float(bad[0])
    return None


def replay(dump: Path) -> tuple[int, str, float] | None:
    """Step the dumped state again, one physics step at a time.

    Args:
        dump: directory from `SimNumericsError.dump`.

    Returns:
        (physics step, field, value) of the first bad number, or None if there is none.

    Raises:
        DataError: the directory does not hold a dump of this schema.
    """
    if not ((dump / "state.json").is_file() and (dump / "model.mjb").is_file()):
        raise DataError(f"dump {str(dump)!r}: expected a directory with state.json and model.mjb")
    record = json.loads((dump / "state.json").read_text())
    if record.get("schema_version") != DUMP_SCHEMA:
        raise DataError(
            f"dump {str(dump)!r}: schema_version is {record.get('schema_version')!r}: expected {DUMP_SCHEMA}"
        )
    model = mujoco.MjModel.from_binary_path(str(dump / "model.mjb"))
    data = mujoco.MjData(model)
    state = np.array([float(x) for x in record["state"]])
    mujoco.mj_setState(model, data, state, int(mujoco.mjtState.mjSTATE_INTEGRATION))
    for step in range(int(record["substeps"]) + 1):
        found = bad_value(lambda field: getattr(data, field), (*FIELDS, "qacc"))
        if found:
            return (step, *found)
        mujoco.mj_step(model, data)
    return None


def main() -> None:
    """Run the command line."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m robotrl.sims.mujoco.engine.replay DUMP")
    try:
        found = replay(Path(sys.argv[1]))
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print("all finite" if found is None else f"physics step {found[0]}: {found[1]} is {found[2]}")


if __name__ == "__main__":
    main()
