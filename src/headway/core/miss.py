"""Why a request found no more computed state to reuse than it did."""

from __future__ import annotations

from typing import Literal

import msgspec


class Miss(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why reuse ended where it did.

    off       prefix caching is off
    none      no known prefix starts like this one (a foreign salt reads the same)
    differs   a known prefix agrees up to position `at`, not further
    evicted   the block that starts at position `at` was known and has been evicted
    whole     every whole block before the last position was reused (a short prompt has none)
    logprobs  the prompt's logprobs were asked for, which only computing it gives

    Where a known prefix `differs`, `again` of the positions behind `at`, in that block and the next, hold the same
    tokens in both again: something small changed inside what is otherwise shared.
    """

    why: Literal["off", "none", "differs", "evicted", "whole", "logprobs"]
    at: int
    again: int = 0
