"""What the files of a disk tier's folder were computed with: so that a prompt whose state lies there, but in another
revision or format, can be told so. Nothing of it is ever read back by this model.

Beside each file of blocks lies `origin.json`. Who starts reads those of the same model's other files, and the keys in
these, once: what another server writes later is not known.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from headway.compute.executor import ModelFacts
from headway.memory.keys import Elsewhere, Origin
from headway.replica.diskslab import keys_in

#: Files that are looked at, those that were written to last: a start reads the headers of each.
_MOST = 4
_NAME = "origin.json"


class _Told(msgspec.Struct, frozen=True):
    """`origin.json`."""

    revision: str
    weights: str
    state: str
    block_tokens: int
    block_bytes: int


def write(folder: Path, facts: ModelFacts, block_tokens: int) -> None:
    """Say in `folder`, a model's own, what its blocks are computed with. On a disk that takes nothing it is left
    unsaid: it only explains."""
    told = _Told(facts.revision, facts.weights_format, facts.state_format, block_tokens, facts.block_bytes)
    new = folder / f"{_NAME}.new"
    with contextlib.suppress(OSError):
        new.write_bytes(msgspec.json.encode(told))
        os.replace(new, folder / _NAME)


def beside(folder: Path, block_tokens: int) -> tuple[Elsewhere, ...]:
    """What lies beside `folder`, a model's own, of the same model with other bytes, in blocks of so many tokens."""
    model = _model(folder)
    others = [each for each in folder.parent.glob(f"{model}-*") if each != folder and _model(each) == model]
    found = (_elsewhere(each, block_tokens) for each in sorted(others, key=_changed, reverse=True)[:_MOST])
    return tuple(each for each in found if each is not None)


def _elsewhere(folder: Path, block_tokens: int) -> Elsewhere | None:
    """None where nobody said what its blocks are computed with, or they cannot be read, or are of another size."""
    try:
        told = msgspec.json.decode((folder / _NAME).read_bytes(), type=_Told)
        if told.block_tokens != block_tokens or told.block_bytes <= 0:
            return None
        keys = keys_in(folder, folder.name.removeprefix(f"{_model(folder)}-"), told.block_bytes)
    except (OSError, msgspec.DecodeError):
        return None
    return Elsewhere(Origin(told.revision, told.weights, told.state), keys)


def _model(folder: Path) -> str:
    """Whose folder it is: `tiers.folder_name` without the identity."""
    return folder.name.rpartition("-")[0]


def _changed(folder: Path) -> float:
    try:
        return (folder / "blocks").stat().st_mtime
    except OSError:
        return 0.0
