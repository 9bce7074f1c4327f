"""The page's reducer against the server's, on the same events; and what folding and drawing cost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from playwright.sync_api import Browser

from browser import chromium, opened
from headway.core import events as ev
from headway.core.tiers import TierLevel
from headway.engine.planner import Planner
from headway.page.routes import assets, self_contained
from headway.policy.copies import CopyBudget
from headway.story.reduce.reducer import Story
from headway.story.tell.explain import pool_view, request_view, request_views
from headway.story.tell.sentences import tell
from mixed_world import MixedWorld, part_ns
from page_log import OF_A_FRONT, delivered, log
from world import as_json


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


FOLD = """async ([events, delivers]) => {
  const { Story } = await import("page/story.js");
  const { requestView } = await import("page/view.js");
  let story = new Story({ delivers });
  return events.map((event, place) => {
    story.fold(event);
    story = story.clone();
    const often = ["cancelled", "failed", "recovery", "no_progress", "offloaded"];
    if (place % 4 && !often.includes(event.event)) return null;
    const records = [...story.live.values(), ...story.ended.values()];
    const views = records.map((record) => requestView(story, record, event.at + 1234));
    const tables = (record) => record.sequences.map((one) => one.blocks.slice());
    const blocks = Object.fromEntries(records.map((record) => [record.id, tables(record)]));
    const { pool } = story.model("");
    const cells = Array.from({ length: pool.total }, (_, block) => pool.cell(block).state);
    const levels = Object.fromEntries([...story.models].map(([name, model]) => [name, model.levels]));
    const told = [...story.loops.values(), ...story.stuck.values(), ...story.unwritten.values()];
    return { views, blocks, cells, levels, told, unknown: [...story.unknown] };
  });
}"""


@pytest.mark.parametrize("delivers", [False, True])
def test_the_page_folds_a_log_into_the_same_records_as_the_server(
    browser: Browser, tmp_path: Path, delivers: bool
) -> None:
    events = delivered(log()) if delivers else log()
    kinds = {type(event) for event in events}
    assert kinds >= set(get_args(ev.AnyEvent)) - OF_A_FRONT
    file = tmp_path / "run.html"
    file.write_text(self_contained(events, "a run"))
    with opened(browser, file.as_uri()) as page:
        found = page.evaluate(FOLD, [json.loads(msgspec.json.encode(events)), delivers])
    story = Story(delivers=delivers)
    for event, theirs in zip(events, found, strict=True):
        story.fold(event)
        if theirs is None:
            continue
        records = [*story.live.values(), *story.ended.values()]
        views = [request_view(story, record, event.at + 1234) for record in records]
        assert theirs["views"] == as_json(views), event
        assert theirs["blocks"] == {r.id: [sequence.blocks for sequence in r.sequences] for r in records}
        assert theirs["cells"] == cells(story)
        if isinstance(event, ev.Stepped | ev.Committed) and not _aborted(event, events):
            levels, count = event.levels, theirs["cells"].count
            assert (count("live"), count("reusable"), count("free")) == (levels.live, levels.reusable, levels.free)
        assert theirs["told"] == as_json([*story.loops.values(), *story.still])
        assert theirs["unknown"] == []


def cells(story: Story) -> list[str]:
    """What each block of the only model is."""
    (pool,) = pool_view(story, blocks=True).models or (None,)
    if pool is None:
        return []
    live = {block for held in pool.held_blocks for table in held.tables for block in table}
    return [
        "live" if block in live else "reusable" if block in pool.reusable_blocks else "free"
        for block in range(pool.total)
    ]


LATE = """async ([events, answers, before, behind, records]) => {
  const { Tape } = await import("page/tape.js");
  const { seeds } = await import("page/seed.js");
  const cells = ({ pool }) => Array.from({ length: pool.total }, (_, block) => {
    const { state, owners, references } = pool.cell(block);
    return state === "live" ? [owners.map(({ id }) => id).sort(), references] : state;
  });
  const shown = ({ story }) => JSON.stringify([
    cells(story.model("fake")),
    records && [...story.live.values()].filter((one) => one.stage === "running").map((one) => [
      one.id, one.sequences.map(({ emitted, computed, counts, blocks }) => [emitted, computed, counts, blocks]),
    ]).sort(),
  ]);
  const tape = new Tape();
  const known = [];
  const told = events.map((event) => {
    tape.push(event);
    known.push(cells(tape.story.model("fake")));
    return shown(tape);
  });
  const wrong = [];
  const claims = { right: 0, wrong: 0 };
  for (const [upto, bodies] of Object.entries(answers)) {
    const late = new Tape();
    let first = Math.max(1, upto - before);
    while (first > 1 && !events.slice(first, upto).some(({ event }) => event === "step")) first -= 1;
    for (let place = first; place < upto; place += 1) {
      late.push(events[place]);
      if (!late.story.models.size) continue;
      cells(late.story.model("fake")).forEach((cell, block) => {
        const then = known[place][block];
        const same = Array.isArray(cell) ? Array.isArray(then) : cell === then;
        if (cell !== "unknown") claims[same ? "right" : "wrong"] += 1;
      });
    }
    const server = { asOf: async (path) => ({ body: bodies[path.includes("pool") ? 1 : 0], upto: "e-1" }) };
    const push = (event) => late.push(event);
    for (const { tell } of await seeds(server, late, push)) tell();
    for (let place = Number(upto); ; place += 1) {
      if (shown(late) !== told[place - 1]) {
        wrong.push([Number(upto), events[place - 1].event, told[place - 1], shown(late)]);
        break;
      }
      if (place >= Math.min(events.length, Number(upto) + behind)) break;
      late.push(events[place]);
    }
  }
  return { wrong, claims };
}"""


def test_a_page_that_is_opened_at_any_moment_knows_every_block_from_what_the_server_says(
    browser: Browser, tmp_path: Path
) -> None:
    """The events of the last moments before are kept, or the last step alone."""
    events, story, answers = delivered(log()), Story(delivers=True), {}
    for number, event in enumerate(events, 1):
        story.fold(event)
        if number % 11 and not isinstance(event, ev.Cancelled | ev.Delivered):
            continue
        records = [*story.live.values(), *islice(reversed(story.ended.values()), 5)]
        views = as_json(request_views(story, records, event.at))
        answers[number] = {"data": views}, as_json(pool_view(story, blocks=True))
    file = tmp_path / "run.html"
    file.write_text(self_contained([], "late"))
    told = json.loads(msgspec.json.encode(events))
    with opened(browser, file.as_uri()) as page:
        for before in (0, 60):
            found = page.evaluate(LATE, [told, answers, before, 20, True])
            assert found["wrong"] == []
            assert found["claims"]["wrong"] == 0
            assert (found["claims"]["right"] > 1000) == bool(before)


@pytest.mark.parametrize("told_of", ["the first", "the last", "nobody"])
def test_a_page_that_is_opened_beside_more_requests_than_it_is_told_of_knows_whose_each_block_is(
    browser: Browser, tmp_path: Path, told_of: str
) -> None:
    """Of the others it learns from the pool which blocks they hold, and then by their events."""
    events, story, answers, missing = delivered(log()), Story(delivers=True), {}, set()
    for number, event in enumerate(events, 1):
        story.fold(event)
        if number % 11 and not isinstance(event, ev.Cancelled | ev.Delivered):
            continue
        live = [*story.live.values()]
        half = len(live) // 2
        shown = {"the first": live[:half], "the last": live[half:], "nobody": []}[told_of]
        missing |= {each.id for each in live if each not in shown and any(one.blocks for one in each.sequences)}
        views = as_json(request_views(story, shown, event.at))
        answers[number] = {"data": views}, as_json(pool_view(story, blocks=True))
    assert len(missing) > 7
    file = tmp_path / "run.html"
    file.write_text(self_contained([], "late"))
    told = json.loads(msgspec.json.encode(events))
    with opened(browser, file.as_uri()) as page:
        for before in (0, 60):
            found = page.evaluate(LATE, [told, answers, before, 200, False])
            assert found["wrong"] == []
            assert found["claims"]["wrong"] == 0


STRANGERS = """async () => {
  const { Story } = await import("page/story.js");
  const { Record, SequenceRecord } = await import("page/record.js");
  const held = { s: [[0, 1], [1]], t: [[1]], u: [[2]] };
  const held_blocks = Object.entries(held).map(([id, tables]) => ({ id, stage: "running", tables }));
  const story = new Story();
  const models = [{ model: "m", pattern: "text", live: 3, reusable: 0, free: 1, seats: 3, reusable_blocks: [],
    held_blocks }];
  story.fold({ event: "pooled", at: 1, models });
  const cells = (one) => [0, 1, 2, 3].map((block) => {
    const { state, owners, references } = one.model("m").pool.cell(block);
    return state === "live" ? `${owners.map(({ id }) => id).join(" ")} ${references}` : state;
  });
  const told = { first: cells(story), references: [...story.references("m")], rows: story.live.size };
  const before = story.clone();
  story.fold({ event: "finished", at: 2, id: "s", reason: "stop" });
  const record = new Record("u", "text", 0, "m");
  Object.assign(record, { stage: "running", sequences: [new SequenceRecord(0, 9)] });
  story.fold({ event: "adopted", at: 3, record });
  told.adopted = [cells(story), story.live.get("u").sequences[0].blocks.slice(), [...story.references("m")]];
  story.fold({ event: "cancelled", at: 4, id: "u", by: "client", levels: { live: 1, reusable: 1, free: 2 },
    reusable: [2] });
  told.over = cells(story);
  told.before = cells(before);
  before.fold({ event: "failed", at: 5, id: "s", message: "", reason: "engine" });
  told.failed = cells(before);
  return told;
}"""


def test_of_a_request_that_only_the_pool_tells_of_each_block_is_drawn_as_its_own_until_it_is_over(
    browser: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "run.html"
    file.write_text(self_contained([], "strangers"))
    with opened(browser, file.as_uri()) as page:
        told = page.evaluate(STRANGERS)
    assert told["first"] == ["s 1", "s t 3", "u 1", "free"] and told["rows"] == 0
    assert told["references"] == [[0, 1], [1, 3], [2, 1]]
    assert told["adopted"] == [["free", "t 1", "u 1", "free"], [2], [[2, 1], [1, 1]]]
    assert told["over"] == ["free", "t 1", "reusable", "free"]
    assert told["before"] == told["first"], "a copy of the story is a story of its own"
    assert told["failed"] == ["free", "t 1", "u 1", "free"]


def test_of_a_log_from_before_it_was_told_what_is_reusable_is_shown_as_free(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    file.write_text(self_contained([], "old"))
    events, story = log(), Story()
    old = json.loads(msgspec.json.encode(events))
    for event in old:
        event.pop("reusable", None)
    with opened(browser, file.as_uri()) as page:
        found = page.evaluate(FOLD, [old, False])
    seen = set()
    for event, theirs in zip(events, found, strict=True):
        story.fold(event)
        if theirs is not None:
            seen |= set(cells(story))
            assert theirs["cells"] == ["live" if cell == "live" else "free" for cell in cells(story)]
    assert "reusable" in seen


def test_the_page_folds_the_windows_of_an_encoders_inputs_as_the_server_does(
    browser: Browser, tmp_path: Path
) -> None:
    world = MixedWorld(names=("embed", "image"), budget=6, seats=3)
    world.embed("long", *range(1, 12))
    world.embed("one", 5)
    world.embed("last", 1)
    world.image("i", 1)
    for _ in range(4):
        world.step()
    world.engine.plan()
    world.engine.abort("the step was told to fail")
    world.run()
    events = world.events
    file = tmp_path / "run.html"
    file.write_text(self_contained(events, "a run"))
    with opened(browser, file.as_uri()) as page:
        found = page.evaluate(FOLD, [json.loads(msgspec.json.encode(events)), False])
    story = Story()
    for event, theirs in zip(events, found, strict=True):
        story.fold(event)
        if theirs is not None:
            records = [*story.live.values(), *story.ended.values()]
            views = [request_view(story, record, event.at + 1234) for record in records]
            assert theirs["views"] == as_json(views), event
    parts = [part for view in views for part in view.parts]
    assert {part.positions for part in parts} >= {None, 1, 5, 11} and any(part.step is None for part in parts)


def _aborted(event: ev.AnyEvent, events: list[ev.AnyEvent]) -> bool:
    """Of a step that failed the blocks are free before it is told who held them."""
    return isinstance(event, ev.Committed) and not event.outcomes and any(isinstance(e, ev.Failed) for e in events)


def test_the_page_has_a_fold_for_every_event() -> None:
    tags = {str(event.__struct_config__.tag) for event in get_args(ev.AnyEvent)}
    folds = set(re.findall(r"^  (\w+)(?:\(story, event\) \{|: \(story, event\))", _text("folds.js"), re.MULTILINE))
    assert folds == tags


def _text(name: str) -> str:
    return assets()[name].body.decode()


COST = """async ([requests, blocks, steps]) => {
  const { Tape } = await import("page/tape.js");
  const { BlocksView } = await import("page/blocks.js");
  const { StepsView } = await import("page/steps.js");
  const { QueueView } = await import("page/queue.js");
  const { Theme } = await import("page/colours.js");
  const $ = (id) => document.getElementById(id);
  const tape = new Tape({ kept: 1e6 });
  const theme = new Theme();
  const tip = { show() {}, hide() {} };
  const map = new BlocksView({ canvas: $("map"), told: $("blocks-told"), tip, theme, choose() {} });
  const lane = new StepsView({ canvas: $("lane"), told: $("steps-told"), tip, theme, goTo() {} });
  const nothing = () => {};
  const queue = new QueueView({ list: $("rows"), told: $("queue-told"), none: $("none"), ruled: true,
    words: { line: () => "as it is", keep: nothing }, previews: { show: nothing, keep: nothing },
    choose: nothing, point: nothing, cancel: nothing });
  const ids = Array.from({ length: requests }, (_, place) => `r-${place}`);
  const own = Math.floor(blocks / requests) - 1;
  let at = 0;
  ids.forEach((id, place) => {
    tape.push({ event: "received", at, id, pattern: "text" });
    tape.push({ event: "arrived", at, id, pattern: "text", prompt: 100, n: 1, max_tokens: 1e5, priority: 0,
      order: [place], wait: null });
    const table = Array.from({ length: own }, (_, block) => place * own + block);
    tape.push({ event: "admitted", at, step: 1, id, resumed: false, indexes: [0], tables: [table], inherited: [0],
      miss: null });
  });
  const live = own * requests;
  const levels = { live, reusable: 0, free: blocks - live, seats_used: requests, evictions: 0 };
  const spent = { fold: 0, canvases: 0, queue: 0 };
  const timed = (part, what) => {
    const from = performance.now();
    what();
    spent[part] += (performance.now() - from) / steps;
  };
  for (let step = 1; step <= steps; step += 1) {
    at += 20e6;
    const members = ids.map((id) => [id, 0, 100 + step, 1, 0, "decode"]);
    const outcomes = ids.map((id) => [id, 0, 0, 1, 0, 0, 1, own, null, 0]);
    timed("fold", () => {
      tape.push({ event: "step", at, step, budget: 512, members, grown: [], waits: {}, head: null, waiting: 0,
        levels });
      tape.push({ event: "committed", at: at + 19e6, step, outcomes, forks: [], levels });
    });
    const focus = tape.story.live.get("r-7");
    timed("canvases", () => {
      const recent = tape.stepsUntil(tape.last, 1500);
      map.draw(tape.story, focus, recent);
      lane.draw(recent, at + 19e6, tape.last, focus, [...tape.story.models.keys()]);
    });
    if (step % 6 === 0) timed("queue", () => queue.draw(tape.story, at + 19e6, "r-7", false));
  }
  const from = performance.now();
  const past = tape.at(Math.floor(tape.last / 2) + 150);
  return { ...spent, scrub: performance.now() - from, live: past.live.size };
}"""


def test_64_requests_on_10000_blocks_cost_less_than_a_step_of_20_ms(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    file.write_text(self_contained([], "cost"))
    with opened(browser, file.as_uri()) as page:
        spent = page.evaluate(COST, [64, 10_000, 150])
    assert spent["live"] == 64
    assert spent["fold"] + spent["canvases"] + spent["queue"] < 20 and spent["scrub"] < 200


def test_the_page_folds_the_life_of_an_image_as_the_server_does(browser: Browser, tmp_path: Path) -> None:
    world = MixedWorld(names=("image",), latents=2, seats=3, parts=part_ns)
    world.measure_images()
    world.image("previews", 4, previews=2, deadline_ms=0.02, serve_late=True)
    world.image("waits", 3, deadline_ms=90_000)
    world.image("fails", 2)
    for _ in range(5):
        world.step()
    world.engine.plan()
    world.engine.abort("the step was told to fail")
    world.image("goes", 6, deadline_ms=90_000)
    world.image("late", 1, deadline_ms=0.001)
    world.step(), world.step()
    world.image("tight", 3, deadline_ms=1.1 * world.alone_ms(3))
    world.step(), world.step()
    world.engine.cancel("goes")
    running = world.models["image"].queues.running
    step, at = world.engine.steps + 1, world.clock.now_ns()
    planner = Planner(world.models["image"], step, at, world._emit, 4, CopyBudget(0))
    planner._preempt(running[-1], by=running[0], taken=0)  # no step lacks space for images by itself
    world.run()
    file = tmp_path / "run.html"
    file.write_text(self_contained(world.events, "a run"))
    with opened(browser, file.as_uri()) as page:
        found = page.evaluate(FOLD, [json.loads(msgspec.json.encode(world.events)), False])
    story, words = Story(), set[str]()
    for event, theirs in zip(world.events, found, strict=True):
        story.fold(event)
        if theirs is not None:
            records = [*story.live.values(), *story.ended.values()]
            views = [request_view(story, record, event.at + 1234) for record in records]
            assert theirs["views"] == as_json(views), event
            words |= {sentence for view in views for sentence in tell(view)}
    for part in (
        "the encoding of its prompt; then", "a preview, after update", "missed by", ", in ",
        " of 4; then", "others have less slack. If it moved, tight would", "less slack: ", "was refused",
        "its decoding to pixels, the last that is left", "met with", "there is no answer", "its latent is gone",
    ):  # fmt: skip
        assert any(part in sentence for sentence in words), part


RIBBON = """async (deadlines) => {
  const { RibbonView } = await import("page/ribbon.js");
  const { Theme } = await import("page/colours.js");
  const canvas = Object.assign(document.createElement("canvas"), { style: "width: 400px" });
  const [told, intervals, why] = ["span", "ul", "div"].map((tag) => document.createElement(tag));
  document.body.append(canvas, told, intervals, why);
  const ink = Object.assign(new Theme(), { ink: "#010203" });
  const ribbon = new RibbonView({
    canvas, told, intervals, why, words: { why: () => [] }, tip: { hide() {} }, theme: ink,
  });
  return deadlines.map((deadline) => {
    const view = { id: "r-1", elapsed_ms: 100, intervals: [{ name: "update", ms: 100 }], deadline };
    ribbon.draw(view, { hue: 0 });
    ribbon.tell(view);
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, 1);
    const columns = Array.from({ length: canvas.width }, (_, x) => x);
    const line = columns.filter((x) => data[4 * x] === 1 && data[4 * x + 2] === 3);
    return { at: line.length ? line[0] / canvas.width : null, said: canvas.getAttribute("aria-label") };
  });
}"""


def test_a_deadline_is_a_line_in_the_life_once_it_is_near(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    file.write_text(self_contained([], "deadline"))
    deadlines = [None, *({"ms": ms, "left_ms": ms - 100, "met": None} for ms in (25, 100, 160, 900))]
    with opened(browser, file.as_uri()) as page:
        found = page.evaluate(RIBBON, deadlines)
    assert [row["at"] for row in found] == [
        None, pytest.approx(0.25, abs=0.01), pytest.approx(0.99, abs=0.01), pytest.approx(0.99, abs=0.01), None
    ]  # fmt: skip
    said = [row["said"].partition("deadline at ")[2] for row in found]
    assert said == ["", "25.0 ms", "0.10 s", "0.16 s", "0.90 s"]


ALARM = """async (events) => {
  const { Story } = await import("page/story.js");
  const { drawAlarm } = await import("page/alarm.js");
  const story = new Story({ delivers: false });
  const element = document.createElement("p");
  return events.map((event) => {
    story.fold(event);
    drawAlarm(element, story);
    return element.hidden ? null : element.textContent;
  });
}"""


def test_the_page_says_of_a_recovery_loop_and_of_no_progress_while_they_last(
    browser: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "run.html"
    events = log()
    file.write_text(self_contained(events, "a run"))
    with opened(browser, file.as_uri()) as page:
        found = page.evaluate(ALARM, json.loads(msgspec.json.encode(events)))
    said = [text for event, text in zip(events, found, strict=True) if isinstance(event, ev.Recovery | ev.NoProgress)]

    def writes(behind: int) -> str:
        return f"4 writes to the disk tier stand, {behind} blocks wait behind them, all 4 host slots in use"

    rates = "10.0 preempted/s, 20,000 recomputed/s (50% of prompt work), goodput 60.0 of 100.0 tokens/s"
    assert said == [
        f"fake: admission cut, 0.00 requests/s kept out, 1 of 2 windows without a preemption, {rates}",
        f"fake: admission cut, 2.50 requests/s kept out, 1 of 2 windows without a preemption, {rates}",
        None,
        f"fake: no progress, {writes(15)}",
        "fake: no progress, again waits for reload (6 blocks short), unchanged 3 times in a row",
        f"fake: no progress, {writes(14)}",
    ]
    assert found[0] is found[-1] is None


TIERS = """async ([events, listed]) => {
  const { Story } = await import("page/story.js");
  const { Header } = await import("page/header.js");
  const story = new Story({ delivers: false });
  const header = new Header((id) => document.getElementById(id), { title: "a run" });
  header.models = listed;
  const list = document.getElementById("tiers");
  return events.map((event) => {
    story.fold(event);
    header._tiers([...story.models.values()]);
    return list.hidden ? null : [...list.children].map((line) => line.textContent);
  });
}"""


def test_the_header_says_how_much_each_tier_holds(browser: Browser, tmp_path: Path) -> None:
    def loaded(model: str, *tiers: TierLevel) -> ev.Loaded:
        return ev.Loaded(at=0, model=model, blocks=8, block_tokens=16, block_bytes=1, seats=4, step_tokens=64,
                         threads=1, weights="fp32", tiers=tiers)  # fmt: skip

    host, disk = TierLevel("host", 0, 4, 512), TierLevel("disk", 3, 9, 3 << 20)
    events = [
        loaded("plain"),
        loaded("a", host, disk),
        ev.Offloaded(at=1, model="a", blocks={"host": 4}, tiers=(TierLevel("host", 4, 4, 512), disk)),
        loaded("a"),
    ]
    file = tmp_path / "run.html"
    file.write_text(self_contained([], "a run"))
    listed = [{"id": "plain", "headway": {"tiers": []}}, {"id": "a", "headway": {"tiers": as_json([host])}}]
    told = json.loads(msgspec.json.encode(events))
    with opened(browser, file.as_uri()) as page:
        assert page.evaluate(TIERS, [told, []]) == [
            None,
            ["a host tier: 0 of 4 blocks, 0 B", "a disk tier: 3 of 9 blocks, 9.0 MiB"],
            ["a host tier: 4 of 4 blocks, 2.0 KiB", "a disk tier: 3 of 9 blocks, 9.0 MiB"],
            None,
        ]
        assert page.evaluate(TIERS, [told[3:], listed]) == [["host tier: 0 of 4 blocks, 0 B"]]
