"""One area's fault kinds, tried in sequence: the process of a cell of `robotrl bench faults`.

python -m benchmarks.faults.cell AREA OUT.json
python -m benchmarks.faults.cell AREA --kind NAME --input 17     # repeat one input, and show the exception
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.kind import LOGGER, Kind, Outcome
from robotrl.errors import unknown
from robotrl.utils.files import dump_json
from robotrl.utils.progress import track

LONGEST_S = 120
"""Time limit of one input, s; longer counts as hanging."""


class Hangs(BaseException):
    """An input took too long. Derived so that no `except Exception` of the tested code catches it."""


def kinds_of(area: str) -> tuple[Kind, ...]:
    """Kinds of an area."""
    return importlib.import_module(f"benchmarks.faults.{area}").KINDS


def generator(kind: Kind, number: int) -> np.random.Generator:
    """Random generator of one input; each kind and number has its own."""
    return np.random.default_rng([zlib.crc32(kind.name.encode()), number])


def attempt(kind: Kind, number: int, longest_s: float = LONGEST_S) -> tuple[Outcome, str]:
    """Try one input in an empty folder.

    Args:
        kind: the kind of fault.
        number: number of the input.
        longest_s: time limit, s.

    Returns:
        The outcome, and the text of an exception that the kind did not catch.
    """
    folder = Path(tempfile.mkdtemp(prefix="fault-"))
    here = Path.cwd()
    os.chdir(folder)
    try:
        with _alarm(longest_s):
            return kind.attempt(generator(kind, number), folder), ""
    except Hangs:
        return Outcome.CRASHED, f"no end within {longest_s:g} s"
    except (Exception, SystemExit) as error:
        LOGGER.debug("the kind raised", exc_info=True)
        return Outcome.CRASHED, "".join(traceback.format_exception_only(error)).strip()
    finally:
        os.chdir(here)
        for path in folder.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)


def tried(kind: Kind, most: int | None = None) -> dict[str, Any]:
    """Try the inputs of a kind; returns counts of the outcomes and the first unwanted one."""
    inputs = kind.inputs if most is None else min(kind.inputs, most)
    counts = Counter[str]()
    failure: dict[str, Any] | None = None
    began = time.monotonic()
    for number in range(inputs):
        outcome, said = attempt(kind, number)
        counts[outcome.value] += 1
        if outcome not in kind.wanted and failure is None:
            failure = {"input": number, "outcome": outcome.value, "said": said}
    return {
        "kind": kind.name,
        "wanted": [outcome.value for outcome in kind.wanted],
        "inputs": inputs,
        "outcomes": dict(sorted(counts.items())),
        "failure": failure,
        "wall_s": round(time.monotonic() - began, 2),
    }


def main(argv: Sequence[str]) -> int:
    """Try an area and write the outcomes, or try one input and show it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("area")
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--most", type=int, help="inputs of each kind at most")
    parser.add_argument("--kind", help="this kind alone")
    parser.add_argument("--input", type=int, help="this input alone, with what was raised")
    args = parser.parse_args(argv)
    kinds = {kind.name: kind for kind in kinds_of(args.area)}
    if args.kind is not None:
        if args.kind not in kinds:
            raise unknown("kind", args.kind, kinds)
        kinds = {args.kind: kinds[args.kind]}
    if args.input is not None:
        logging.basicConfig(level=logging.DEBUG, format="%(message)s")
        for kind in kinds.values():
            print(kind.name, *attempt(kind, args.input))
        return 0
    rows: list[dict[str, Any]] = []
    with track(len(kinds), f"faults of {args.area}", "kinds") as bar:
        for kind in kinds.values():
            rows.append(tried(kind, args.most))
            row = rows[-1]
            print(f"{row['wall_s']:7.1f} s  {row['kind']}: {row['outcomes']} {row['failure'] or ''}", flush=True)
            bar.advance(1)
    if args.out is not None:
        args.out.write_bytes(dump_json({"area": args.area, "kinds": rows}))
    return 0


@contextlib.contextmanager
def _alarm(seconds: float) -> Generator[None]:
    def ring(number: int, frame: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
