"""The special tokens that an encoder wants around a text, or around and between the two texts of a pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer as Rules

from headway.core.errors import UnsupportedModel

#: Any text that is a token or more in every vocabulary, unless all of its is unknown.
_PROBE = "a"


@dataclass(frozen=True)
class Frame:
    """`before` text `after`; `before` text `between` text `after_second` for a pair. `typed` says that the model is
    told by token types, too, where the second text begins."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    between: tuple[int, ...]
    after_second: tuple[int, ...]
    typed: bool = True

    @classmethod
    def of(cls, rules: Rules, name: str) -> Frame:
        """Read off what the post-processor of the model `name` does. Raises UnsupportedModel for one that does not
        just put tokens around texts."""
        plain = rules.encode(_PROBE, add_special_tokens=False).ids
        before, after = _around(plain, rules.encode(_PROBE).ids, name)
        both = rules.encode(_PROBE, _PROBE)
        head, rest = _around(plain, both.ids, name)
        if head != before:
            raise UnsupportedModel(
                name, "different special tokens before the first text of a pair than before a single text"
            )
        between, end = _around(plain, list(rest), name)
        return cls(before, after, between, end, 1 in both.type_ids)

    @property
    def around(self) -> int:
        """Special tokens of one text."""
        return len(self.before) + len(self.after)

    @property
    def around_pair(self) -> int:
        return len(self.before) + len(self.between) + len(self.after_second)

    def surrounds(self, ids: Sequence[int]) -> bool:
        """Whether these are the tokens of a text within its special tokens."""
        begins, ends = tuple(ids[: len(self.before)]), tuple(ids[len(ids) - len(self.after) :])
        return len(ids) >= self.around and begins == self.before and ends == self.after

    def within(self, ids: Sequence[int]) -> list[int]:
        """The text's own tokens of ids that it surrounds."""
        return list(ids[len(self.before) : len(ids) - len(self.after)])

    def single(self, text: Sequence[int]) -> tuple[int, ...]:
        return (*self.before, *text, *self.after)

    def pair(self, first: Sequence[int], second: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """The tokens of a pair, and where its second text begins; 0 where special tokens alone say so."""
        begin = (*self.before, *first, *self.between)
        return (*begin, *second, *self.after_second), len(begin) if self.typed else 0


def _around(plain: list[int], framed: list[int], name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What stands before and after the first occurrence of `plain`."""
    size = len(plain)
    for at in range(len(framed) - size + 1):
        if framed[at : at + size] == plain:
            return tuple(framed[:at]), tuple(framed[at + size :])
    raise UnsupportedModel(name, "a tokenizer whose post-processor changes the text's own tokens")
