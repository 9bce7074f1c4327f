"""The live page in a real browser: over a real server with a small pool, and opened from a file without one."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from browser import chromium, opened
from fake_server import FakeServer, fake_serving
from headway.artifacts.files import ModelFiles
from headway.core.request import Stage
from headway.front.guard import Guard
from headway.page import rule
from headway.page.routes import assets, self_contained
from headway.page.words import Question
from headway.story.reduce.reducer import Story
from headway.story.sinks.ring import EventRing
from headway.story.tell.explain import request_view
from headway.story.tell.sentences import line, shortage, tell
from headway.story.tell.views import PrefixView, RequestView, StandingWait
from page_log import log
from serving import MODEL, Server, serving, until

#: About 430 and 330 positions: 27 and 21 blocks, of a pool that has 40.
LONG, LONGER = "word " * 330, "word " * 400


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), "--memory", "40blocks", "--no-prefix-cache") as server:
        yield server


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    with opened(browser, f"{server.url}/") as page:
        expect(page.locator("#state")).to_have_text("live")
        yield page
    for id, record in server.records().items():
        if record["stage"] in ("waiting", "running"):
            server.http.delete(f"/v1/requests/{id}")
    until(lambda: server.live() == 0)


# -- over a server -------------------------------------------------------------------------------------------------


def ask(page: Page, a: str, b: str, tokens: int = 200) -> tuple[str, str]:
    """Fill both prompts and send them, the first one first. Their ids."""
    for name, text in (("A", a), ("B", b)):
        page.get_by_label(f"prompt {name}").fill(text)
        page.get_by_label(f"most tokens of answer {name}").fill(str(tokens))
    for whole in page.get_by_label("all of them").all():
        whole.check()
    page.get_by_role("button", name="Send both").click()
    first, second = page.locator(".sent").all()
    expect(second).to_be_visible()
    return first.inner_text(), second.inner_text()


def contend(page: Page) -> tuple[str, str]:
    """Send two that do not fit together. The id of the one that runs, and of the one that waits for space."""
    both = set(ask(page, LONGER, LONG))
    waits = page.locator("#rows li.waiting.space")
    expect(waits).to_have_count(1, timeout=15000)
    waiting = str(waits.get_attribute("data-id"))
    (running,) = both - {waiting}
    return running, waiting


def row(page: Page, id: str) -> Any:
    return page.locator(f'#rows li[data-id="{id}"]')


def test_the_second_of_two_waits_for_space_with_the_servers_numbers_until_the_first_is_cancelled(
    page: Page, server: Server
) -> None:
    a, b = contend(page)
    verdict = row(page, b).locator(".verdict")
    expect(verdict).to_contain_text("Waiting for space: needs")
    expect(row(page, a).locator(".verdict")).to_contain_text("Decode: ", timeout=15000)
    wait = until(lambda: _told(server.record(b), verdict.inner_text()))
    assert [holder.id for holder in wait.holders] == [a] and wait.need == wait.free + wait.short
    page.get_by_role("button", name="Pause").click()
    why = page.locator("#why")
    expect(why).to_contain_text(f"{b} is waiting")  # it is chosen, since it waits for space
    expect(why).to_contain_text(shortage(wait))

    row(page, a).locator(".name").click()
    canvas = page.locator("#map")
    row(page, b).hover()
    (short,) = re.findall(r", (\d+) short\.", verdict.inner_text())
    expect(canvas).to_have_attribute("data-ghosts", short)
    expect(canvas).to_have_attribute("data-lit", a)
    assert f"{b} lacks {short}" in str(canvas.get_attribute("aria-label"))

    canvas.hover(position={"x": 60, "y": 12})
    expect(page.locator("#tip")).to_contain_text(re.compile(rf"Block \d+\s*held by {a}"))
    lane = page.locator("#lane")
    width = lane.bounding_box()["width"]  # type: ignore[index]
    step = page.locator("#tip", has_text=re.compile(r"Step \d+, .* of 512 positions"))
    for back in range(4, int(width), 20):  # on a busy machine there are gaps between steps
        lane.hover(position={"x": width - back, "y": 60})
        if step.is_visible():
            break
    expect(step).to_be_visible()

    page.get_by_role("button", name="Continue").click()
    page.get_by_role("button", name=f"cancel {a}").click()
    expect(row(page, b).locator(".stage")).to_have_text("running", timeout=10000)
    row(page, a).locator(".name").click()
    until(lambda: why.locator("p").all_inner_texts() == tell(msgspec.convert(server.record(a), RequestView)))
    expect(row(page, a).locator(".verdict")).to_have_text(line(msgspec.convert(server.record(a), RequestView)))
    expect(page.get_by_label(f"answer {a[0]}", exact=True)).to_contain_text("the request was cancelled")
    expect(page.get_by_label(f"answer {b[0]}", exact=True)).not_to_be_empty(timeout=15000)


def _told(record: dict[str, Any], words: str) -> StandingWait | None:
    """The verdict, once the page says the very same: what it shows is a moment behind or ahead of what is asked."""
    view = msgspec.convert(record, RequestView)
    waits = isinstance(view.verdict, StandingWait) and view.verdict.holders
    return view.verdict if waits and words == line(view) else None


def test_holding_the_view_and_going_back_show_the_past_while_events_come_in(page: Page, server: Server) -> None:
    server.complete("Hello", max_tokens=12, ignore_eos=True)
    (id, _) = ask(page, "Say something long.", "Say more.", tokens=150)
    expect(row(page, id).locator(".stage")).to_have_text("running", timeout=10000)
    page.locator("h1").click()
    page.keyboard.press("Space")
    expect(page.locator("#state")).to_have_text("held, still collecting")
    moment = page.locator("#moment")
    held = moment.inner_text()
    latest = int(str(page.locator("#scrub").get_attribute("max")))
    page.wait_for_function("(latest) => document.getElementById('scrub').max > latest", arg=latest)
    step = int(held.split()[1].strip(","))
    assert moment.inner_text().startswith(f"step {step},")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(moment).to_contain_text(re.compile(rf"^step ({step - 1}|{step - 2}),"))
    page.locator("#scrub").fill("3")
    expect(moment).to_contain_text("step 0,")
    expect(row(page, id)).to_have_count(0)
    page.keyboard.press("l")
    expect(page.locator("#state")).to_have_text("live")
    expect(row(page, id)).to_have_count(1)


def test_a_verdict_leads_to_the_lines_that_made_it(page: Page, server: Server) -> None:
    _, b = contend(page)
    link = row(page, b).locator("a.verdict")
    expect(link).to_have_attribute("href", "/page/rule/waiting.py#blocks")
    page.goto(f"{server.url}/page/rule/waiting.py#blocks")
    marked = page.locator(".rule:target")
    expect(marked).to_be_in_viewport()
    first, last = rule.rule_lines()["blocks"]
    numbers = [int(number) for number in marked.locator("i").all_inner_texts()]
    assert numbers == list(range(first, last + 1))
    expect(marked).to_contain_text("rule=room.space_rule")


def test_the_lines_of_each_rule_are_those_that_make_its_verdict() -> None:
    lines = rule.source().splitlines()
    together = {"blocks", "latent"}  # how a model's space is called says which
    assert (
        set(rule.rule_lines()) == {"seats", "reservation", "budget", "order", "model", "grammar", "reload"} | together
    )
    for name, (first, last) in rule.rule_lines().items():
        text = "\n".join(lines[first - 1 : last])
        space = dict.fromkeys(together, "rule=room.space_rule")
        wanted = {"order": "def look_further(", **space}.get(name, f'rule="{name}"')
        assert wanted in text and text.count("Wait(") + text.count("Wait:") <= 3 and last - first < 20
        others = set(rule.rule_lines()) - (together if name in together else {name})
        assert not any(f'rule="{other}"' in text for other in others)


def test_on_a_phone_nothing_scrolls_sideways_and_the_keyboard_chooses(browser: Browser, server: Server) -> None:
    server.complete("Hello", max_tokens=2)
    server.complete("Hello again", max_tokens=2)
    with opened(browser, f"{server.url}/", width=390, height=844) as page:
        expect(page.locator("#rows li").nth(1)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        before = page.locator("#rows li[aria-current]").get_attribute("data-id")
        page.keyboard.press("j")
        page.keyboard.press("j")
        expect(page.locator("#rows li[aria-current]")).not_to_have_attribute("data-id", str(before))
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_be_visible()


def test_the_pages_files_have_types_may_be_kept_and_run_nothing_from_elsewhere(server: Server) -> None:
    home = server.http.get("/")
    assert home.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in home.headers["content-security-policy"]
    script = server.http.get("/page/story.js")
    assert script.headers["content-type"].startswith("text/javascript")
    again = server.http.get("/page/story.js", headers={"if-none-match": script.headers["etag"]})
    assert again.status_code == 304 and not again.content
    for name in ("nothing.js", "..%2Fpages.py", "%2e%2e/pages.py"):
        assert server.http.get(f"/page/{name}").status_code == 404
    assert not re.search(
        r"https?://(?!www\.w3\.org/2000/svg)", "".join(asset.body.decode() for asset in assets().values())
    )


def test_words_are_told_for_records_alone_to_who_has_the_key(smollm2: ModelFiles) -> None:
    with fake_serving(smollm2, guard=Guard(key="secret")) as server:
        headers = {"authorization": "Bearer secret"}
        view = RequestView(
            id="r", pattern="text", stage=Stage.FAILED, verdict=None, sequences=(), preemptions=0, preempted_for=(),
            prefix=PrefixView(0, None), intervals=(), elapsed_ms=2.0, priority=0, max_tokens=1, message="so it is",
        )  # fmt: skip
        question = msgspec.to_builtins(Question((view,), view))
        question["rows"][0]["from_a_later_version"] = 1
        assert server.http.post("/page/words", json=question).status_code == 401
        told = server.http.post("/page/words", json=question, headers=headers).json()
        assert told == {"rows": ["Failed: so it is"], "chosen": ["r failed after 2.0 ms: so it is."]}
        for body, status in ((b"[]", 400), (b'{"rows": [{"id": "r"}]}', 400), (b" " * (1 << 20) + b"[]", 413)):
            assert server.http.post("/page/words", content=body, headers=headers).status_code == status


def test_modules_are_short_enough_to_be_read() -> None:
    lines = {name: asset.body.decode().splitlines() for name, asset in assets().items() if name != "index.html"}
    assert {name: len(rows) for name, rows in lines.items() if len(rows) > 300} == {}
    assert [(name, row) for name, rows in lines.items() for row in rows if len(row) > 118] == []


def test_with_a_key_the_page_asks_for_it_once(browser: Browser, smollm2: ModelFiles) -> None:
    with (
        fake_serving(smollm2, guard=Guard(key="secret")) as server,
        opened(browser, f"{server.url}/", quiet=False) as page,
    ):
        for given in ("wrong", "secret"):
            page.locator("#key").fill(given)
            page.get_by_role("button", name="Continue").click()
        expect(page.locator("#state")).to_have_text("live")
        expect(page.locator("#model")).not_to_have_text("…")
        page.reload()
        expect(page.locator("#state")).to_have_text("live")
        expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_request_from_before_the_kept_events_is_shown_as_its_record_says(
    browser: Browser, smollm2: ModelFiles
) -> None:
    with fake_serving(smollm2, blocks=64) as server:
        server.front._chronicle._ring = EventRing("epoch", 20)
        ask = partial(server.complete, list(range(1, 200)), id="old", max_tokens=500)
        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: server.front.ring.last > 60)
        server.executor.gate.clear()
        until(lambda: server.executor.waits)
        with opened(browser, f"{server.url}/") as page:
            emitted = server.record("old")["sequences"][0]["tokens"]["emitted"]
            expect(row(page, "old").locator(".tokens")).to_have_text(f"{emitted} of 500 tokens")
            expect(row(page, "old").locator(".stage")).to_have_text("running")
            server.executor.gate.set()
            expect(row(page, "old").locator(".stage")).to_have_text("finished")
            expect(row(page, "old").locator(".tokens")).to_have_text("500 of 500 tokens")
        asking.join(10)


CELLS = """() => {
  const canvas = document.getElementById("map");
  const tip = document.getElementById("tip");
  const { left, top, width, height } = canvas.getBoundingClientRect();
  const found = {};
  for (let y = 1; y < height; y += 7) {
    for (let x = 1; x < width; x += 7) {
      canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: left + x, clientY: top + y }));
      const block = tip.hidden ? null : /Block (\\d+)/.exec(tip.children[0].textContent);
      if (block) found[block[1]] = tip.children[1].textContent;
    }
  }
  return Object.keys(found).map(Number).sort((a, b) => a - b).map((block) => found[block]);
}"""


def shown(page: Page) -> list[str]:
    """What the page says of each block where one points at it, without who held it last."""
    cells: list[str] = page.evaluate(CELLS)
    return [cell.partition(",")[0] for cell in cells]


def told(server: FakeServer) -> list[str]:
    """The same by the pool itself, and by whom each request is."""
    engine = server.front.link.replica.engine
    pool = engine.models[MODEL].pattern.space
    held = [
        (block, id) for id, r in engine.requests.items() for s in r.progress.sequences for block in s.state.blocks
    ]
    owners = {block: [id for other, id in held if other == block] for block, _ in held}
    return [
        "reusable" if pool.is_reusable(block)
        else "free" if not pool.references(block)
        else f"held by {owners[block][0]}" if len(owners[block]) == 1
        else f"shared by {len(owners[block])} sequences: {owners[block][0]}"
        for block in range(pool.total)
    ]  # fmt: skip


def fill(server: FakeServer) -> list[threading.Thread]:
    """Some blocks are reusable, some held by one, some by two, and some free, in the middle of a step of which more
    events than are kept came before."""
    run = server.executor.run
    server.executor.run = lambda plan: [time.sleep(0.003), run(plan)][1]  # type: ignore[method-assign]
    prompt = list(range(1, 140))
    server.complete([7] * 90, max_tokens=2)
    asking = []
    for id in ("runs-3", "runs-4"):
        asking.append(server.ask([*prompt, len(asking)], id=id, max_tokens=150))
        until(lambda id=id: server.record(id).get("stage") == "running")
    until(lambda: server.record("runs-4")["sequences"][0]["tokens"]["emitted"] > 40)
    server.executor.gate.clear()
    until(lambda: server.executor.waits)
    return asking


def test_a_page_that_is_opened_late_shows_every_block_as_it_is_and_goes_on_so(
    browser: Browser, smollm2: ModelFiles
) -> None:
    with fake_serving(smollm2, blocks=64) as server:
        server.front._chronicle._ring = EventRing("epoch", 20)
        asking = fill(server)
        before = told(server)
        assert {cell.partition(" ")[0] for cell in before} == {"reusable", "held", "shared", "free"}
        with opened(browser, f"{server.url}/") as page:
            until(lambda: shown(page) == before)
            server.executor.gate.set()
            server.http.delete("/v1/requests/runs-3")
            for thread in asking:
                thread.join(20)
            until(lambda: shown(page) == told(server))
            assert shown(page).count("reusable") > before.count("reusable")
            server.complete([9] * 900, max_tokens=2)  # evicts
            until(lambda: shown(page) == told(server))


def test_after_a_gap_the_page_shows_every_block_as_it_is(browser: Browser, smollm2: ModelFiles) -> None:
    with fake_serving(smollm2, blocks=64) as server, opened(browser, f"{server.url}/", quiet=False) as page:
        expect(page.locator("#state")).to_have_text("live")
        server.complete([8] * 40, max_tokens=2)
        until(lambda: shown(page) == told(server))
        page.route("**/v1/events", lambda route: route.abort())
        server.front.state = "draining"  # which ends the stream
        expect(page.locator("#state")).to_contain_text("connection lost")
        server.front.state = "ready"
        server.front.ring._events = deque(server.front.ring._events, maxlen=20)
        asking = fill(server)
        page.unroute("**/v1/events")
        until(lambda: shown(page) == told(server))
        assert page.evaluate("Number(document.getElementById('scrub').max)") < 60  # it began anew
        server.executor.gate.set()
        for thread in asking:
            thread.join(20)
        until(lambda: shown(page) == told(server))


# -- without one ---------------------------------------------------------------------------------------------------


def test_a_recorded_run_opens_from_a_file_and_plays(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    file.write_text(self_contained(log(), "A run <with> 'marks'"))
    with opened(browser, file.as_uri()) as page:
        expect(page.locator("#state")).to_have_text("recorded")
        assert page.title() == "A run <with> 'marks' · Headway"
        expect(page.locator("#prompts")).to_be_hidden()
        expect(row(page, "huge").locator(".verdict")).to_contain_text("the limit is 26")
        expect(page.locator(".cancel:visible")).to_have_count(0)
        expect(page.locator("a.verdict")).to_have_count(0)
        page.get_by_role("button", name="Play").click()
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        expect(page.get_by_role("button", name="Play")).to_be_visible(timeout=5000)


def test_a_recorded_page_has_the_servers_words_for_every_moment(browser: Browser, tmp_path: Path) -> None:
    events = log()
    file = tmp_path / "run.html"
    file.write_text(self_contained(events, "a run"))
    story = Story()
    with opened(browser, file.as_uri()) as page:
        row(page, "b").locator(".name").click()
        for number, event in enumerate(events, 1):
            story.fold(event)
            if number % 23 or "b" not in {*story.live, *story.ended}:
                continue
            page.locator("#scrub").fill(str(number))
            for record in (*story.live.values(), *list(story.ended.values())[-30:]):
                expect(row(page, record.id).locator(".verdict")).to_have_text(_line(story, record, event.at + 1))
            expect(page.locator("#why p")).to_have_text(tell(request_view(story, story.record("b"), event.at + 1)))


def _line(story: Story, record: Any, at: int) -> str:
    return line(request_view(story, record, at))
