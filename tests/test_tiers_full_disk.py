"""A disk tier whose disk has no room: at the start that is an error with numbers, later a write that fails; whatever
is asked for then is served all the same, and rightly."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fake_replica
from headway.core.errors import ConfigError
from headway.replica.diskslab import DiskSlab, slot_bytes
from small_disks import KINDS, SIZE, SmallDisk, small_disk
from test_tiers_real_model import PROMPT, Served, executor
from tiny_decoders import oracle, tokens

TIER = 1 << 20
#: Blocks of one of the prompts: so many writes may be on their way when the third has failed.
MOST_AT_ONCE = 9
PROMPTS = [PROMPT, *(tokens(120, seed=seed) for seed in range(10, 16))]


@pytest.fixture(scope="module")
def tiny():
    return oracle("llama, tied")


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(request.param, tmp_path) as disk:
        disk.error = os.strerror(KINDS[request.param])
        yield disk


@pytest.fixture(scope="module")
def answers(tiny, tmp_path_factory) -> list[list[int]]:
    """Of a server without tiers that has seen nothing before each."""
    folder = tmp_path_factory.mktemp("cold")
    return [Served(executor(tiny, folder)).ask("cold", prompt, 6) for prompt in PROMPTS]


def tiered(tiny, disk: SmallDisk, tmp_path: Path) -> Served:
    return Served(executor(tiny, tmp_path), disk_tier=str(disk.folder / "tier"), disk_tier_bytes=TIER)


@pytest.mark.parametrize("left", [0, 3 << 13, (5 << 13) + 4096], ids=["nothing", "whole slots", "half a slot more"])
def test_a_disk_that_fills_up_while_it_is_written_to_loses_no_answer(tiny, disk, tmp_path, answers, left):
    served = tiered(tiny, disk, tmp_path)
    assert served.ask("first", PROMPTS[0], 6) == answers[0] and not served.faults()
    assert len(served.tiers.books.disk) == 9
    disk.fill(left)
    counted = []
    for number, (prompt, answer) in enumerate(zip(PROMPTS, answers, strict=True)):
        assert served.ask(f"full {number}", prompt, 6) == answer
        counted.append(sum(fault["disk"]["write"] for fault in served.faults()))
    assert 3 <= counted[-1] < 3 + MOST_AT_ONCE and counted[-1] == counted[-3], "then it is asked no more"
    assert served.ask("as before", PROMPTS[0], 6) == answers[0]
    assert served.reused("as before") == 144, "what was written before is still there"
    assert {kind for fault in served.faults() for kind in fault["disk"]} == {"write"}, "nothing was read wrongly"
    words = {event.words for event in served.events if getattr(event, "faults", None)}
    assert all(re.fullmatch(rf"slot \d+ cannot be written: {disk.error}", each) for each in words), words
    written = len(served.tiers.books.disk)
    assert 9 <= written <= 9 + left // 4224, "a block and its header"
    assert served.pool.live == 0
    served.close()

    disk.make_room()
    again = tiered(tiny, disk, tmp_path)
    assert len(again.tiers.books.disk) == written and not again.tiers.books.happened.faults
    for number, (prompt, answer) in enumerate(zip(PROMPTS, answers, strict=True)):
        assert again.ask(f"again {number}", prompt, 6) == answer
    assert again.reused("again 0") == 144 and not again.faults()
    assert len(again.tiers.books.disk) > written, "with room again, what is new is written"
    again.close()


def test_a_block_that_was_cut_off_leaves_an_empty_slot_and_its_neighbours_whole(disk):
    size = 60_000
    slab = DiskSlab.open(disk.folder, b"i" * 16, size, 20 * slot_bytes(size))
    slab.write(0, b"0" * 16, memoryview(b"0" * size))
    disk.fill(2 * slot_bytes(size) - 20_000)
    with pytest.raises(OSError, match=disk.error):
        for slot in range(1, 20):
            slab.write(slot, b"%016d" % slot, memoryview(b"%d" % (slot % 10) * size))
    slab.close()
    disk.make_room()
    slab = DiskSlab.open(disk.folder, b"i" * 16, size, 20 * slot_bytes(size))
    assert slab.found.keys == {0: b"0" * 16, 1: b"%016d" % 1} and not slab.found.damaged
    for slot, key in slab.found.keys.items():
        block = bytearray(size)
        slab.read(slot, key, memoryview(block))
        assert block == b"%d" % slot * size
    slab.close()


def test_what_is_more_than_the_disk_has_is_an_error_with_both_numbers(disk):
    disk.fill(SIZE)
    with pytest.raises(ConfigError) as caught:
        DiskSlab.open(disk.folder, b"i" * 16, 1000, 5 << 20)
    said = str(caught.value)
    assert "--disk-tier-bytes" in said and "5MiB" in said and re.search(r"has room for|the \d+MiB that", said)
    assert disk.error in said or re.search(r"more than the [34]MiB", said)
    DiskSlab.open(disk.folder, b"i" * 16, 1000, 2 << 20).close()


def test_a_server_on_a_full_disk_says_so_and_leaves(tmp_path):
    """The whole program, which may write no file of more than a mebibyte."""
    words = [
        "serve",
        "--port",
        "0",
        "--memory",
        "40blocks",
        "--disk-tier",
        f"{tmp_path}",
        "--disk-tier-bytes",
        "3MiB",
    ]
    run = subprocess.run(
        [sys.executable, fake_replica.__file__, *words], capture_output=True, text=True, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
    )  # fmt: skip
    assert run.returncode == 2, run.stderr
    assert re.search(r"--disk-tier-bytes.*room for \d+MiB.*not for a file of 3MiB.*File too large", run.stderr, re.S)
    assert "Traceback" not in run.stderr
