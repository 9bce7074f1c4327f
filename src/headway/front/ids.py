"""Ids of requests, with and without the prefix that OpenAI gives to an answer's."""

from __future__ import annotations

PREFIXES = ("chatcmpl-", "cmpl-")


def plain_ids(id: str) -> list[str]:
    """What `id` may mean wherever an id is accepted: itself, then itself without OpenAI's prefix."""
    return [id, *(id.removeprefix(prefix) for prefix in PREFIXES if id.startswith(prefix))]
