"""The body of `/v1/embeddings`: OpenAI's, and what a model of windows and prompts can take besides."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from headway.api.bodies.fields import read_fields
from headway.api.bodies.known import ENCODERS
from headway.core.errors import InvalidRequest

#: A text, or token ids: of the model's own tokenizer, with the special tokens that it wants around a text.
Given: TypeAlias = str | list[int]
#: What becomes of an input that is longer than the model takes.
LongInput: TypeAlias = Literal["error", "truncate", "split", "late"]

_KINDS = "a string, a list of token ids, a list of strings or a list of lists of token ids"


class EmbeddingsBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/embeddings`.

    long_input   of an input longer than the model takes: `error` (400), `truncate` (its beginning only), `split` (the
                 mean of its windows' vectors, weighted by their tokens), or `late`: one pass over a document, and a
                 vector for each chunk of it, pooled from positions that saw the whole. The chunks are the texts of
                 `input`, or, with `chunk_tokens`, so many tokens each of every text of `input`
    truncate_prompt_tokens   vLLM's: like `truncate`, at so many tokens; -1 at what the model takes
    prompt_name, input_type  which of the model's prompts is put before each text
    token_vectors  a vector of each token, special ones included, instead of one of them all: what the encoder has
                 before anything is pooled
    normalize    vectors of length 1; by default as the model's files say
    """

    model: str
    input: str | list[Any]
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] = "float"
    long_input: LongInput = "error"
    truncate_prompt_tokens: int | None = None
    chunk_tokens: int | None = None
    prompt_name: str | None = None
    input_type: str | None = None
    token_vectors: bool = False
    normalize: bool | None = None
    add_special_tokens: bool = True
    priority: int = 0
    deadline_ms: float | None = None

    def inputs(self) -> tuple[list[Given], bool]:
        """Each input, and whether there is a list of them. Raises InvalidRequest for an empty one, by its place."""
        listed = isinstance(self.input, list) and not (self.input and all(type(id) is int for id in self.input))
        given: list[Given] = self.input if listed else [self.input]  # type: ignore[assignment]
        if not given:
            raise InvalidRequest("input", "input is an empty list; at least one text is required")
        for i, item in enumerate(given):
            named = f"input[{i}]" if listed else "input"
            if not isinstance(item, str) and not (isinstance(item, list) and all(type(id) is int for id in item)):
                raise InvalidRequest("input", f"input must be {_KINDS}; {named} is neither a string nor token ids")
            if not item:
                raise InvalidRequest("input", f"{named} is empty; at least one token is required")
        return given, listed

    @property
    def one_vector_each(self) -> bool:
        """Whether each input has a vector, or tokens' vectors, of its own."""
        return self.treatment != "late"

    @property
    def treatment(self) -> LongInput:
        """What becomes of a long input, whichever field says it."""
        return self.long_input if self.truncate_prompt_tokens is None else "truncate"


def read_embeddings(data: bytes) -> tuple[EmbeddingsBody, list[Given], bool, list[str]]:
    """The body, its inputs, whether there is a list of them, and the fields that were accepted without effect. Raises
    InvalidRequest."""
    body, ignored = read_fields(EmbeddingsBody, data, ENCODERS)
    given, listed = body.inputs()
    if body.truncate_prompt_tokens is not None:
        if body.long_input not in ("error", "truncate"):
            message = f"truncate_prompt_tokens truncates, and long_input is {body.long_input}; send one of them"
            raise InvalidRequest("truncate_prompt_tokens", message)
        check_truncation(body.truncate_prompt_tokens)
    if body.chunk_tokens is not None and body.long_input != "late":
        raise InvalidRequest("chunk_tokens", "chunk_tokens requires long_input: late")
    if body.prompt_name is not None and body.input_type is not None:
        raise InvalidRequest("input_type", "prompt_name and input_type both choose a prompt; send one of them")
    return body, given, listed, ignored


def check_truncation(tokens: int) -> None:
    """Raises InvalidRequest for a number of tokens that vLLM's `truncate_prompt_tokens` cannot be."""
    if tokens == 0:
        message = "truncate_prompt_tokens is 0; it must be -1 (what the model takes) or at least 1"
        raise InvalidRequest("truncate_prompt_tokens", message)
