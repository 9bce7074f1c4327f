"""A step's inputs shared out among threads: each evaluates whole inputs by itself.

A library that divides every product among its threads has them wait for each other some hundred times in a step, so
one busy neighbour on one core stalls all of them. Here they meet once, at the step's end, and whoever is quicker
takes more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
#: Parts of a step for each thread: more, and a thread that was disturbed leaves its share to the others; fewer, and
#: products have more rows.
PARTS_EACH = 2
#: Positions that are worth a part of their own.
LEAST_POSITIONS = 64
#: An input of more positions is evaluated by all threads together, product by product, if it is alone in its step.
ALONE_POSITIONS = 160


def parts(lengths: Sequence[int], threads: int) -> list[list[int]]:
    """The places of `lengths` (positions of each input, sorted) in runs of about equal length in all, the longest run
    first."""
    total = sum(lengths)
    wanted = max(1, min(PARTS_EACH * threads, len(lengths), total // LEAST_POSITIONS))
    found: list[list[int]] = [[] for _ in range(wanted)]
    done = 0
    for place, length in enumerate(lengths):
        middle = done + length / 2
        found[min(wanted - 1, int(middle * wanted / total))].append(place)
        done += length
    runs = [run for run in found if run]
    return sorted(runs, key=lambda run: -sum(lengths[place] for place in run))


class Shares:
    """`threads` threads with one thread of the library's own in each. With one there is none but the caller's."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool: ThreadPoolExecutor | None = None
        if threads > 1:
            self._pool = ThreadPoolExecutor(threads, "encoder", initializer=torch.set_num_threads, initargs=(1,))

    def each(self, lengths: Sequence[int], work: Callable[[Sequence[int]], T]) -> list[tuple[list[int], T]]:
        """`work(places)` for every part of a step of inputs of these lengths (sorted): its places, and what came of
        them. Raises whatever `work` raised first."""
        together = len(lengths) == 1 and lengths[0] > ALONE_POSITIONS
        if self._pool is None or together:
            everything = list(range(len(lengths)))
            return [(everything, work(everything))]
        shared = parts(lengths, self.threads)
        return list(zip(shared, self._pool.map(work, shared), strict=True))
