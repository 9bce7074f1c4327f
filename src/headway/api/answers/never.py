"""Refusals of what could not be served even alone (400): the need, the limit, and what to do.

Clients know a prompt that is too long by OpenAI's code and words; agents then compact it, and routers try another
model. So those come first and unchanged, and what only Headway says comes after them.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.verdict import Never
from headway.front.refusals import Refusal

#: Repeated at the end of the message: OpenAI's client shows only the message, and LangChain looks for the code there.
OVERFLOW = "context_length_exceeded"


@dataclass(frozen=True)
class Wanted:
    """What one request asks for, and in which fields of its body.

    prompt         positions of its prompt, or with `at_least` the fewest that its text can have
    most_tokens    what an answer of its may have; None: what fits
    n              answers
    prompt_field   `messages` or `prompt`
    place          of the prompt in a list of prompts
    tokens_field   the field that said `most_tokens`; None when it is the default
    """

    prompt: int
    most_tokens: int | None
    n: int = 1
    prompt_field: str = "prompt"
    place: int | None = None
    tokens_field: str | None = None
    at_least: bool = False

    @property
    def named(self) -> str:
        """The prompt, as messages call it."""
        return f"the {self.prompt_field}" if self.place is None else f"{self.prompt_field}[{self.place}]"


def never(verdict: Never, wanted: Wanted, block_tokens: int) -> Refusal:
    """What the engine refused for good; a block of state has `block_tokens` positions."""
    match verdict.rule:
        case "context":
            return context_exceeded(wanted, verdict.limit, verdict.option)
        case "pool":
            return _pool_exceeded(wanted, verdict, block_tokens)
        case "seats":
            text = f"n is {verdict.need}: each answer takes a seat, and the server has {verdict.limit}"
            return _refusal(f"{text}. Please reduce n", verdict.option, "never_seats", "n")
        case "deadline":
            return too_late(verdict)


def too_late(verdict: Never) -> Refusal:
    """The answer cannot be complete by its deadline."""
    beside = ""
    if verdict.alone is not None and verdict.alone <= verdict.limit:
        beside = f", beside what others were promised before ({verdict.alone} ms without them)"
    text = (
        f"deadline_ms is {verdict.limit}, but at the speed of recent steps the answer is complete {verdict.need} ms "
        f"after the request's arrival at the earliest{beside}. Ask for less, or allow more time."
    )
    return Refusal(422, text, code="deadline", param="deadline_ms")


def context_exceeded(wanted: Wanted, limit: int, option: str | None) -> Refusal:
    """The prompt alone, or with its answer, exceeds the context of `limit` positions. `option` raises that; None: it
    is the model's own."""
    begin = f"This model's maximum context length is {limit} tokens. However, "
    if wanted.most_tokens is None or wanted.prompt >= limit:
        own = "your " if wanted.place is None else ""
        least = "at least " if wanted.at_least else ""
        what = f"{own}{wanted.named.removeprefix('the ')} resulted in {least}{wanted.prompt} tokens"
        more = ", and an answer needs at least one more" if wanted.prompt == limit else ""
        text = f"{begin}{what}{more}. Please reduce the length of {wanted.named}"
        return _refusal(text, option, OVERFLOW, wanted.prompt_field)
    total = wanted.prompt + wanted.most_tokens
    default = "" if wanted.tokens_field else ", the default of max_tokens"
    text = (
        f"{begin}you requested {total} tokens ({wanted.prompt} in {wanted.named}, {wanted.most_tokens} in the "
        f"completion{default}). Please reduce the length of {wanted.named} or {wanted.tokens_field or 'max_tokens'}"
    )
    return _refusal(text, option, OVERFLOW, wanted.tokens_field or wanted.prompt_field)


def _pool_exceeded(wanted: Wanted, verdict: Never, block_tokens: int) -> Refusal:
    """The largest part of what is too much is blamed: the prompt, if it does not fit alone."""
    most = "" if wanted.most_tokens is None else f" and {wanted.most_tokens} in the completion"
    each = f" of each of {wanted.n} answers" if wanted.n > 1 and most else ""
    tokens = f"{wanted.prompt} in {wanted.named}{most}{each}"
    text = f"the tokens ({tokens}) need {verdict.need} blocks of state (KV cache), and the pool has {verdict.limit}"
    if wanted.prompt >= verdict.limit * block_tokens:
        param = wanted.prompt_field
    elif wanted.most_tokens is not None:
        param = wanted.tokens_field or wanted.prompt_field
    else:
        param = "n"
    return _refusal(f"{text}. Please reduce {param}", verdict.option, "never_pool", param)


def _refusal(text: str, option: str | None, code: str, param: str) -> Refusal:
    more = f", or raise {option}" if option else ""
    known = f" ({code})" if code == OVERFLOW else ""
    return Refusal(400, f"{text}{more}{known}.", code=code, param=param)
