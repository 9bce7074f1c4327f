"""When requests are due: by a Poisson process, or as a recorded trace says."""

from __future__ import annotations

import csv
import datetime
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from headway.bench.serve.asks import Ask, random_words
from headway.core.errors import ConfigError

#: Positions that one of Mooncake's `hash_ids` stands for.
MOONCAKE_BLOCK = 512


@dataclass(frozen=True)
class Recorded:
    """One request of a trace. Equal `blocks` (of `MOONCAKE_BLOCK` tokens) mean equal text."""

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def poisson(asks: Iterable[Ask], per_second: float, seed: int) -> Iterator[Ask]:
    """The asks, due at a constant rate with exponential gaps; the first at 0. An infinite rate asks all at once."""
    chance, at_s = random.Random(f"arrivals {seed}"), 0.0
    for ask in asks:
        yield replace(ask, at_s=at_s)
        at_s += chance.expovariate(per_second)


def read_trace(path: Path, count: int) -> list[Recorded]:
    """The first `count` requests: Azure's LLM traces of 2023 (CSV of TIMESTAMP, ContextTokens, GeneratedTokens), or
    Mooncake's (JSON lines of timestamp in ms, input_length, output_length, hash_ids). Raises ConfigError."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = _mooncake(file) if path.suffix == ".jsonl" else _azure(file)
            found = [row for row, _ in zip(rows, range(count), strict=False)]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--trace", f"{path} cannot be read: {error}") from error
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "--trace", f"{path} is neither an Azure LLM trace nor one of Mooncake's: {error!r}"
        ) from error
    if not found:
        raise ConfigError("--trace", f"{path} holds no request")
    return [replace(row, at_s=row.at_s - found[0].at_s) for row in found]


def trace_asks(rows: Iterable[Recorded], speed: float, max_input: int, max_output: int) -> list[Ask]:
    """Prompts of random words, as long as the trace's and at most `max_input`; answers likewise. `speed` 2 has them
    arrive twice as fast."""
    return [
        Ask(
            _text(number, row, min(row.input_tokens, max_input)),
            max(1, min(row.output_tokens, max_output)),
            row.at_s / speed,
        )
        for number, row in enumerate(rows)
    ]


def _text(number: int, row: Recorded, length: int) -> str:
    """Blocks that two requests share give a common prefix, as in the recorded conversations."""
    if not row.blocks:
        return random_words(length, f"trace {number}")
    parts = []
    for block in row.blocks:
        parts.append(random_words(min(MOONCAKE_BLOCK, length), f"block {block}"))
        length -= MOONCAKE_BLOCK
        if length <= 0:
            break
    return " ".join(parts)


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def _mooncake(lines: Iterable[str]) -> Iterator[Recorded]:
    for line in lines:
        row = msgspec.json.decode(line, type=_MooncakeRow)
        yield Recorded(row.timestamp / 1e3, row.input_length, row.output_length, row.hash_ids)


def _azure(lines: Iterable[str]) -> Iterator[Recorded]:
    for row in csv.DictReader(lines):
        at = datetime.datetime.fromisoformat(row["TIMESTAMP"][:26])  # seven digits after the point are one too many
        yield Recorded(at.timestamp(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
