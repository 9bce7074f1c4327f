"""Fields that have an effect under one policy only, and the header that names what had none."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec


class _Heeded(NamedTuple):
    policy: str
    absent: Any


_HEEDED: dict[str, _Heeded] = {
    "priority": _Heeded("priority", 0),
    "deadline_ms": _Heeded("deadline", None),
    "user": _Heeded("fair", None),
}


def drop_unheeded(body: msgspec.Struct, policy: str, *, always: Collection[str] = ()) -> list[str]:
    """Makes absent what `body` says in fields that have an effect only under another policy than the server's, and
    returns their names. `always` have one under every policy."""
    fields = [name for name in _HEEDED if name in body.__struct_fields__ and name not in always]
    dropped = [
        name for name in fields if _HEEDED[name].policy != policy and getattr(body, name) != _HEEDED[name].absent
    ]
    for name in dropped:
        setattr(body, name, _HEEDED[name].absent)
    return dropped


def ignored_header(ignored: Sequence[str]) -> dict[str, str]:
    """The names of fields that were accepted without effect, as an answer's header; none, if there are none."""
    return {"headway-ignored": ", ".join(ignored)} if ignored else {}
