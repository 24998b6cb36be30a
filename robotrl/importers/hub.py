"""Download of published directories from a model hub: cached, at one commit, without any code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from robotrl.errors import ConfigError, DataError

HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?")
"""ORGANISATION/NAME, optionally followed by @ and a branch, tag or commit."""
WANTED = ("*.safetensors", "*.json", "*.pt", "*.model", "*.txt")
"""File patterns that importers read. Code is not downloaded, since it is never run."""


class Fetched(NamedTuple):
    """A local directory and its origin."""

    path: Path
    origin: str
    """The given path, or the name on the hub with the commit, which downloads the same files again."""


def fetch(source: str | Path) -> Fetched:
    """A local directory, or the download of a name on the hub.

    Downloads are stored in the hub's own cache (`HF_HOME`) and reused; `HF_ENDPOINT` sets another server,
    `HF_HUB_OFFLINE=1` uses the cache alone.

    Args:
        source: a path, or "ORGANISATION/NAME", or "ORGANISATION/NAME@REVISION".

    Raises:
        DataError: neither exists, or the hub refuses access or cannot be reached.
        ConfigError: no directory, and no valid name on a hub.
    """
    given, path = str(source), Path(source)
    found = HUB_ID.fullmatch(given)
    if path.exists() or found is None:
        if not path.is_dir():
            raise DataError(f"{given} is no directory: expected one, or a name on the hub (ORGANISATION/NAME@REVISION)")
        return Fetched(path, given)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    repo, revision = found["repo"], found["revision"]
    try:
        local = Path(snapshot_download(repo, revision=revision, allow_patterns=list(WANTED)))
    except HFValidationError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{given} is no directory here, and no name on the hub: {reason}") from error
    except GatedRepoError as error:
        raise DataError(f"{repo} asks for consent: give it on its page, and log in (hf auth login)") from error
    except RepositoryNotFoundError as error:
        raise DataError(f"{given} is neither a directory here nor a name on the hub that may be read") from error
    except RevisionNotFoundError as error:
        raise DataError(f"{repo} has no revision {revision!r}: expected a branch, a tag or a commit of it") from error
    except OSError as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{given} is no directory here, and the hub gave nothing: {reason}") from error
    # a cached snapshot is named by its commit
    return Fetched(local, f"{repo}@{local.name}")
