"""The index of prefix caching: which blocks hold which prefixes, and why a prompt found no more than it did."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Set

from headway.core.miss import Miss
from headway.memory.keys import Elsewhere, KeyChain, Origin, block_key

#: Evicted blocks that are remembered, only to be able to say "it was cached, and was evicted".
_REMEMBERED_EVICTIONS = 4096
#: So many blocks that follow a different one are looked at, to say whether the difference was a small one.
_FOLLOWED = 8


class Evicted:
    """Blocks that were evicted lately, whole ones and such as were full in part: by which step, to be found by what
    they followed and the tokens that they had. The latest `_REMEMBERED_EVICTIONS` are remembered."""

    def __init__(self) -> None:
        self._latest: OrderedDict[bytes, tuple[int, bytes, list[int]]] = OrderedDict()  # step, parent, tokens
        self._following: dict[bytes, list[list[int]]] = {}  # by parent: the tokens of its children, sorted

    def note(self, key: bytes, parent: bytes, tokens: list[int], step: int) -> None:
        """The block of `key`, which is not remembered, was evicted by `step`."""
        self._latest[key] = step, parent, tokens
        insort(self._following.setdefault(parent, []), tokens)
        if len(self._latest) > _REMEMBERED_EVICTIONS:
            self.forget(next(iter(self._latest)))

    def forget(self, key: bytes) -> None:
        """The block of `key` is known again, if it was not all the time."""
        if key in self._latest:
            _, parent, tokens = self._latest.pop(key)
            _drop(self._following, parent, tokens)

    def step(self, parent: bytes, wanted: list[int], known: int) -> int | None:
        """The step that evicted a block behind `parent` of which `wanted`, no more than a block, could have used more
        than the `known` tokens that it finds anyway: one that goes on like it until either ends. None if there is
        none."""
        following, prefix = self._following.get(parent, []), wanted
        after = bisect_left(following, wanted)
        if after < len(following) and len(wanted) > known and following[after][: len(wanted)] == wanted:
            return self._step(parent, following[after])
        while place := bisect_right(following, prefix):  # what `prefix` begins with comes before it in sorted order
            before = following[place - 1]
            agreeing = _common(before, wanted)
            if agreeing <= known:
                return None
            if agreeing == len(before):
                return self._step(parent, before)
            prefix = wanted[:agreeing]
        return None

    def _step(self, parent: bytes, tokens: list[int]) -> int:
        return self._latest[block_key(parent, tokens)][0]


class PrefixIndex:
    """Key to block, with the tokens of each indexed block: to find one that agrees in part, and to explain.

    A block that was given back before it was full is indexed too, under the key of the tokens that it has: a copy of
    it can be gone on with. What lies `elsewhere` is of no use, and only named.
    """

    def __init__(self, elsewhere: tuple[Elsewhere, ...] = ()) -> None:
        self._elsewhere = elsewhere
        self._block: dict[bytes, int] = {}
        self._tokens: dict[bytes, list[int]] = {}
        self._parent: dict[bytes, bytes] = {}
        self._following: dict[bytes, list[list[int]]] = {}  # by parent: the tokens of its children, sorted
        self._evicted = Evicted()
        self._origins: dict[str, dict[bytes, Origin]] = {}  # by salt: those with a block, by root
        self._salts: dict[bytes, str] = {}

    def __len__(self) -> int:
        return len(self._block)

    def get(self, key: bytes) -> int | None:
        return self._block.get(key)

    def put(self, key: bytes, block: int, parent: bytes, tokens: list[int], origin: Origin | None = None) -> None:
        """Index `block`, the first of its chain where `origin` is given. The key must not be indexed yet."""
        self._block[key] = block
        self._tokens[key] = tokens
        self._parent[key] = parent
        insort(self._following.setdefault(parent, []), tokens)
        self._evicted.forget(key)
        if origin is not None:
            self._origins.setdefault(origin.salt, {})[parent] = origin
            self._salts[parent] = origin.salt

    def forget(self, key: bytes) -> None:
        """The block of `key` no longer holds what the key says."""
        del self._block[key]
        parent, tokens = self._parent.pop(key), self._tokens.pop(key)
        _drop(self._following, parent, tokens)
        if parent not in self._following:
            self._forget_origin(parent)

    def evict(self, key: bytes, step: int) -> None:
        """Forget `key`, but remember that it was cached until `step`."""
        parent, tokens = self._parent[key], self._tokens[key]
        self.forget(key)
        self._evicted.note(key, parent, tokens, step)

    def match(self, keys: list[bytes], limit: int) -> list[int]:
        """Blocks of the longest indexed prefix of `keys`, at most `limit` of them."""
        found: list[int] = []
        for key in keys[:limit]:
            block = self._block.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def nearest(self, parent: bytes, wanted: list[int], gone: Set[int] = frozenset()) -> tuple[list[int], int]:
        """The tokens of the block behind `parent` that agrees furthest with `wanted`, of those that are not `gone`,
        and how far it does; ([], 0) when none has the first in common."""
        following = self._following.get(parent, [])
        after = bisect_left(following, wanted)  # in sorted order the one that agrees furthest is next to it
        before = after - 1
        while before >= 0 and self._among(gone, parent, following[before]):
            before -= 1
        while after < len(following) and self._among(gone, parent, following[after]):
            after += 1
        nearby = [following[place] for place in (before, after) if 0 <= place < len(following)]
        agreeing = [_common(near, wanted) for near in nearby]
        furthest = max(agreeing, default=0)
        return (nearby[agreeing.index(furthest)], furthest) if furthest else ([], 0)

    def _among(self, blocks: Set[int], parent: bytes, tokens: list[int]) -> bool:
        return bool(blocks) and self._block[block_key(parent, tokens)] in blocks

    def explain(self, chain: KeyChain, tokens: list[int], *, matched: int, limit: int) -> Miss:
        """Why reuse ended where it did, of the `limit` positions of `tokens` that could be reused: behind `matched`
        whole blocks, and what agrees of one more."""
        size = chain.block_tokens
        start = matched * size
        parent = chain.upto(tokens, matched)[matched - 1] if matched else chain.root
        wanted = tokens[start : start + size]
        nearest, agreeing = self.nearest(parent, wanted)
        at = min(limit, start + agreeing)
        if at == limit:
            return Miss("last", limit)
        evicted = self._evicted.step(parent, wanted[: limit - start], agreeing)
        if evicted is not None:
            return Miss("evicted", at, step=evicted)
        what = "" if matched else self._of_another_origin(chain.origin, wanted)
        if what:
            return Miss("other", at, what=what)
        if not agreeing and limit - start < size:
            return Miss("short", at)
        if at == 0:
            return Miss("none", 0)
        again = self._again(block_key(parent, nearest), nearest, tokens[at : start + 2 * size], agreeing)
        return Miss("differs", at, again)

    def _of_another_origin(self, origin: Origin | None, wanted: list[int]) -> str:
        """By what another origin differs, of the same salt, whose state of a first block `wanted` is known."""
        if origin is None:
            return ""
        for root, other in self._origins.get(origin.salt, {}).items():
            if root != origin.root and self._block.get(block_key(root, wanted)) is not None:
                return origin.differs_by(other)
        found = (origin.differs_by(each.origin) for each in self._elsewhere if each.begins(origin, wanted))
        return next(filter(None, found), "")

    def _forget_origin(self, root: bytes) -> None:
        salt = self._salts.pop(root, None)
        if salt is not None:
            del self._origins[salt][root]
            if not self._origins[salt]:
                del self._origins[salt]

    def _again(self, key: bytes, nearest: list[int], tokens: list[int], agreeing: int) -> int:
        """How many of `tokens` are the same at their places in the block `nearest`, whose key is `key`, from
        `agreeing` on, and in the block that follows it."""
        inside = len(nearest) - agreeing
        here = _same(nearest[agreeing:], tokens)
        behind = [_same(block, tokens[inside:]) for block in self._following.get(key, [])[:_FOLLOWED]]
        return here + max(behind, default=0)


def _drop(following: dict[bytes, list[list[int]]], parent: bytes, tokens: list[int]) -> None:
    """`parent` is not followed by `tokens` any more."""
    children = following[parent]
    del children[bisect_left(children, tokens)]
    if not children:
        del following[parent]


def _common(a: list[int], b: list[int]) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length


def _same(a: list[int], b: list[int]) -> int:
    return sum(x == y for x, y in zip(a, b, strict=False))
