"""Where packed weights lie: apart from each other, aligned, and for as long as somebody holds them."""

from __future__ import annotations

import ctypes
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headway.compute.native.memory import ALIGNED, CHUNK, HUGE_PAGE, WeightMemory


@given(st.lists(st.integers(1, 3 * CHUNK // 2), min_size=1, max_size=12))
def test_parts_are_aligned_and_lie_apart(sizes: list[int]) -> None:
    memory = WeightMemory()
    parts = sorted((memory.take(size)[0], size) for size in sizes)
    assert all(address % ALIGNED == 0 for address, _ in parts)
    assert all(first + size <= after for (first, size), (after, _) in pairwise(parts))


def test_threads_get_parts_of_their_own() -> None:
    memory = WeightMemory()
    with ThreadPoolExecutor(8) as pool:
        addresses = list(pool.map(lambda _: memory.take(100)[0], range(2_000)))
    assert len(set(addresses)) == 2_000
    assert max(addresses) - min(addresses) == 1_999 * 128  # one chunk, without gaps


def test_a_chunk_begins_with_a_huge_page_and_is_zero_to_its_end() -> None:
    address, held = WeightMemory().take(CHUNK)
    assert address % HUGE_PAGE == 0
    assert not any(ctypes.string_at(address, 4096)) and not any(ctypes.string_at(address + CHUNK - 4096, 4096))
    ctypes.memset(address, 1, CHUNK)  # all of it may be written
    assert held is not None


def test_a_chunk_lives_as_long_as_a_part_of_it_is_held() -> None:
    memory = WeightMemory()
    address, held = memory.take(64)
    gone = weakref.ref(held)
    ctypes.memset(address, 7, 64)
    del memory
    gc.collect()
    assert ctypes.string_at(address, 64) == bytes([7]) * 64
    del held
    gc.collect()
    assert gone() is None
