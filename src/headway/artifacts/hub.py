"""Models on the Hugging Face hub, through its own client and its own cache, if that client is installed."""

from __future__ import annotations

import re
from pathlib import Path

from headway.artifacts.location import Location
from headway.core.errors import ArtifactError, ModelNotFound

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
#: Everything that `folder.py` reads; a repository's other formats of the same weights stay where they are.
_WANTED = ["*.json", "*.jinja", "*.safetensors"]


def is_id(name: str) -> bool:
    """Whether `name` is spelled like `owner/name`."""
    return _ID.fullmatch(name) is not None


def fetch(name: str, offline: bool = False) -> Location:
    """The folder of a repository's newest revision, downloaded unless the hub's cache has it.

    Raises ModelNotFound if the hub has no such repository, ArtifactError for whatever else went wrong.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
    except ImportError as error:
        raise ArtifactError(
            f"{name} is a Hugging Face id, which requires huggingface_hub (pip install huggingface_hub)"
        ) from error
    try:
        folder = snapshot_download(name, allow_patterns=_WANTED, local_files_only=offline)
    except RepositoryNotFoundError as error:
        raise ModelNotFound(f"the Hugging Face Hub has no {name!r}, or you have no access to it") from error
    except LocalEntryNotFoundError as error:
        reason = "downloads are off (offline)" if offline else "the Hub cannot be reached"
        raise ArtifactError(
            f"{name} is not in the Hugging Face cache, and {reason}. Download it where there is a connection "
            f"(`hf download {name}`) and give Headway the folder's path"
        ) from error
    except Exception as error:  # the client's network stack has no common base of its own
        raise ArtifactError(f"downloading {name} from the Hugging Face Hub failed: {error}") from error
    return Location(Path(folder), source=f"huggingface.co/{name}")
