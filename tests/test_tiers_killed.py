"""A replica, or the whole server, is killed while blocks are written to the disk tier: what the next one finds there
are whole blocks, and it says what one says that found nothing."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from fake_process import Client, fake_process, said
from fake_replica import whole
from headway.artifacts.files import ModelFiles
from headway.replica import diskslab
from headway.replica.diskslab import DiskSlab
from headway.text.tokenizer import Tokenizer
from serving import Server, serving, until

BLOCKS, BLOCK = 48, 16
TOKENS = 12


@pytest.fixture(scope="module")
def tokenizer(smollm2: ModelFiles) -> Tokenizer:
    return Tokenizer(smollm2)


def options(folder: Path, log: Path) -> tuple[str, ...]:
    return (
        "--memory", f"{BLOCKS}blocks", "--seats", "4", "--disk-tier", str(folder), "--disk-tier-bytes", "40MiB",
        "--event-log", str(log),
    )  # fmt: skip


def prompt(number: int) -> list[int]:
    """Five whole blocks and some positions; no two agree in the first."""
    return [(1000 * number + 7 * i) % 40_000 + 100 for i in range(5 * BLOCK + 9)]


def ask(server: Server, numbers: list[int]) -> list[Client]:
    return [Client(server.url, prompt(number), seed=0, max_tokens=TOKENS) for number in numbers]


def kill_replica(server: Server) -> None:
    """The next one serves when this returns."""

    def replaced() -> int:
        return server.log.read_text().count("another one is started")

    before = replaced()
    server.replica.kill()
    until(lambda: replaced() > before)
    until(lambda: server.http.get("/ready").status_code == 200)


def on_disk(server: Server) -> int:
    return sum(tier["blocks"] for tier in server.get("/v1/pool")["tiers"] if tier["name"] == "disk")


def slab_of(folder: Path) -> tuple[DiskSlab, int]:
    """The file as it lies there, and the bytes of a block; nobody may hold it."""
    (file,) = folder.glob("*/blocks")
    with file.open("rb") as raw:
        headers = (raw.seek(slot * 266_240) * 0 or raw.read(128) for slot in range(file.stat().st_size // 266_240))
        identity = next(header[8:24] for header in headers if any(header))
    size = BLOCK * 8 * 2048
    assert diskslab.slot_bytes(size) == 266_240
    return DiskSlab.open(file.parent, identity, size, file.stat().st_size, patience_s=5), size


def look_at(folder: Path) -> int:
    """Each block that can be found there is wholly there, and nothing is damaged. How many there are."""
    slab, size = slab_of(folder)
    assert not slab.found.damaged and not slab.found.foreign
    for slot, key in slab.found.keys.items():
        block = memoryview(bytearray(size))
        slab.read(slot, key, block)
        assert all(whole(block))
    slab.close()
    return len(slab.found.keys)


def events(log: Path, kind: str) -> list[dict[str, Any]]:
    files = sorted(log.parent.glob(f"{log.name}*"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines() if line.startswith("{")]
    return [row for row in rows if row.get("event") == kind]


def test_a_replica_that_is_killed_at_any_moment_leaves_whole_blocks_and_the_next_one_serves_from_them(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    tier, log = tmp_path / "tier", tmp_path / "events"
    with fake_process(tmp_path, *options(tier, log), step_ms=2, kind="restless") as server:
        last = 0
        for _ in range(5):
            numbers = list(range(last, last + 3))
            last += 3
            clients = ask(server, numbers)
            time.sleep(chance.uniform(0.02, 0.2))
            kill_replica(server)
            for client in clients:
                client.end()  # what it had is lost, or was said just before
            for number, client in zip(numbers, ask(server, numbers), strict=True):
                assert client.end().texts == said(tokenizer, prompt(number), seed=0, max_tokens=TOKENS)
        until(lambda: on_disk(server) >= 5 * 3 * 5)
        assert server.live() == 0
        kill_replica(server)
        for number in range(last):
            (client,) = ask(server, [number])
            assert client.end().texts == said(tokenizer, prompt(number), seed=0, max_tokens=TOKENS)
        reloaded = server.metrics()["headway_reloaded_blocks_total", "disk"]
        pool = server.get("/v1/pool")["blocks"]
    assert reloaded >= 5 * last, "all of it came from disk, in the end"
    assert pool["live"] == 0 and pool["reusable"] + pool["free"] == BLOCKS
    assert [event["faults"] for event in events(log, "offloaded") if event.get("faults")] == []
    assert look_at(tier) >= 5 * last


def test_a_server_that_is_killed_whole_at_any_moment_leaves_whole_blocks_for_the_next_one(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    """Or the front alone is: then its replica still writes what it has, and the next server waits for that."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    tier = tmp_path / "tier"
    for round, both in enumerate((False, True)):
        log = tmp_path / f"events {round}"
        with fake_process(tmp_path, *options(tier, log), step_ms=2) as server:
            for number in range(3 * round):
                (client,) = ask(server, [number])
                assert client.end().texts == said(tokenizer, prompt(number), seed=0, max_tokens=TOKENS)
            assert server.metrics()["headway_reloaded_blocks_total", "disk"] >= 5 * round
            clients = ask(server, [3 * round + i for i in range(3)])
            time.sleep(chance.uniform(0.05, 0.3))
            replica = server.replica
            server.process.kill()
            if both:
                replica.kill()
            for client in clients:
                client.leave()
            server.process.wait()
        assert [event["faults"] for event in events(log, "offloaded") if event.get("faults")] == []
    assert look_at(tier) >= 5 * 3


def test_a_killed_replica_of_a_real_model_is_followed_by_one_with_the_same_answers(tmp_path: Path) -> None:
    text = "A request makes headway only when it has space and a turn. " * 12
    fields = {"max_tokens": 16, "ignore_eos": True}
    more = ("--memory", "24blocks", "--disk-tier", str(tmp_path / "tier"), "--disk-tier-bytes", "64MiB")
    with serving(tmp_path, *more) as server:
        cold = server.text(text, **fields)
        until(lambda: on_disk(server) >= 5)
        kill_replica(server)
        answer = server.complete(text, id="again", **fields)
        assert answer.json()["choices"][0]["text"] == cold
        assert server.record("again")["reload"]["loaded"]["disk"] >= 5
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= 80
        assert server.live() == 0
