"""Files that the user names for a command to write."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from headway.core.errors import ConfigError
from headway.story.sinks.logfiles import is_event_log


def check_output(option: str, path: Path) -> None:
    """Raises ConfigError, before any work is done, if nothing could be written to `path`, or if that would destroy an
    event log. An earlier output is written over, through a link too, as by any command."""
    if path.is_dir():
        raise ConfigError(option, f"{path} is a folder; give a file")
    if not path.parent.is_dir():
        raise ConfigError(option, f"{path} cannot be written: {path.parent} is not an existing folder")
    if path.exists():
        if not os.access(path, os.W_OK):
            raise ConfigError(option, f"{path} cannot be written: permission denied")
        if stat.S_ISREG(path.stat().st_mode) and is_event_log(path):
            raise ConfigError(option, f"{path} is an event log; choose another file")
    elif not os.access(path.parent, os.W_OK):
        raise ConfigError(option, f"{path} cannot be written: the folder {path.parent} is not writable")


def write_output(option: str, path: Path, data: bytes) -> None:
    """Raises ConfigError if it cannot be written."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(option, f"{path} cannot be written: {error.strerror}") from error
