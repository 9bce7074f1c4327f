"""Nothing is left over: of ten thousand requests no memory, of ten replicas no process, file, thread or folder."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fake_process import Client, fake_process
from headway.compute.fake import FakeExecutor
from headway.core.clock import ModelledClock
from headway.core.events import AnyEvent, Delivered
from headway.core.plan import Grammar, Sampling
from headway.core.request import TextRequest
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.memory.pool import BlockPool
from headway.memory.reserve import StateMemory
from headway.patterns.text.pattern import text_model
from headway.policy.drafts import lookup_drafts
from headway.story.reduce.reducer import Story
from headway.story.sinks.metrics import Metrics
from serving import Server, until
from world import Allowing

VOCAB, BLOCKS = 11, 40
WARM_UP, MEASURED = 10_000, 10_000


class Books:
    """An engine, and the records and metrics that a front folds from its events."""

    def __init__(self) -> None:
        self.story = Story(delivers=True)
        self.metrics = Metrics(self.story)
        self.clock = ModelledClock()
        self.pool = BlockPool(BLOCKS, 4)
        self.executor = FakeExecutor(blocks=BLOCKS, block_tokens=4, vocab=VOCAB, clock=self.clock)
        model = text_model(
            self.executor,
            StateMemory(self.pool, prefix_cache=True),
            EngineOptions(seats=8, step_tokens=32),
            drafters=lookup_drafts(2),
            watcher=lambda stop, early: Never(),
        )
        self.engine = Engine([model], self.clock, emit=self._fold)
        self.random = random.Random(5)
        self.count = 0

    def _fold(self, event: AnyEvent) -> None:
        self.metrics.fold(event)
        self.story.fold(event)

    def serve(self, requests: int) -> None:
        """So many requests of every kind and every end, some dozens at a time."""
        upto = self.count + requests
        while self.count < upto:
            ids = [self.add() for _ in range(40)]
            for id in self.random.sample(ids, 4):
                if id in self.engine.requests:
                    self.engine.cancel(id, "client")
            if not self.random.randrange(5):
                self.executor.fail_next = RuntimeError("the machine broke")  # type: ignore[attr-defined]
            while self.engine.requests:
                self.engine.step()
            for id in ids:
                self._fold(Delivered(at=self.clock.now_ns(), id=id))
        assert self.pool.live == 0 and not self.story.live

    def add(self) -> str:
        choose, id = self.random.choice, f"r-{self.count}"
        self.count += 1
        prompt = tuple(self.random.choices(range(VOCAB), k=choose((1, 5, 12))))
        kind = choose(("plain", "plain", "several", "stop", "guided", "refused"))
        fields: dict[str, Any] = {
            "several": {"n": 2, "sampling": Sampling(temperature=1.0, seed=self.count)},
            "stop": {"stop": ("x",), "stop_ids": (3,)},
            "guided": {"grammar": Grammar("json")},
            "refused": {"n": 9},
        }.get(kind, {})
        self.engine.add(TextRequest(id=id, prompt=prompt, max_tokens=choose((1, 2, 6)), **fields))
        if kind == "guided":
            if choose((True, False)):
                self.engine.supply(id, "grammar", [Allowing(VOCAB)])
            else:
                self.engine.fail(id, "it cannot be met")
        return id


class Never:
    """A watch that finds nothing."""

    def completes(self, token: int) -> bool:
        return False


def test_ten_thousand_requests_leave_no_object_behind() -> None:
    """After the warm-up all that remembers the latest of something (records, evictions, beginnings of prompts) is
    full. What it holds varies a little with the requests that are in it; one object kept of each request would be
    10,000 more."""
    books = Books()
    books.serve(WARM_UP)
    before = allocated()
    books.serve(MEASURED)
    assert len(books.story.ended) == 1000
    assert allocated() - before < MEASURED / 10


def allocated() -> int:
    gc.collect()
    return sys.getallocatedblocks()


# -- processes ------------------------------------------------------------------------------------------------

PER_EXCHANGE, EXCHANGES = 100, 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's temporary folders, and nobody else's, lie here."""
    return tmp_path_factory.mktemp("t")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        with fake_process(tmp_path_factory.mktemp("server"), "--memory", "64blocks", kind="restless") as server:
            yield server


def serve_many(server: Server) -> None:
    """4,000 requests, in 40 exchanges; as many exchanges more are left by their clients, or mean nothing."""
    for i in range(EXCHANGES):
        prompts = [[i % 50 + 20, j] for j in range(PER_EXCHANGE)]
        leaver = Client(server.url, [i % 50 + 20] * 50, max_tokens=400, stream=True)
        assert server.complete(prompts, max_tokens=2, ignore_eos=True, seed=i).status_code == 200  # type: ignore[arg-type]
        leaver.leave()
        assert server.complete([5], max_tokens=0).status_code == 400
    until(lambda: server.metrics()["headway_requests", "running"] == 0 == server.live())


def settled(measure: Callable[[], int]) -> int:
    """The smallest of some values: of a moment in which nothing was under way."""
    return min(measure() for _ in range(20))


def _within(rounds: list[tuple[int, int]]) -> bool:
    """Whether some round left no more memory than the bound, and some round no thread."""
    memory, threads = zip(*rounds, strict=True)
    return min(memory) < PER_EXCHANGE * EXCHANGES * 1024 and min(threads) <= 0


def test_thousands_of_requests_leave_front_and_replica_as_large_as_they_were(server: Server) -> None:
    """The bound is what a kilobyte kept of each request would come to. The allocators of Python and of the system
    take memory in pieces of up to a megabyte, and that settles only after a while; pools of threads grow to their
    size. What leaks grows in every round, so one round within the bounds shows that nothing does."""
    processes = [psutil.Process(server.process.pid), server.replica]
    serve_many(server)
    before = [settled(process.num_fds) for process in processes]
    grown: list[list[tuple[int, int]]] = [[], []]
    for _ in range(4):
        sizes = [(process.memory_info().rss, process.num_threads()) for process in processes]
        serve_many(server)
        for process, (size, threads), rounds in zip(processes, sizes, grown, strict=True):
            rounds.append((process.memory_info().rss - size, process.num_threads() - threads))
        if all(_within(rounds) for rounds in grown):
            break
    assert all(_within(rounds) for rounds in grown), grown
    for process, fds in zip(processes, before, strict=True):
        assert settled(process.num_fds) <= fds
    assert server.metrics()["headway_requests_finished_total", "cancelled"] > 0


def test_ten_killed_replicas_leave_no_process_file_thread_folder_or_memory(server: Server, folder: Path) -> None:
    """The first two restarts are not measured: they load what later ones use again. What the others may keep is a
    third of a megabyte each, for the records and pieces of the allocators: less than any part of a replica holds."""
    front = psutil.Process(server.process.pid)
    sizes: list[tuple[int, int, int]] = []
    before = len(front.children(recursive=True))
    for restart in range(12):
        killed = server.replica
        doomed = Client(server.url, [restart + 20], max_tokens=1000, stream=True)
        until(lambda: server.metrics()["headway_requests", "running"] == 1)
        killed.kill()
        assert doomed.end().error == "failed"
        until(lambda: server.http.get("/ready").status_code == 200)
        assert not killed.is_running() and len(front.children(recursive=True)) == before
        assert not list(folder.iterdir()), "front and replica speak over a socket pair, which lies in no folder"
        sizes.append((settled(front.num_fds), front.num_threads(), front.memory_info().rss))
    fds, threads, rss = sizes[1]
    assert max(size[0] for size in sizes[2:]) <= fds and max(size[1] for size in sizes[2:]) <= threads
    assert sizes[-1][2] - rss < len(sizes[2:]) * (1 << 20) / 3
    assert server.live() == 0
