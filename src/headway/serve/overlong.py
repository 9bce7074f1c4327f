"""Prompts that cannot fit the context: refused for good (400), and before they cost much.

Tokenising takes time in proportion to a text's length, and a prompt of millions of ids is slow to copy and check. How
many tokens a text has at least is known from its length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headway.serve.errors import Refusal, never
from headway.serve.front import Front
from headway.serve.visit import Visit
from headway.verdict import Never


async def refuse_over_long(
    front: Front,
    prompts: Sequence[str | Sequence[int]],
    *,
    most_tokens: int | None = None,
    current: Visit | None = None,
) -> None:
    """Raises Refusal (400) when one of `prompts`, texts or token ids, leaves no place in the context for a single new
    token. The numbers of a text are the least that it can have. With `current` the refusal is told in the story as
    the end of that exchange's request."""
    if front.ready is None:
        return  # the context is not known before the model is
    context = front.ready.max_context
    tokens = max([len(ids) for ids in prompts if not isinstance(ids, str)], default=0)
    if texts := [text for text in prompts if isinstance(text, str) and len(text) >= context]:
        fewest = await asyncio.to_thread(lambda: max(map(front.tokenizer.fewest_tokens, texts)))
        tokens = max(tokens, fewest)
    if tokens < context:
        return
    need = tokens + (most_tokens or 1)
    verdict = Never(rule="context", unit="positions", need=need, limit=context, option="--max-context")
    if current is not None:
        front.refuse(current.id, current.received_at, verdict)
        current.served.append(current.id)
    raise _refusal(verdict, front)


def _refusal(verdict: Never, front: Front) -> Refusal:
    assert front.ready is not None
    return never(verdict, front.ready.facts.max_context)
