"""Why a request found no more computed state to reuse than it did."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Why: TypeAlias = Literal["off", "none", "short", "differs", "evicted", "other", "last", "logprobs", "slower", "lost"]


class Miss(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why reuse ended at position `at`: so many positions of the leading sequence were reused.

    off       prefix caching is off
    none      no known prefix starts like this one (a foreign salt reads the same)
    short     no known prefix goes on like this one, and what is left is shorter than a block: so little is known only
              once the request that computed it has let go of it
    differs   a known prefix agrees up to here, and not further
    evicted   the block that follows was known, and was evicted by step `step`
    other     what follows is known, but was computed with another `what`: revision or format (a server knows that of
              what lay in its disk tier's folder when it started), or adapter (not served yet, so no server says it)
    last      everything was reused but the last position, which is always computed
    slower    what follows lies in a tier, and computing it is faster than bringing it back
    lost      what follows lay in a tier, and could not be read, or was not what it should be
    logprobs  the prompt's logprobs were asked for, which only computing it gives

    Where a known prefix `differs`, `again` of the positions behind `at`, in that block and the next, hold the same
    tokens in both again: something small changed inside what is otherwise shared.
    """

    why: Why
    at: int
    again: int = 0
    step: int = 0
    what: str = ""
