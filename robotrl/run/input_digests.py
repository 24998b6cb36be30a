"""Digests of a run's inputs from outside its directory, as declared by config fields and the sim."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from robotrl.config import TrainCfg, options_of
from robotrl.datasets.manifest import dataset_digest
from robotrl.errors import DataError, RobotrlError, short
from robotrl.run.checkpoint import manifest_digest
from robotrl.run.critic_checkpoint import critic_directory
from robotrl.run.directory import Run
from robotrl.run.inputs import Digest
from robotrl.spec import HasInputs, Input, InputKind, Reads
from robotrl.spec.inputs import READS
from robotrl.utils.files import open_plain
from robotrl.utils.user_module import beside_the_user

OURS, MAIN = "robotrl", "__main__"
CHUNK_BYTES = 1 << 20


def declared(cfg: TrainCfg[Any, Any]) -> list[Input]:
    """All inputs of a run with this config.

    Raises:
        ConfigError: the sim is unknown, or an option names something that cannot be used.
    """
    found = list(_of_fields(cfg, ""))
    for reward in cfg.rewards:
        found += _of_fields(reward.cfg, f"reward.{reward.name}.")
    options = options_of(cfg.sim)
    own = [("sim", type(options)), ("algo", type(cfg.algo)), ("policy", type(cfg.policy))]
    own += [(f"reward.{reward.name}", type(reward.cfg)) for reward in cfg.rewards]
    found += [Input(field, "module", part.__module__) for field, part in own if _is_foreign(part.__module__)]
    if isinstance(options, HasInputs):
        found += [one._replace(field=f"sim.{one.field}" if one.field else "sim") for one in options.inputs()]
    return list(dict.fromkeys(found))


def begun(cfg: TrainCfg[Any, Any]) -> tuple[Digest, ...]:
    """Digests of the inputs of a new run.

    Raises:
        RobotrlError: an input is not there or cannot be read.
    """
    return tuple(Digest(one, digest_of(one.kind, one.path)) for one in declared(cfg))


def digests_on_resume(cfg: TrainCfg[Any, Any]) -> tuple[Digest, ...]:
    """Present digests of the inputs of a resumed run; missing or damaged inputs are noted, not refused."""
    return tuple(_noted(one) for one in declared(cfg))


def present_digests(before: Iterable[Digest]) -> tuple[Digest, ...]:
    """Present digests of the same inputs."""
    return tuple(_noted(digest.input) for digest in before)


def digest_of(kind: InputKind, path: str) -> str:
    """SHA-256 of an input's content, 64 hexadecimal digits.

    Raises:
        RobotrlError: it is not there or cannot be read.
    """
    try:
        return _DIGESTS[kind](path)
    except OSError as error:  # a name that is too long, or a folder without read permission
        raise DataError(f"{kind} {short(path)} cannot be read: {error.strerror}") from error


def _noted(one: Input) -> Digest:
    try:
        if one.kind not in NAMED and not Path(one.path).exists():
            return Digest(one, None)
        return Digest(one, digest_of(one.kind, one.path))
    except (RobotrlError, OSError) as error:
        return Digest(one, None, short(" ".join(str(error).split()), 200))


def _of_fields(part: Any, prefix: str) -> Iterator[Input]:
    for field in fields(part):
        value = getattr(part, field.name)
        if is_dataclass(value):
            yield from _of_fields(value, f"{prefix}{field.name}.")
            continue
        reads: Reads | None = field.metadata.get(READS)
        if reads is not None and value and str(value).startswith(reads.prefix):
            path = str(value).removeprefix(reads.prefix)
            path = path.partition(":")[0] if reads.kind == "module" else path  # of "module:attribute"
            if path == MAIN:  # a notebook or script, which is no file that another process could import
                continue
            yield Input(f"{prefix}{field.name}", reads.kind, path, reads.kept)


def _is_foreign(module: str) -> bool:
    top = module.split(".")[0]
    return top not in (OURS, MAIN) and top not in sys.stdlib_module_names


def _policy(path: str) -> str:
    """Digest of the checkpoint in use: a run's best one, or its newest if none was scored."""
    place = Path(path)
    if not (place / "config.json").exists():
        return manifest_digest(place)
    run = Run.open(place)
    entries = run.entries()
    if not entries:
        raise DataError(f"run {path} has no checkpoint yet")
    return manifest_digest((run.best_entry() or entries[-1]).path)


def _file(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with open_plain(Path(path), path) as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def _module(name: str) -> str:
    """Digest of all Python files of the module's package, or of the module's file if there is no package."""
    top = name.partition(".")[0]
    try:
        # a user module in the working directory may not be loaded yet
        with beside_the_user():
            spec = sys.modules[top].__spec__ if top in sys.modules else importlib.util.find_spec(top)
    except (ImportError, ValueError) as error:
        raise DataError(f"module {name} cannot be found: {error}") from error
    if spec is None:
        raise DataError(f"module {name} cannot be found")
    digest = hashlib.sha256()
    for place in spec.submodule_search_locations or []:
        root = Path(place)
        for file in sorted(root.rglob("*.py")):
            digest.update(f"{file.relative_to(root).as_posix()} {_file(str(file))}\n".encode())
    if spec.submodule_search_locations is None and spec.has_location and spec.origin is not None:
        digest.update(_file(spec.origin).encode())
    return digest.hexdigest()


def _model(name: str) -> str:
    """Digest of a model's files: those of a directory, or the weights of MODEL@FILE; else of the name alone.

    The weights behind a name are compared by the identity of what loads them.
    """
    path, weights = Path(name), name.partition("@")[2]
    if path.is_dir():
        digest = hashlib.sha256()
        for file in sorted(file for file in path.rglob("*") if file.is_file()):
            digest.update(f"{file.relative_to(path).as_posix()} {_file(str(file))}\n".encode())
        return digest.hexdigest()
    if weights and Path(weights).is_file():
        return _file(weights)
    return hashlib.sha256(name.encode()).hexdigest()


NAMED = ("module", "model")
"""Kinds of inputs that need not be paths."""
_DIGESTS = {
    "dataset": dataset_digest,
    "policy": _policy,
    "checkpoint": lambda path: manifest_digest(Path(path)),
    "critic": lambda path: manifest_digest(critic_directory(Path(path))),
    "file": _file,
    "module": _module,
    "model": _model,
}
