"""What is asked: prompts that are built in, from a file, or random words of a given length."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headway.core.errors import ConfigError

#: Each is one token after a space in the vocabularies of GPT-2's kind, so a prompt of n of them has about n tokens on
#: any server, without its tokenizer. What the server counted stands in the results.
_WORDS = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother
area money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city community name president team minute idea body information
back parent face others level office door health person art war history party result change morning reason
research girl guy moment air teacher force education
"""
WORDS = tuple(_WORDS.split())

QUESTIONS = (
    "Explain in three sentences why the sky is blue.",
    "Write a short letter to a neighbour about a borrowed ladder.",
    "List five uses of a paper clip.",
    "What is the difference between a stack and a queue? Give an example of each.",
    "Describe a small town in winter, seen from a train.",
    "A farmer has 17 sheep, and all but 9 run away. How many are left? Explain.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Summarise the plot of Romeo and Juliet for a child.",
    "How does a refrigerator keep food cold?",
    "Give three arguments for and three against working from home.",
    "Translate 'Where is the railway station?' into French, German and Spanish.",
    "What should I pack for a three-day hike in the mountains?",
    "Write a limerick about a cat that cannot catch mice.",
    "Explain what a hash table is to somebody who has never programmed.",
    "What happened in the year 1969 that people still talk about?",
    "Suggest a dinner of three courses without meat.",
)


@dataclass(frozen=True)
class Lengths:
    """A number of tokens, or a range from which each request draws its own."""

    low: int
    high: int

    def draw(self, chance: random.Random) -> int:
        return chance.randint(self.low, self.high)


@dataclass(frozen=True)
class Ask:
    """One request. `prompt` is text, or messages for chat; `at_s` is when it is due, from the first one's time on, or
    None where a request follows the end of another."""

    prompt: str | tuple[Any, ...]
    max_tokens: int
    at_s: float | None = None


def random_words(count: int, seed: object) -> str:
    """`count` words; equal seeds give equal text."""
    return " ".join(random.Random(f"words {seed}").choices(WORDS, k=count))


def random_asks(inputs: Lengths, outputs: Lengths, seed: int) -> Iterator[Ask]:
    """Prompts that share no prefix beyond chance, without end."""
    chance = random.Random(seed)
    for number in itertools.count():
        yield Ask(random_words(inputs.draw(chance), f"{seed} {number}"), outputs.draw(chance))


def repeated_asks(prompts: Sequence[str | tuple[Any, ...]], outputs: Lengths, seed: int) -> Iterator[Ask]:
    """The prompts in their order, again and again."""
    chance = random.Random(seed)
    for prompt in itertools.cycle(prompts):
        yield Ask(prompt, outputs.draw(chance))


def read_prompts(path: Path) -> list[str | tuple[Any, ...]]:
    """Of a `.jsonl` file one prompt per line: a string, or an object with `messages`, `prompt`, `text`, or `turns`,
    of which the first is asked. Of any other file each line that is not blank is a prompt. Raises ConfigError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--prompts", f"{path} cannot be read: {error}") from error
    parsed = path.suffix == ".jsonl"
    prompts = [
        _prompt(path, number, line) if parsed else line for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not prompts:
        raise ConfigError("--prompts", f"{path} holds no prompt")
    return prompts


def _prompt(path: Path, number: int, line: str) -> str | tuple[Any, ...]:
    try:
        row = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ConfigError("--prompts", f"{path}, line {number}: {error}") from error
    match row:
        case str() as text:
            return text
        case {"messages": [*messages]}:
            return tuple(messages)
        case {"prompt": str() as text} | {"text": str() as text} | {"turns": [str() as text, *_]}:
            return text
    raise ConfigError("--prompts", f"{path}, line {number}: neither a string nor an object with messages, prompt, "
                      "text or turns")  # fmt: skip
