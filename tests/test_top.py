"""`headway top`: the board folds what happens, the screen draws it, and the command follows a server or a log."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import queue
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fake_server import FakeServer, fake_serving
from headway.cli import events, main, top
from headway.cli.events import Missed, tail
from headway.cli.screen import bar, screen, sparkline
from headway.cli.top import Lost, Opened, Watching, feed_from_server
from headway.core.config import ClientOptions
from headway.core.errors import HeadwayError
from headway.core.events import Committed, Delivered, Failed, Loaded, NoProgress, Received, Recovery, Refused, Stepped
from headway.core.recovery import Demand
from headway.core.recovery import Rates as RecoveryRates
from headway.core.tiers import Backlog
from headway.core.verdict import RULES
from headway.story.reduce.board import Board
from headway.story.reduce.reducer import Story
from headway.story.sinks.log import EventLog
from headway.story.sinks.metrics import Metrics
from headway.story.tell.boardview import BoardView
from headway.story.tell.explain import request_view
from headway.story.tell.sentences import brief
from serving import command, until
from signals import hearing_sigint
from test_story_time import mixed_world
from world import World, as_json

NOTE = "q quits"


def board_of(world: World) -> Board:
    board = Board(delivers=False)
    for number, event in enumerate(world.events, 1):
        board.fold(number, event)
    return board


def view_of(board: Board, now: int, *, steps: int = 50, requests: int = 50, ended: int = 8) -> dict[str, Any]:
    return as_json(board.view(now, steps=steps, requests=requests, ended=ended))


def words(world: World, id: str) -> str:
    return brief(request_view(world.story, world.story.record(id), world.clock.now_ns()))


# -- one line for one request ---------------------------------------------------------------------------------


def test_a_request_that_waits_says_in_one_line_what_is_missing():
    world = World(blocks=14, block_tokens=4, seats=4, prefix_cache=False)
    world.add("holder", 30, max_tokens=20)
    world.add("small", 3, max_tokens=20)
    world.step()
    world.add("waits", 33, max_tokens=4)
    world.add("behind", 35, max_tokens=4)
    assert words(world, "waits") == "judged when the step that runs is over"
    world.step()
    assert words(world, "waits") == "needs 9 blocks, 4 short (holder holds 8, 1 more)"
    assert words(world, "holder") == "decode: 2 tokens"


def test_turns_are_told_in_one_line_too():
    world = World(seats=2, step_tokens=8, max_bypass=0)
    world.add("a", 20, max_tokens=3)
    world.add("b", 20, max_tokens=3)
    world.add("c", 20, n=2, max_tokens=3)
    world.add("d", 20, max_tokens=3)
    world.step()
    assert words(world, "a") == "prefill: 8 of 20 prompt positions"
    assert words(world, "b") == "the step's budget is spent"
    assert words(world, "c") == "other requests come first, 1 ahead"
    world.run()
    assert words(world, "a").startswith("length, 3 tokens in ")


def test_a_preempted_request_says_so_and_every_rule_has_words():
    world = World(blocks=8, block_tokens=4, prefix_cache=False)
    world.add("old", 14, max_tokens=8)
    world.add("new", 11, max_tokens=9)
    while not world.story.record("new").preemptions:
        world.step()
    assert words(world, "new").startswith("preempted: needs ")
    view = request_view(world.story, world.story.record("new"), world.clock.now_ns())
    said = {brief(replace(view, verdict=replace(view.verdict, rule=rule, on=on))) for rule, on in RULES.items()}
    assert all(len(words) > len("preempted: ") for words in said) and len(said) == 7


def test_every_end_has_its_line():
    world = World(blocks=8, block_tokens=4)
    world.add("never", 100)
    world.add("gone", 5, max_tokens=9)
    world.step()
    world.engine.cancel("gone", "client")
    world.add("fails", 5)
    world.executor.fail_next = RuntimeError("the machine broke")
    world.step()
    assert words(world, "never") == "it needs 26 blocks of state and the limit is 8 (--memory raises it)"
    assert words(world, "gone").startswith("its client left, after ")
    assert words(world, "fails") == "RuntimeError: the machine broke"
    story = Story(delivers=True)
    story.fold(Received(at=0, id="new"))
    assert brief(request_view(story, story.record("new"), 5)) == "on its way to the engine"


# -- the board ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed() -> World:
    return mixed_world(150)[0]


def test_the_counters_are_those_of_the_metrics(mixed):
    board, story = Board(delivers=False), Story()
    metrics = Metrics(story)
    for number, event in enumerate(mixed.events, 1):
        metrics.fold(event)
        story.fold(event)
        board.fold(number, event)

    def sample(name: str, labels: dict[str, str] | None = None) -> float:
        return metrics.registry.get_sample_value(name, {"model": "fake", **(labels or {})}) or 0.0

    counters = view_of(board, board.newest_at)["counters"]
    assert counters["preemptions"] == sample("headway_preemptions_total") > 0
    assert counters["evicted_blocks"] == sample("headway_prefix_evictions_total") > 0
    for counter, kind in (("recomputed_positions", "recomputed"), ("drafts_rejected", "rejected")):
        assert counters[counter] == sample("headway_positions_total", {"kind": kind}) > 0
    assert counters["drafts_accepted"] == sample("headway_draft_positions_total", {"result": "accepted"}) > 0
    assert counters["failed"] == sample("headway_requests_finished_total", {"reason": "failed"}) > 0
    assert counters["cancelled"] == sample("headway_requests_finished_total", {"reason": "cancelled"}) > 0


def test_after_every_step_owners_hold_what_is_live_and_positions_sum_to_the_budget(mixed):
    board = Board(delivers=False)
    several = 0
    for number, event in enumerate(mixed.events, 1):
        board.fold(number, event)
        if not isinstance(event, Committed | Stepped) or board.steps.records[-1].failed:
            continue  # a step that failed gives its blocks back before its requests are told to have failed
        view = view_of(board, event.at, steps=1, requests=0)
        pool, (step,) = view["pool"], view["steps"]
        assert pool["unowned"] == 0 and sum(pool["blocks"][k] for k in ("live", "reusable", "free")) == 24
        alone = sum(owner["blocks"] for owner in pool["owners"])
        assert alone <= pool["blocks"]["live"] <= alone + sum(owner["shared"] for owner in pool["owners"])
        assert sum(step[k] for k in ("prefilled", "decoded", "recomputed", "rejected", "left")) == step["budget"]
        several += len(pool["owners"]) > 2
    assert several > 10


def test_rates_are_means_over_the_recent_past():
    world = World(step_tokens=64)
    world.add("a", 64, max_tokens=1)
    world.step()
    world.clock.advance(1_000_000_000 - world.clock.now_ns())
    board = board_of(world)
    rates = view_of(board, world.clock.now_ns())["rates"]
    assert rates == {
        "over_s": 1.0, "steps_per_s": 1.0, "prefilled_per_s": 64.0, "decoded_per_s": 0.0, "recomputed_per_s": 0.0,
        "evaluated_per_s": 0.0, "emitted_tokens_per_s": 1.0,
    }  # fmt: skip
    later = view_of(board, world.clock.now_ns() + 10_000_000_000)["rates"]
    assert later["over_s"] == 5.0 and later["steps_per_s"] == 0.0


def test_those_who_wait_are_shown_beside_those_who_run():
    world = World(seats=20, step_tokens=512)
    for i in range(30):
        world.add(f"r{i}", 4, max_tokens=50)
    world.step()
    shown = view_of(board_of(world), world.clock.now_ns(), requests=10)["requests"]
    assert [r["id"] for r in shown] == [f"r{i}" for i in (0, 1, 2, 3, 4, 20, 21, 22, 23, 24)]
    stages = view_of(board_of(world), world.clock.now_ns())["stages"]
    assert stages == {"running": 20, "waiting": {"space": 0, "turn": 10, "input": 0}, "received": 0}


def test_slow_readers_are_counted_and_loaded_tells_what_there_is():
    board = Board()
    loaded = Loaded(at=1, model="tiny", blocks=9, block_tokens=4, block_bytes=1, seats=3, step_tokens=8, threads=1,
                    weights="fp32")  # fmt: skip
    for number, event in enumerate((loaded, Received(at=2, id="a"), Refused(at=3, id="a", reason="queue"),
                                    Delivered(at=4, id="a", dropped="slow reader")), 1):  # fmt: skip
        board.fold(number, event)
    view = view_of(board, 5)
    assert view["model"] == "tiny" and view["seats"] == {"used": 0, "total": 3}
    assert view["pool"]["blocks"] == {"total": 9, "live": 0, "reusable": 0, "free": 9}
    assert (view["counters"]["slow_readers"], view["counters"]["refused"]) == (1, 1)


def test_requests_from_before_the_first_event_are_counted_not_invented():
    world = World()
    world.add("early", 5, max_tokens=9)
    world.step()
    known = len(world.events)
    world.engine.plan()
    board = Board(delivers=False)
    for number, event in enumerate(world.events[known:], known + 1):
        board.fold(number, event)
    view = view_of(board, world.clock.now_ns())
    assert view["unknown"] == 1 and view["requests"] == [] and view["events"]["first"] == known + 1
    assert view["pool"]["unowned"] == view["pool"]["blocks"]["live"] > 0


# -- the screen -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def busy() -> BoardView:
    world = World(blocks=40, block_tokens=4, seats=8, step_tokens=64)
    for i in range(30):
        world.add(f"request-with-a-long-name-{i}", 18 + i, max_tokens=30)
    for _ in range(20):
        world.step()
    return board_of(world).view(world.clock.now_ns(), steps=200, requests=100, ended=8)


@pytest.mark.parametrize("size", [(80, 24), (40, 10), (60, 16), (132, 43), (220, 60)])
def test_a_screen_fits_its_terminal_and_fills_it(busy, size):
    width, height = size
    lines = screen(busy, width, height, "http://127.0.0.1:8000", NOTE)
    assert len(lines) == height and max(line.cell_len for line in lines) <= width
    assert lines[-1].plain.startswith(NOTE)
    text = "\n".join(line.plain for line in lines)
    assert all(label in text for label in ("pool ", "seats ", "rates ", "steps ", "requests ", "owners ", "so far "))


def test_a_screen_of_80_by_24_says_where_everyone_is(busy):
    text = "\n".join(line.plain for line in screen(busy, 80, 24, "where", NOTE))
    stages = busy.stages
    assert f"requests  {stages.running} running, {sum(stages.waiting.values())} waiting" in text
    assert "waiting  " in text and " short (request-with-a-" in text
    assert "prefilled" in text and f"of {busy.steps[-1].budget}: " in text


def test_an_empty_board_is_a_screen_too():
    lines = screen(Board().view(0, steps=50, requests=50, ended=8), 80, 24, "where", NOTE)
    assert len(lines) == 24 and "no model yet" in lines[0].plain


def alarmed() -> BoardView:
    """A recovery loop under a cut, and writes to a tier that stand."""
    world = World()
    world.add("r", 20, max_tokens=4)
    world.step()
    board, at = board_of(world), world.clock.now_ns()
    now, best, kept = (
        RecoveryRates(1000, 20_000, 40_000, 60_000),
        RecoveryRates(0, 0, 20_000, 100_000),
        Demand(2.5, 5000),
    )
    board.fold(90, Recovery(at=at, step=1, model="fake", phase="lasts", cut=True, now=now, best=best, rejected=kept))
    writes = Backlog(tier="disk", writing=4, queued=24, pinned=4, slots=4, moved=0)
    board.fold(91, NoProgress(at=at, step=1, model="fake", writes=writes, times=3))
    return board.view(at, steps=8, requests=8, ended=8)


@pytest.mark.parametrize("width", [80, 140, 220])
def test_alarms_are_drawn_to_their_last_number(width):
    view = alarmed()
    lines = [line.plain for line in screen(view, width, 24, "where", NOTE)]
    assert max(map(len, lines)) <= width and len(lines) == 24
    first = next(place for place, line in enumerate(lines) if line.startswith("loop   "))
    second = next(place for place, line in enumerate(lines) if line.startswith("stuck  "))
    last = next(place for place, line in enumerate(lines[second + 1 :], second + 1) if not line.startswith(" " * 7))
    drawn = [" ".join(line[7:].strip() for line in lines[a:b]) for a, b in ((first, second), (second, last))]
    said = [f"fake: {view.loops[0].words}", view.stuck[0]]
    assert [" ".join(each.split()) for each in drawn] == [" ".join(each.split()) for each in said]
    assert drawn[0].endswith("goodput 60,000.0 of 100,000.0 tokens/s")
    if width == 80:
        assert second - first > 1 and last - second > 1


def test_bars_show_all_that_is_there_within_their_width():
    assert bar([(1, "a", ""), (0, "b", ""), (999, "c", "")], 10).plain == "a" + "c" * 9
    assert bar([(1, "a", ""), (1, "b", "")], 9).plain in ("aaaaabbbb", "aaaabbbbb")
    assert bar([(0, "a", "")], 4).plain == "    "
    assert bar([(1, glyph, "") for glyph in "abcdef"], 4).cell_len == 4
    assert sparkline([0, 1, 4, 8], 8) == " ▁▄█" and sparkline([1], 0) == " "


# -- a log that grows -----------------------------------------------------------------------------------------


def test_a_log_is_followed_through_half_lines_rotations_and_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_LOOK_S", 0.001)
    path = tmp_path / "events"
    log = EventLog(path, epoch="one", model="tiny", rotate_bytes=300)
    log.append(Received(at=1, id="a"))
    found = tail(path, lambda: True)

    def read() -> list[Any]:
        """What there is by now."""
        return list(iter(lambda: next(found), None))

    assert read() == [(1, Received(at=1, id="a"))]
    line = msgspec.json.encode(Received(at=2, id="b")) + b"\n"
    with path.open("ab", buffering=0) as file:
        file.write(line[:9])
        assert read() == []
        file.write(line[9:])
    assert read() == [(2, Received(at=2, id="b"))]
    log._next += 1  # the log's own count of what the lines above were
    for at in range(3, 9):
        log.append(Received(at=at, id="c"))
        assert read() == [(at, Received(at=at, id="c"))]
    assert path.with_name("events.1").exists()
    log.close()
    again = EventLog(path, epoch="two", model="tiny")
    again.append(Received(at=1, id="z"))
    assert read() == [(0, Missed(1, 0)), (1, Received(at=1, id="z"))]


def test_where_events_are_missing_a_new_story_begins():
    watching = Watching("where")
    watching.take(1, Received(at=1, id="old"))
    watching.take(40, Missed(2, 40))
    watching.take(41, Received(at=9, id="new"))
    assert list(watching.board.story.live) == ["new"] and watching.board.first == 41
    assert "events 2 to 40 were missed" in watching.note()


# -- a server -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(smollm2) -> Iterator[FakeServer]:
    with fake_serving(smollm2, blocks=64, seats=8) as server:
        yield server


@contextlib.contextmanager
def held(server: FakeServer, id: str) -> Iterator[None]:
    """A request stands in the middle of a step."""
    server.executor.gate.clear()
    asking = threading.Thread(target=server.complete, args=("Hello",), kwargs={"id": id, "max_tokens": 4})
    asking.start()
    try:
        until(lambda: server.executor.waits)
        yield
    finally:
        server.executor.gate.set()
        asking.join(30)


def test_once_prints_one_screen_and_json_the_same_numbers(server: FakeServer, capsys: pytest.CaptureFixture[str]):
    server.complete("Hello", id="done", max_tokens=6)
    with held(server, "stands"):
        until(lambda: server.record("stands")["stage"] == "running")
        assert main(["top", "--url", server.url]) == 0  # no terminal: as with --once
        told = capsys.readouterr().out
        assert main(["top", "--json", "--url", server.url]) == 0
        view = json.loads(capsys.readouterr().out)
        record = server.record("stands")
    assert "stands" in told and "1 running, 0 waiting" in told and "\x1b" not in told
    assert view["source"] == server.url and view["seats"] == {"used": 1, "total": 8}
    assert view["pool"]["blocks"] == {"total": 64, "live": 1, "reusable": 1, "free": 62}
    assert view["pool"]["owners"] == [{"id": "stands", "blocks": 1, "shared": 0}]
    (mine,) = [request for request in view["requests"] if request["id"] == "stands"]
    assert {**record, "words": mine["words"]} | TIMES == mine | TIMES
    assert view["steps"][-1]["ms"] is None and view["steps"][-1]["prefilled"] == 1
    (done,) = [request for request in view["requests"] if request["id"] == "done"]
    assert done == {**server.record("done"), "words": done["words"]} and done["words"].startswith("length, 6 tokens")


TIMES = {"intervals": [], "elapsed_ms": 0}


def test_a_log_is_shown_as_of_its_last_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    world.add("a", 20, max_tokens=4)
    world.run()
    log = EventLog(tmp_path / "events", epoch="e", model="fake")
    for event in world.events:
        log.append(event)
    assert main(["top", "--once", "--json", "--log", str(tmp_path / "events")]) == 0
    view = json.loads(capsys.readouterr().out)
    assert view["model"] == "fake" and view["seats"]["total"] is None
    assert view["events"] == {"first": 1, "last": len(world.events)} and len(view["steps"]) == len(world.steps())
    assert main(["top", "--log", str(tmp_path / "nothing")]) == 2
    assert "it cannot be read" in capsys.readouterr().err


def test_without_a_server_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("top", "timeline"):
        assert main([name, "--url", "http://127.0.0.1:9"]) == 2
        assert capsys.readouterr().err.startswith("headway: no server answers at http://127.0.0.1:9")


class Scripted(BaseHTTPRequestHandler):
    """Answers `/v1/events` with one of the prepared streams after the other, then stays away."""

    streams: list[str]
    asked: list[str | None]

    def do_GET(self) -> None:
        loaded = Loaded(at=0, model="tiny", blocks=9, block_tokens=4, block_bytes=1, seats=3, step_tokens=8,
                        threads=1, weights="fp32")  # fmt: skip
        text = f'{{"data": [{{"id": "tiny", "headway": {msgspec.json.encode(loaded).decode()}}}]}}'
        if self.path != "/v1/models":
            self.asked.append(self.headers["last-event-id"])
            text = self.streams.pop(0) if self.streams else ""
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.send_header("headway-clock-ns", "1000")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def frame(id: str, event: Any) -> str:
    data = event if isinstance(event, str) else msgspec.json.encode(event).decode()
    kind = "gap" if isinstance(event, str) else event.__struct_config__.tag
    return f"id: {id}\nevent: {kind}\ndata: {data}\n\n"


def test_a_follower_connects_again_where_it_was_and_is_told_of_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "_RETRY_S", (0.01,))
    Scripted.asked = []
    Scripted.streams = [
        ": a comment\n\n" + frame("e-1", Received(at=1, id="a")) + frame("e-2", Failed(at=2, id="a", message="m")),
        frame("e-7", '{"from": 3, "to": 7}') + frame("e-8", Received(at=9, id="b")),
    ]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    news: queue.SimpleQueue[Any] = queue.SimpleQueue()
    over = threading.Event()
    options = ClientOptions(url=f"http://127.0.0.1:{server.server_address[1]}")
    feed = threading.Thread(target=feed_from_server, args=(options, news.put, over))
    feed.start()
    try:
        until(lambda: len(Scripted.asked) >= 3)
    finally:
        over.set()
        feed.join(10)
        server.shutdown()
        server.server_close()
    told = [news.get_nowait() for _ in range(8)]
    assert Scripted.asked[:3] == [None, "e-2", "e-8"]
    assert [type(each) for each in told] == [Opened, tuple, tuple, Lost, Opened, tuple, tuple, Lost]
    assert told[5] == (7, Missed(3, 7)) and told[6] == (8, Received(at=9, id="b"))
    watching = Watching("where")
    for each in told:
        watching.hear(each)
    view = watching.view(steps=1, requests=1, ended=0)
    assert (view.model, view.pool.blocks.total, view.seats.total) == ("tiny", 9, 3)
    assert list(watching.board.story.live) == ["b"]
    assert watching.note() == ("q quits · reconnecting: the server ended the stream · events 3 to 7 were missed")
    with pytest.raises(HeadwayError, match="no key"):
        watching.hear(HeadwayError("no key"))


# -- a terminal -----------------------------------------------------------------------------------------------


class Terminal:
    """A command on a pseudo-terminal of 80×24; `shown` is all that it wrote."""

    def __init__(self, *words: str, **environ: str) -> None:
        self._end, inner = pty.openpty()
        environ = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"} | environ
        with hearing_sigint():
            self.process = subprocess.Popen(command(*words), stdin=inner, stdout=inner, stderr=inner, env=environ)
        os.close(inner)
        self.shown = ""

    def until(self, truth: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + 30
        while not truth(self.shown):
            assert time.monotonic() < deadline, self.shown
            if select.select([self._end], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self._end, 1 << 16).decode(errors="replace")
                except OSError:  # it closed its end
                    assert truth(self.shown), self.shown

    def press(self, key: str) -> int:
        """The exit status after that key. (Ctrl-C is a signal: that is what a terminal makes of it.)"""
        if key == "ctrl-c":
            self.process.send_signal(signal.SIGINT)
        else:
            os.write(self._end, key.encode())
        self.until(lambda shown: "\x1b[?1049l" in shown)
        return self.process.wait(20)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)


def test_ctrl_c_ends_it_also_where_the_tests_run_in_the_background(server: FakeServer) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for `pytest &`
    try:
        terminal = Terminal("top", "--url", server.url)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        terminal.until(lambda shown: "q quits · following" in shown)
        assert terminal.press("ctrl-c") == 0
    finally:
        terminal.close()


@pytest.mark.parametrize(("key", "no_color"), [("q", "1"), ("ctrl-c", "")])
def test_on_a_terminal_it_follows_until_a_key_ends_it(server: FakeServer, key: str, no_color: str) -> None:
    terminal = Terminal("top", "--url", server.url, NO_COLOR=no_color)
    try:
        terminal.until(lambda shown: "q quits · following" in shown)
        server.complete("Hello", id=f"seen-{key}", max_tokens=2)
        terminal.until(lambda shown: f"seen-{key}" in shown)
        assert terminal.press(key) == 0
    finally:
        terminal.close()
    assert terminal.shown.count("\x1b[?1049h") == 1 and "\x1b[2J" not in terminal.shown  # drawn over, never cleared
    assert bool(re.search(r"\x1b\[([0-9;]*;)?3[0-7]m", terminal.shown)) != bool(no_color)
