"""Prompts that cannot fit the context: refused for good (400), and before they cost much.

Tokenising takes time in proportion to a text's length, and a prompt of millions of ids is slow to copy and check. How
many tokens a text has at least is known from its length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from headway.api.answers.never import Wanted, context_exceeded
from headway.core.verdict import Never
from headway.front.exchange import Exchange
from headway.front.models import FrontModel
from headway.front.state import Front


async def refuse_over_long(
    front: Front,
    model: FrontModel,
    asks: Sequence[tuple[str | list[int], Wanted]],
    current: Exchange | None = None,
) -> None:
    """Raises Refusal (400) when one of the prompts, texts or token ids, leaves no place in the context for a single
    new token. The numbers of a text are the least that it can have. With `current` the refusal is told in the story
    as the end of that exchange's request."""
    if model.ready is None:
        return  # the context is not known before the model is
    limit, own = model.ready.max_context, model.ready.facts.max_context
    texts = [prompt for prompt, _ in asks if isinstance(prompt, str) and len(prompt) >= limit]
    fewest = await asyncio.to_thread(lambda: {text: model.tokenizer.fewest_tokens(text) for text in texts})
    counted = [
        replace(wanted, prompt=fewest.get(prompt, 0), at_least=True)
        if isinstance(prompt, str)
        else replace(wanted, prompt=len(prompt))
        for prompt, wanted in asks
    ]
    longest = max(counted, key=lambda wanted: wanted.prompt)
    if longest.prompt < limit:
        return
    option = "--max-context" if limit < own else None
    if current is not None:
        need = longest.prompt + (longest.most_tokens or 1)
        verdict = Never(rule="context", unit="positions", need=need, limit=limit, option=option)
        front.refuse(current.id, current.received_at, model.name, verdict)
        current.served.append(current.id)
    raise context_exceeded(longest, limit, option)
