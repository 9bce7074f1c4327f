"""From the texts of a body to what an encoder evaluates of them: prompts, tokens, windows, and what is too long.

It is work in proportion to the texts' lengths, so it is done in a thread, unless there is hardly any. What is too
long is told from its length alone where that suffices, without tokenising it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from headway.api.answers.never import OVERFLOW
from headway.api.bodies import windows
from headway.api.bodies.embeddings import EmbeddingsBody, Given
from headway.api.bodies.rerank import RerankBody
from headway.api.bodies.windows import Cut
from headway.core.errors import InvalidRequest
from headway.core.plan import Evaluate
from headway.core.verdict import Never
from headway.front.exchange import Exchange
from headway.front.models import FrontEncoder
from headway.front.refusals import Refusal
from headway.front.state import Front
from headway.text.frame import Frame

T = TypeVar("T")
#: So few characters are tokenised faster than a thread is asked to.
_FEW_CHARACTERS, _FEW_TEXTS = 2000, 4
_UNFRAMED = Frame((), (), (), ())
#: What `input_type` says, and the names under which models keep the prompt for it.
INPUT_TYPES: dict[str, tuple[str, ...]] = {
    "query": ("query", "search_query", "retrieval.query"),
    "search_query": ("search_query", "query", "retrieval.query"),
    "document": ("document", "search_document", "passage", "retrieval.passage"),
    "search_document": ("search_document", "document", "passage", "retrieval.passage"),
    "passage": ("passage", "document", "search_document", "retrieval.passage"),
}


@dataclass(frozen=True)
class Overlong:
    """What is longer than the model takes, and what may be done about it: `named` has (at least) `tokens` tokens."""

    named: str
    tokens: int
    param: str
    instead: str
    at_least: bool = False


async def aside(texts: Sequence[Given], work: Callable[[], T]) -> T:
    """`work()` on these texts, in a thread unless they are few and short."""
    if len(texts) <= _FEW_TEXTS and sum(map(len, texts)) <= _FEW_CHARACTERS:
        return work()
    return await asyncio.to_thread(work)


def refuse_over_long(front: Front, model: FrontEncoder, current: Exchange, long: Overlong, limit: int) -> Refusal:
    """The refusal (400), told in the story as the end of the exchange's request."""
    assert model.ready is not None
    option = "--max-context" if limit < model.ready.facts.max_context else None
    verdict = Never(rule="context", unit="positions", need=long.tokens, limit=limit, option=option)
    front.refuse(current.id, current.received_at, model.name, verdict)
    current.served.append(current.id)
    least = "at least " if long.at_least else ""
    more = f", or raise {option}" if option else ""
    text = (
        f"This model's maximum context length is {limit} tokens. However, {long.named} resulted in {least}"
        f"{long.tokens} tokens. Please reduce its length, or {long.instead}{more} ({OVERFLOW})."
    )
    return Refusal(400, text, code=OVERFLOW, param=long.param)


# -- embeddings -------------------------------------------------------------------------------------------------


def prompt_of(model: FrontEncoder, body: EmbeddingsBody) -> tuple[str, list[str]]:
    """What is put before each text, and the fields that have no effect on it. Raises InvalidRequest for a prompt that
    the model does not have."""
    prompts = model.modules.prompts
    known = ", ".join(map(repr, prompts)) if prompts else "it has none"
    if body.prompt_name is not None:
        if body.prompt_name not in prompts:
            message = f"prompt_name is {body.prompt_name!r}, which is not a prompt of {model.name} ({known})"
            raise InvalidRequest("prompt_name", message)
        return prompts[body.prompt_name], []
    if body.input_type is not None:
        if body.input_type not in INPUT_TYPES:
            message = f"input_type is {body.input_type!r}; it must be one of {', '.join(INPUT_TYPES)}"
            raise InvalidRequest("input_type", message)
        if not prompts:
            return "", ["input_type"]  # the model treats all texts alike
        names = [name for name in INPUT_TYPES[body.input_type] if name in prompts]
        if not names:
            message = f"{model.name} has no prompt for the input_type {body.input_type!r} ({known})"
            raise InvalidRequest("input_type", message)
        return prompts[names[0]], []
    return prompts.get(model.modules.default_prompt or "", ""), []


def check_embeddings(model: FrontEncoder, body: EmbeddingsBody) -> None:
    """Raises InvalidRequest for what this model cannot do."""
    assert model.ready is not None
    facts = model.ready.facts
    if body.dimensions is not None and body.dimensions > facts.vector:
        message = f"dimensions is {body.dimensions}; {model.name} has vectors of {facts.vector} dimensions"
        raise InvalidRequest("dimensions", f"{message}, so it must be from 1 to {facts.vector}")
    if body.normalize is False and facts.normalized:
        raise InvalidRequest("normalize", f"normalize is false, but {model.name} normalizes its vectors itself")
    if body.token_vectors and body.treatment in ("split", "late"):
        message = f"token_vectors pools nothing, and long_input: {body.treatment} does; send one of them"
        raise InvalidRequest("token_vectors", message)
    if body.treatment == "late" and "cls" in model.modules.pooling:
        message = f"late pools the positions of each chunk, but {model.name} takes its vector from the first position"
        raise InvalidRequest("long_input", f"{message} of an input (cls); use split")
    if body.truncate_prompt_tokens is not None:
        around = model.frame.around if body.add_special_tokens else 0
        check_truncation(body.truncate_prompt_tokens, around, model.ready.max_context)


def check_truncation(tokens: int, around: int, limit: int) -> None:
    """Raises InvalidRequest for `truncate_prompt_tokens` that leave no token of a text, or that the model does not
    take."""
    if tokens != -1 and not around < tokens <= limit:
        message = f"truncate_prompt_tokens is {tokens}; {around} are special tokens, so it must be -1 or from"
        message = f"{message} {around + 1} to {limit}"
        raise InvalidRequest("truncate_prompt_tokens", message)


def embedding_inputs(
    model: FrontEncoder, body: EmbeddingsBody, given: Sequence[Given], prompt: str, *, listed: bool
) -> list[Cut] | Overlong:
    """What is evaluated of each input, or of all of them together where they are the chunks of one document. Raises
    InvalidRequest for ids that are no tokens, a prompt before token ids, and a chunk without tokens."""
    assert model.ready is not None
    limit = model.ready.max_context
    names = [f"input[{i}]" if listed else "input" for i in range(len(given))]
    frame = model.frame if body.add_special_tokens else _UNFRAMED
    if body.treatment in ("error", "late") and (long := _told_by_length(model, given, names, limit - frame.around)):
        return replace(long, tokens=long.tokens + frame.around)
    inputs = _tokenized(model, body, given, names, prompt)
    if body.treatment == "late":
        return _late(body, inputs, names, limit)
    opening = _encode(model, [prompt])[0] if prompt and body.treatment == "split" else []
    cuts: list[Cut] = []
    for name, one in zip(names, inputs, strict=True):
        cut = _cut(body, one, limit, opening)
        if cut is None:
            return Overlong(name, one.positions, "input", _instead(model))
        cuts.append(windows.unpooled(cut) if body.token_vectors else cut)
    return cuts


@dataclass(frozen=True)
class _Input:
    """An input's own tokens, and those around it."""

    tokens: list[int]
    frame: Frame

    @property
    def positions(self) -> int:
        return len(self.tokens) + self.frame.around


def _tokenized(
    model: FrontEncoder, body: EmbeddingsBody, given: Sequence[Given], names: Sequence[str], prompt: str
) -> list[_Input]:
    """Each input with its prompt; of a document that comes in chunks only the first has one."""
    if prompt and (body.prompt_name or body.input_type) and not all(isinstance(each, str) for each in given):
        raise InvalidRequest("input", "a prompt is put before texts, but input has token ids; leave out the prompt")
    assert model.ready is not None
    texts = [each for each in given if isinstance(each, str)]
    prompted = len(texts) if body.one_vector_each or body.chunk_tokens else 1
    encoded = iter(_encode(model, [*(prompt + each for each in texts[:prompted]), *texts[prompted:]]))
    frame = model.frame if body.add_special_tokens else _UNFRAMED
    inputs: list[_Input] = []
    for name, each in zip(names, given, strict=True):
        if isinstance(each, str):
            inputs.append(_Input(next(encoded), frame))
        else:
            _check_ids(name, each, frame, model.ready.facts.vocab)
            inputs.append(_Input(frame.within(each), frame))
        if not inputs[-1].positions:
            raise InvalidRequest("input", f"{name} has no tokens; at least one is needed")
    return inputs


def _check_ids(name: str, ids: list[int], frame: Frame, vocab: int) -> None:
    """Ids of another tokenizer would be evaluated as well, to a vector that means nothing."""
    langchain = (
        "LangChain's OpenAIEmbeddings sends ids of OpenAI's tokenizer, unless check_embedding_ctx_length is False"
    )
    if not 0 <= min(ids) <= max(ids) < vocab:
        own = f"token ids must be from 0 to {vocab - 1}, of this model's own tokenizer"
        raise InvalidRequest("input", f"{own}; {name} has {min(ids)} to {max(ids)}. {langchain}")
    if not frame.surrounds(ids):
        wanted = f"{list(frame.before)} … {list(frame.after)}"
        what = f"{name} has token ids without the special tokens that this model expects around a text, {wanted}"
        unless = "To evaluate them as they are, send add_special_tokens: false"
        raise InvalidRequest("input", f"{what}. {langchain}. {unless}")


def _cut(body: EmbeddingsBody, each: _Input, limit: int, opening: list[int]) -> Cut | None:
    """None for one that is too long and may not be cut. `opening` is the prompt's beginning of each text, which every
    window gets."""
    if body.treatment == "truncate":
        asked = body.truncate_prompt_tokens
        return windows.truncate(each.tokens, each.frame, limit if asked is None or asked == -1 else asked)
    if each.positions <= limit:
        return windows.whole(each.frame.single(each.tokens))
    if body.treatment == "error":
        return None
    size = len(opening)
    if each.frame is _UNFRAMED or each.tokens[:size] != opening or size + each.frame.around >= limit:
        return windows.split(each.tokens, each.frame, limit)
    prompted = replace(each.frame, before=(*each.frame.before, *opening))
    return windows.split(each.tokens[size:], prompted, limit)


def _late(body: EmbeddingsBody, inputs: list[_Input], names: list[str], limit: int) -> list[Cut] | Overlong:
    frame = inputs[0].frame
    for name, each in zip(names, inputs, strict=True):
        if not each.tokens:
            raise InvalidRequest("input", f"{name} has no tokens, so there is nothing to pool")
    if body.chunk_tokens is None:
        documents = [windows.late([each.tokens for each in inputs], frame)]
        names = ["input"]
    else:
        documents = [
            windows.late(windows.sized_chunks(each.tokens, body.chunk_tokens), each.frame) for each in inputs
        ]
    for name, document in zip(names, documents, strict=True):
        if document.given > limit:
            return Overlong(name, document.given, "input", "set long_input to split")
    return documents


def _instead(model: FrontEncoder) -> str:
    late = "" if "cls" in model.modules.pooling else " (late requires one pass over all of it)"
    return f"set long_input to truncate or split{late}"


def _encode(model: FrontEncoder, texts: Sequence[str]) -> list[list[int]]:
    written = [model.written(text) for text in texts]
    if len(written) <= _FEW_TEXTS:
        return [model.tokenizer.encode(text, add_bos=False) for text in written]
    return model.tokenizer.encode_all(written)


def _told_by_length(model: FrontEncoder, given: Sequence[Given], names: Sequence[str], limit: int) -> Overlong | None:
    """The first of more than `limit` tokens of its own, as far as lengths alone tell."""
    for name, each in zip(names, given, strict=True):
        if isinstance(each, str) and len(each) > limit:
            fewest = model.tokenizer.fewest_tokens(model.written(each))
            if fewest > limit:
                return Overlong(name, fewest, "input", _instead(model), at_least=True)
    return None


# -- pairs --------------------------------------------------------------------------------------------------------


def pair_inputs(model: FrontEncoder, body: RerankBody, documents: Sequence[str]) -> list[Cut] | Overlong:
    """The query beside each document. Raises InvalidRequest for limits that leave a document no token."""
    assert model.ready is not None
    frame, limit = model.frame, model.ready.max_context
    asked = body.truncate_prompt_tokens
    if asked is not None:
        check_truncation(asked, frame.around_pair + 1, limit)
        limit = limit if asked == -1 else asked
    cuts = body.long_input == "truncate" or asked is not None
    most_of_own = body.max_tokens_per_doc
    if not cuts and most_of_own is None and (long := _long_pair_by_length(model, body.query, documents, limit)):
        return long
    query, *encoded = _encode(model, [body.query, *documents])
    room = limit - frame.around_pair - len(query)
    if room < 1:
        return Overlong("the query", len(query) + frame.around_pair + 1, "query", "leave part of it out")
    pairs: list[Cut] = []
    for i, tokens in enumerate(encoded):
        given = len(query) + len(tokens) + frame.around_pair
        kept = tokens if most_of_own is None else tokens[:most_of_own]
        if len(kept) > room:
            if not cuts:
                beside = f"documents[{i}] beside the query"
                return Overlong(beside, given, "documents", "set long_input to truncate, or max_tokens_per_doc")
            kept = kept[:room]
        pair, second = frame.pair(query, kept)
        what: windows.What = "whole" if len(kept) == len(tokens) else "truncated"
        pairs.append(Cut(what, (Evaluate(pair, second=second),), (1,), given))
    return pairs


def _long_pair_by_length(model: FrontEncoder, query: str, documents: Sequence[str], limit: int) -> Overlong | None:
    for named, param, text in [("the query", "query", query)] + [
        (f"documents[{i}] beside the query", "documents", document) for i, document in enumerate(documents)
    ]:
        if len(text) > limit:
            fewest = model.tokenizer.fewest_tokens(model.written(text)) + model.frame.around_pair
            if fewest > limit:
                instead = "leave part of it out" if param == "query" else "set long_input to truncate"
                return Overlong(named, fewest, param, instead, at_least=True)
    return None
