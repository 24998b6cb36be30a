"""Published directories by their name on a model hub: fetched once, at one commit, without any code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from robotrl.errors import ConfigError, DataError

HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?")
"""ORGANISATION/NAME, with @ and a branch, tag or commit behind it or without."""
WANTED = ("*.safetensors", "*.json", "*.pt", "*.model", "*.txt")
"""What importers read. Code is not fetched: nothing of it would be run."""


class Fetched(NamedTuple):
    """A directory, and where it came from."""

    path: Path
    origin: str
    """As it was given, or of a hub's the name with the commit: it fetches the same again."""


def fetch(source: str | Path) -> Fetched:
    """A directory that is there, or that of a name on the hub.

    What was fetched lies in the hub's own cache (`HF_HOME`) and is not fetched again; `HF_ENDPOINT` names another
    server, `HF_HUB_OFFLINE=1` takes what is in the cache alone.

    Args:
        source: a path, or "ORGANISATION/NAME", or "ORGANISATION/NAME@REVISION".

    Raises:
        DataError: there is neither, or the hub refuses it or cannot be reached.
        ConfigError: no directory, and no name that a hub can have.
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
