"""All logs of a robot as one book of episodes, read from files of both kinds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from robotrl.datasets.layout import INFO
from robotrl.errors import ConfigError, DataError
from robotrl.improve.control_logs import read_control_log
from robotrl.improve.dataset_logs import read_dataset_log
from robotrl.improve.logged import LogBook, LogFault, joined
from robotrl.improve.target import Target

LOG_ENDING = ".jsonl"


def logs_at(path: Path) -> list[Path]:
    """Logs at a path: a dataset, a control log, or those that lie in a folder, by name.

    Raises:
        DataError: there is none.
    """
    if path.is_file() or (path / INFO).is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"log {path} does not exist: expected a control log, a dataset, or a folder of these")
    found = sorted(each for each in path.iterdir() if each.suffix == LOG_ENDING or (each / INFO).is_file())
    if not found:
        raise DataError(f"folder {path} holds no log: expected control logs (*{LOG_ENDING}) or datasets")
    return found


def gather(paths: Sequence[Path], target: Target) -> LogBook:
    """Read all logs of a robot, in the order given.

    Raises:
        ConfigError: a log is named twice.
        DataError: something there is no log, or damaged.
    """
    places = [log for path in paths for log in logs_at(path)]
    twice = {place.resolve() for place in places}
    if len(twice) != len(places):
        named = next(place for i, place in enumerate(places) if place.resolve() in [x.resolve() for x in places[:i]])
        raise ConfigError(f"--logs names {named} twice: expected each log once")
    book = joined([read_control_log(log, target) if log.is_file() else read_dataset_log(log, target) for log in places])
    if len(book.bundles) > 1 and not book.faults:
        ids = ", ".join(sorted(name[:12] for name in book.bundles))
        text = f"the control logs are of {len(book.bundles)} bundles, {ids}: expected those of one policy"
        return book._replace(faults=(LogFault("another bundle", text),))
    return book
