"""Several models in one replica, as `top`, the doctor, the pool, the timeline and the page show them: each apart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from browser import chromium, opened
from headway.cli import main
from headway.cli.screen import screen
from headway.core import events as ev
from headway.core.request import Stage
from headway.core.verdict import Wait
from headway.page.routes import self_contained
from headway.story.diagnose.apart import Apart
from headway.story.diagnose.doctor import FINDINGS, diagnose, tell, view
from headway.story.reduce.board import Board
from headway.story.reduce.reducer import Story
from headway.story.sinks.log import EventLog
from headway.story.sinks.timeline import Timeline
from headway.story.tell.boardview import BoardView
from headway.story.tell.explain import pool_view, request_view
from mixed_log import BLOCKS, mixed_log
from mixed_world import LATENT
from test_page_story import FOLD
from world import as_json

SETS = [("text", "embed"), ("text", "other"), ("text", "image"), ("text", "embed", "image"), ("embed",), ("image",)]


def board_of(events: list[ev.AnyEvent]) -> Board:
    board = Board(delivers=False)
    for number, event in enumerate(events, 1):
        board.fold(number, event)
    return board


def shown(board: Board) -> BoardView:
    return board.view(board.newest_at, steps=40, requests=60, ended=8)


# -- the numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", SETS, ids="+".join)
def test_each_model_has_its_own_pool_queue_and_steps_and_together_they_are_all(names: tuple[str, ...]) -> None:
    board, passed = Board(delivers=False), Counter[str]()
    for number, event in enumerate(mixed_log(*names), 1):
        board.fold(number, event)
        if not isinstance(event, ev.Stepped | ev.Committed):
            continue
        view = shown(board)
        assert tuple(model.model for model in view.models) == names
        for model in view.models:
            total = {"embed": 0, "image": 2 * LATENT}.get(model.model, BLOCKS)
            blocks = model.pool.blocks
            assert blocks.total == total == blocks.live + blocks.reusable + blocks.free
            assert model.pool.unowned == 0 and model.seats.total == 3
            assert sum(owner.blocks for owner in model.pool.owners) == (blocks.live if model.unit == "blocks" else 0)
            live = [r for r in board.story.live.values() if r.model == model.model]
            assert model.stages.running == sum(r.stage is Stage.RUNNING for r in live)
            rules = [r.verdict.rule for r in live if isinstance(r.verdict, Wait)]
            assert model.passed == rules.count("model")
            passed[model.model] += model.passed
        assert sum(model.stages.running for model in view.models) == view.stages.running
        assert {step.model for step in view.steps} <= set(names)
        assert all(step.spent + step.left == max(step.budget, step.spent) for step in view.steps)
    assert all(passed[name] for name in names) == (len(names) > 1)


def test_who_is_ahead_and_who_shares_a_block_are_of_the_same_model() -> None:
    story = Story()
    for event in mixed_log("text", "other"):
        story.fold(event)
        for record in story.live.values():
            queue = [r.order for r in story.live.values() if (r.model, r.stage) == (record.model, Stage.WAITING)]
            assert story.ahead(record) == sum(order < record.order for order in queue)
            held = [s.blocks.shared for s in request_view(story, record, event.at).sequences]
            assert not any(held), "reuse is off, so that no block is shared; equal numbers are not equal blocks"


def test_the_pool_has_a_line_for_each_model_and_its_head_is_the_first() -> None:
    story = Story()
    for event in mixed_log("text", "image", "embed")[:90]:
        story.fold(event)
    view = as_json(pool_view(story))
    text, image, embed = view["models"]
    assert [(m["model"], m["pattern"], m["unit"], m["total"]) for m in view["models"]] == [
        ("text", "text", "blocks", BLOCKS), ("image", "image", "bytes", 2 * LATENT), ("embed", "embed", "blocks", 0),
    ]  # fmt: skip
    assert view["blocks"] == {level: text[level] for level in ("total", "live", "reusable", "free")}
    assert text["live"] + image["live"] > 0 and (embed["live"], embed["free"]) == (0, 0)


# -- top -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", SETS, ids="+".join)
@pytest.mark.parametrize("size", [(80, 24), (40, 10), (132, 43)], ids=str)
def test_a_screen_fits_whatever_is_served(names: tuple[str, ...], size: tuple[int, int]) -> None:
    events = mixed_log(*names)
    lines = screen(shown(board_of(events[: len(events) // 2])), *size, "where", "q quits")
    assert len(lines) == size[1] and max(line.cell_len for line in lines) <= size[0]
    assert lines[-1].plain == "q quits"


def test_a_screen_names_each_model_and_its_pattern_and_says_who_waits_for_anothers_step() -> None:
    board = Board(delivers=False)
    for number, event in enumerate(mixed_log("text", "embed", "image"), 1):
        board.fold(number, event)
        view = shown(board)
        if isinstance(event, ev.Stepped) and event.model == "embed" and any(model.passed for model in view.models):
            break
    told = [line.plain for line in screen(view, 132, 43, "where", "")]
    text, embed, image = (told[row] for row in (1, 3, 5))
    blocks = view.models[0].pool.blocks
    assert text.startswith("text  text") and f"{blocks.live} live" in text and f"of {BLOCKS}" in text
    assert embed.startswith("embed embed") and f"{view.models[1].batch} inputs in the latest step" in embed
    assert image.startswith("image image") and "200 B" in image
    passed = [f"{model.passed} for another model's step" for model in view.models if model.passed]
    assert passed and all(any(words in line for line in told) for words in passed)
    assert any("another model's step runs" in line for line in told)


def test_a_screen_of_one_model_has_no_name_before_its_pool() -> None:
    told = [line.plain for line in screen(shown(board_of(mixed_log("text"))), 100, 30, "where", "")]
    assert [line[:5] for line in told[1:4]] == ["pool ", "seats", "rates"] and "evaluated" not in "".join(told)
    told = [line.plain for line in screen(shown(board_of(mixed_log("embed"))), 100, 30, "where", "")]
    assert told[1].startswith("batch  ") and "positions/s  queue 0" in told[1] and "prefilled" not in "".join(told)


# -- the doctor and the timeline -------------------------------------------------------------------------------


def slowed(events: list[ev.AnyEvent], by: int = 1000) -> list[ev.AnyEvent]:
    return [msgspec.structs.replace(event, at=event.at * by) for event in events]


@pytest.mark.parametrize("names", SETS, ids="+".join)
def test_the_doctor_looks_at_each_model_apart(names: tuple[str, ...]) -> None:
    events = slowed(mixed_log(*names))
    models = Apart().fold_all(events).models
    assert [seen.model for seen in models] == list(names)
    counted = {seen.model: len(seen.done) for seen in models}
    assert counted == Counter(event.model for event in events if isinstance(event, ev.Committed))
    findings = diagnose(*models)
    assert view(findings, *models)["seen"]["models"] == list(names)
    for finding in findings:
        assert (finding.model in names and finding.says.startswith(f"{finding.model}: ")) == (len(names) > 1)
    shared = {finding.model for finding in findings if finding.name == "other_models"}
    assert bool(shared) == (len(names) > 1)
    assert all("while steps of other models ran" in f.says for f in findings if f.name == "other_models")
    spent = [line for line in tell(findings, *models) if line.startswith("Where the requests' time")]
    assert len(spent) == len(names)


def test_the_doctor_sees_no_gap_where_another_model_ran() -> None:
    """A step owns the time to the next one of any model; here they follow each other at once."""
    for seen in Apart().fold_all(slowed(mixed_log("text", "embed", "image"))).models:
        assert [step.host_gap_ns for step in seen.steps if step.host_gap_ns] == []
        assert all(step.owned_ns == step.ran_ns for step in seen.done)


def test_a_finding_of_each_kind_can_be_looked_for_in_every_pattern() -> None:
    """No numbers of a text are needed: nothing is divided by blocks or positions that are not there."""
    for names in SETS:
        for seen in Apart().fold_all(slowed(mixed_log(*names))).models:
            for look in FINDINGS:
                look(seen)


def test_the_commands_read_such_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = EventLog(tmp_path / "events", epoch="e", model="text")
    events = mixed_log("text", "embed")
    for event in events:
        log.append(event)
    log.close()
    path = str(tmp_path / "events")
    assert main(["top", "--json", "--log", path]) == 0
    assert [model["model"] for model in json.loads(capsys.readouterr().out)["models"]] == ["text", "embed"]
    assert main(["doctor", "--log", path]) == 0
    assert "of text, embed in " in capsys.readouterr().out
    assert main(["why", "e2", "--log", path]) == 0
    assert "e2 finished (stop)" in capsys.readouterr().out
    assert main(["why", "e2", "--json", "--log", path]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "embed"


def test_a_timeline_counts_each_models_pool_on_a_track_of_its_own() -> None:
    timeline = Timeline(delivers=False)
    for event in mixed_log("text", "image"):
        timeline.fold(event)
    tracks = {each["name"] for each in timeline.trace(timeline.newest_at)["traceEvents"] if each["ph"] == "C"}
    assert {"blocks text", "blocks image", "seats text", "seats image"} <= tracks


# -- the page --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def recorded(tmp_path: Path, *names: str) -> tuple[list[ev.AnyEvent], str]:
    events = slowed(mixed_log(*names))
    file = tmp_path / "run.html"
    file.write_text(self_contained(events, "a run"))
    return events, file.as_uri()


def test_the_page_folds_several_models_as_the_server_does(browser: Browser, tmp_path: Path) -> None:
    events, uri = recorded(tmp_path, "text", "other", "embed", "image")
    with opened(browser, uri) as page:
        found = page.evaluate(FOLD, [json.loads(msgspec.json.encode(events)), False])
    story = Story()
    for event, theirs in zip(events, found, strict=True):
        story.fold(event)
        if theirs is None:
            continue
        records = [*story.live.values(), *story.ended.values()]
        assert theirs["views"] == as_json([request_view(story, record, event.at + 1234) for record in records]), event
        assert theirs["levels"] == as_json(story.models) and theirs["unknown"] == []


def hold(page: Page, number: int) -> None:
    page.locator("#scrub").fill(str(number))


def test_the_page_shows_a_text_and_an_encoder_apart(browser: Browser, tmp_path: Path) -> None:
    events, uri = recorded(tmp_path, "text", "embed")
    waits = next(n for n, e in enumerate(events, 1) if isinstance(e, ev.Stepped) and e.model == "embed" and e.waits)
    with opened(browser, uri) as page:
        hold(page, waits)
        story = Story()
        for event in events[:waits]:
            story.fold(event)
        levels = story.models["text"]
        expect(page.locator("#blocks-told")).to_have_text("2 models")
        expect(page.locator("#levels")).to_have_text(f"text {levels.live} of {BLOCKS}")
        expect(page.locator("#seats")).to_have_text(f"text {levels.seats_used} of 3 · embed 1 of 3")
        stalled = page.locator("#rows li", has_text="another model's step runs")
        expect(stalled.first.locator(".stage")).to_have_text("text · running")
        running = page.locator("#rows li", has_text="Evaluate: ")
        expect(running.locator(".stage")).to_have_text("embed · running")
        expect(running.locator(".tokens")).to_have_text("0 of 3 windows")
        expect(page.locator("#models li")).to_have_text(["steps of text", "steps of embed"])
        expect(page.locator("#whole")).to_be_visible()
        hold(page, next(n for n, e in enumerate(events, 1) if n > waits and isinstance(e, ev.Committed)))
        lane = page.locator("#lane")
        lane.hover(position={"x": lane.bounding_box()["width"] - 3, "y": 60})  # type: ignore[index]
        expect(page.locator("#tip")).to_contain_text(f"Step {story.step} of embed")
        page.locator("#map").hover(position={"x": 60, "y": 40})
        expect(page.locator("#tip")).to_contain_text("Block ")


def test_the_page_of_an_encoder_alone_has_no_pool(browser: Browser, tmp_path: Path) -> None:
    _, uri = recorded(tmp_path, "embed")
    with opened(browser, uri) as page:
        expect(page.locator("#levels")).to_be_hidden()
        expect(page.locator("#models li")).to_have_count(0)
        expect(page.locator("#rows li").first.locator(".verdict")).to_have_text(
            "Finished: stop, 3 of 3 windows in 0.9 ms"
        )
