"""From what an answer's text must be to which tokens may come next.

The work is done by `llguidance` (Moskal et al.): an Earley parser over a lexer of derivatives of regular expressions,
walked along a trie of all tokens. So nothing is computed before the state in which it is needed: a schema compiles in
a millisecond, and a mask costs some ten microseconds. Its parser counts what it does, and gives up at a limit.

Not supported, and refused by name: see `schemas.py` for JSON schemas; in regular expressions, look-around and back
references (they match the whole text; `^` and `$` may stand at its ends).
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from headway.core.errors import GrammarError
from headway.core.plan import Grammar
from headway.core.request import Guide
from headway.text.grammar.exactjson import composed, is_beyond
from headway.text.grammar.gbnf import lark_of
from headway.text.grammar.spacing import FREE

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer
    from llguidance._lib import JsonCompileOptions

#: Grammars kept compiled, and the time that compiling them took in all. What they hold grows with that time, by some
#: 100 MB a second.
_MOST_KEPT = 64
_MOST_KEPT_S = 2.0
#: States of a lexer, of 1 to 2 kB each.
_LEXER_STATES = 50_000
#: Items of a parser's row. The parser of an ambiguous grammar (`s: s s s | "a"`) needs more with every token, and
#: time with them: 500 are 15 ms for a mask, 2,000 are 300 ms. JSON is not ambiguous (4,000 are
#: 5 ms), but a schema can be large.
_ROW_ITEMS = {"lark": 500, "gbnf": 500}
_ROW_ITEMS_OF_JSON = 4_000
_MOST_MESSAGE = 600
_NO_TOKEN = "no token can follow"
#: The texts of a rehearsal, their tokens, and the time for all. A vocabulary begins with single characters.
_REHEARSALS = 6
_REHEARSED_TOKENS = 40
_REHEARSAL_S = 0.25
_SHORT_TOKENS = 40
#: The library makes a rule of a regular expression; its messages show where that is.
_IN_RULE = re.compile(r"^at 1\(8\): invalid regex .* \(in regex\): |\n *1 \| start: .*$", re.DOTALL)


class _Compiled(NamedTuple):
    """A matcher at the start of its grammar, and the mask there."""

    matcher: LLMatcher
    first: bytes


class GrammarCompiler:
    """Grammars over one model's tokens.

    tokenizer  path of its `tokenizer.json`
    eos_ids    tokens that may come where the text may end. Other special tokens are no text, so they come only where
               a grammar in Lark's notation names one
    vocab      width of the masks: the model's logits, which can be more than the tokenizer has tokens

    Reading the tokenizer takes 0.2 s and holds the interpreter. All else that takes long lets other threads run.
    """

    def __init__(self, tokenizer: Path, eos_ids: Sequence[int], vocab: int) -> None:
        from llguidance import LLTokenizer

        self._eos_ids = frozenset(eos_ids)
        self._vocab = vocab
        self._kept: OrderedDict[Grammar, tuple[_Compiled, float]] = OrderedDict()
        self._tokens: LLTokenizer | None = None
        self._missing = ""
        try:
            text = tokenizer.read_text(encoding="utf-8")
            self._tokens = LLTokenizer(text, n_vocab=vocab, eos_token=sorted(self._eos_ids))
        except ValueError as error:  # text without a grammar can be generated all the same
            self._missing = f"no grammar can be used with this model's tokenizer: {error}"

    def compile(self, grammar: Grammar, sequences: int) -> list[Guide]:
        """One guide for each of `sequences` sequences. Raises GrammarError for a grammar that is malformed, cannot be
        met by any text, needs what is not supported, or exceeds a limit of the library."""
        found = self._recall(grammar)
        if found is None:
            started = time.perf_counter()
            found = self._compile(grammar)
            self._keep(grammar, found, time.perf_counter() - started)
        return [
            GrammarGuide(found.matcher.deep_copy(), self._eos_ids, self._vocab, found.first) for _ in range(sequences)
        ]

    def rehearse(self, grammar: Grammar) -> None:
        """Walk into it a little, by tokens that soon end a text. Raises GrammarError for a dead end: then an answer
        could break off there. It finds those that are near; `schemas.py` leaves out those that it knows of."""
        import numpy as np

        chance, until = random.Random(0), time.perf_counter() + _REHEARSAL_S
        for guide in self.compile(grammar, _REHEARSALS):
            for _ in range(_REHEARSED_TOKENS):
                (mask,) = guide.masks(())
                if guide.fault == _NO_TOKEN:
                    raise GrammarError(f"it has a dead end: an answer can reach a point where {_NO_TOKEN}")
                if guide.complete or guide.fault is not None or time.perf_counter() > until:
                    break
                bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
                guide.accept(int(chance.choice(np.flatnonzero(bits)[:_SHORT_TOKENS])))

    def knows(self, grammar: Grammar) -> bool:
        """Whether it is kept compiled."""
        return grammar in self._kept

    def _compile(self, grammar: Grammar) -> _Compiled:
        from llguidance import LLMatcher

        if self._tokens is None:
            raise GrammarError(self._missing)
        matcher = LLMatcher(self._tokens, _source(grammar), log_level=0, limits=_limits(grammar))
        if matcher.is_error():
            message = matcher.get_error().strip()
            raise GrammarError(_plain(_IN_RULE.sub("", message) if grammar.kind == "regex" else message))
        if warnings := matcher.get_grammar_warnings():  # of what it would leave out
            raise GrammarError(_plain("; ".join(warnings)))
        first = GrammarGuide(matcher.deep_copy(), self._eos_ids, self._vocab)
        (mask,) = first.masks(())
        if first.fault is not None:
            raise GrammarError(f"no text satisfies it: {first.fault}")
        return _Compiled(matcher, mask)

    def _recall(self, grammar: Grammar) -> _Compiled | None:
        if grammar not in self._kept:
            return None
        self._kept.move_to_end(grammar)
        return self._kept[grammar][0]

    def _keep(self, grammar: Grammar, found: _Compiled, took_s: float) -> None:
        """Remember it, and forget those that were not used for longest."""
        self._kept[grammar] = (found, took_s)
        while len(self._kept) > _MOST_KEPT or sum(took for _, took in self._kept.values()) > _MOST_KEPT_S:
            self._kept.popitem(last=False)


class GrammarGuide:
    """Keeps one sequence within a grammar (see `Guide` in core/request.py).

    first   the mask at the start, if it is known already
    fault   why the text cannot go on, though it may not end here either: a limit of the parser was reached, or the
            grammar leads nowhere. None as long as all is well. With a fault the masks allow the end alone

    No mask is computed twice: those after guesses are kept as long as the accepted tokens are the guessed ones.
    """

    def __init__(self, matcher: LLMatcher, eos_ids: frozenset[int], vocab: int, first: bytes | None = None) -> None:
        self.fault: str | None = None
        self._matcher = matcher
        self._eos_ids = eos_ids
        self._bytes = (vocab + 7) // 8
        self._ended = False
        # Masks and their faults: in the present state, and after each of `_guessed` in turn; `_ahead` stands there.
        self._known: list[tuple[bytes, str | None]] = [] if first is None else [(first, None)]
        self._guessed: list[int] = []
        self._ahead: LLMatcher | None = None

    @property
    def complete(self) -> bool:
        """Nothing but the end may follow."""
        return self._ended or (self._matcher.is_stopped() and not self._matcher.is_error())

    def masks(self, guesses: Sequence[int]) -> list[bytes]:
        """See `Guide.masks`."""
        if not self._known:
            self._known = [self._mask(self._matcher)]
        self.fault = self.fault or self._known[0][1]
        walked = 0
        while walked < min(len(guesses), len(self._guessed)) and guesses[walked] == self._guessed[walked]:
            walked += 1
        if walked < len(guesses) and self._allows(walked, guesses[walked]):
            self._walk(guesses, walked)
            walked = len(self._guessed)
        return [mask for mask, _ in self._known[: walked + 1]]

    def accept(self, token: int) -> None:
        """See `Guide.accept`."""
        if self._guessed[:1] == [token]:
            del self._guessed[0], self._known[0]
        else:
            self._forget()
        if token in self._eos_ids:
            self._ended = True
        elif not self._matcher.consume_token(token) and self.fault is None:
            self._forget()
            self.fault = _plain(self._matcher.get_error()) or f"token {token} is outside the grammar"

    def _forget(self) -> None:
        self._known, self._guessed, self._ahead = [], [], None

    def _walk(self, guesses: Sequence[int], walked: int) -> None:
        """Compute the masks after `guesses` up to the first that may not come; the first `walked` of them are
        known."""
        if self._ahead is None or walked < len(self._guessed):
            del self._known[walked + 1 :], self._guessed[walked:]
            self._ahead = self._matcher.deep_copy()
            self._ahead.consume_tokens(list(guesses[:walked]))
        for guess in guesses[walked:]:
            if not self._allows(len(self._guessed), guess):
                return
            if guess in self._eos_ids:
                self._known.append((self._end(), None))
            elif self._ahead.consume_token(guess):
                self._known.append(self._mask(self._ahead))
            else:
                self._ahead = None
                return
            self._guessed.append(guess)

    def _allows(self, place: int, guess: int) -> bool:
        """Whether a token may come after `place` guesses: the mask allows it, and none of them was the end."""
        mask = self._known[place][0]
        inside = 0 <= guess < len(mask) * 8 and bool(mask[guess // 8] >> guess % 8 & 1)
        return inside and not (place and self._guessed[place - 1] in self._eos_ids)

    def _mask(self, matcher: LLMatcher) -> tuple[bytes, str | None]:
        """The mask in a matcher's state, and the fault that shows in it."""
        if self._ended or self.fault is not None:
            return self._end(), self.fault
        mask = matcher.compute_bitmask()[: self._bytes]
        if matcher.is_error():
            return self._end(), _plain(matcher.get_error())
        end = self._end()
        if mask == end and not matcher.is_accepting():
            return end, _NO_TOKEN
        return mask, None

    def _end(self) -> bytes:
        """The mask that allows the end alone."""
        mask = bytearray(self._bytes)
        for token in self._eos_ids:
            mask[token // 8] |= 1 << token % 8
        return bytes(mask)


def _source(grammar: Grammar) -> str:
    """A grammar as the library reads it."""
    from llguidance import LLMatcher

    options = cast("JsonCompileOptions", FREE.options)
    match grammar.kind:
        case "json":
            return LLMatcher.grammar_from_json_schema('{"type": "object"}', overrides=options)
        case "json_schema":
            schema = _read(grammar.source)
            if is_beyond(schema):
                return LLMatcher.grammar_from_lark(composed(schema, FREE))
            plain = isinstance(schema, bool)  # the library's options need an object
            source = f'{{"allOf": [{grammar.source}]}}' if plain else grammar.source
            return LLMatcher.grammar_from_json_schema(source, overrides=options)
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.source)
        case "choice":
            # one terminal: as alternatives of a rule each would be an item of the parser's row
            texts = [json.dumps(text, ensure_ascii=False) for text in json.loads(grammar.source)]
            if not texts:
                raise GrammarError("the list of choices is empty")
            return f"start: CHOICE\nCHOICE: {' | '.join(texts)}"
        case "lark" | "composed":
            return LLMatcher.grammar_from_lark(grammar.source)
        case "gbnf":
            return LLMatcher.grammar_from_lark(lark_of(grammar.source))


def _read(source: str) -> Any:
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the schema is not JSON: {error}") from error


def _limits(grammar: Grammar) -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=_ROW_ITEMS.get(grammar.kind, _ROW_ITEMS_OF_JSON),
        max_lexer_states=_LEXER_STATES,
        verbose_errors=False,  # they would quote the text so far
    )


def _plain(message: str) -> str:
    """A message of the library, of a length that fits into an answer."""
    message = message.replace("<non-verbose/>", "").strip()
    if message.startswith("NoExtension"):
        return _NO_TOKEN
    return message if len(message) <= _MOST_MESSAGE else f"{message[:_MOST_MESSAGE]}…"
