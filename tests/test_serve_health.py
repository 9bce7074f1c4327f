"""`/health` is about progress: it fails when work is present and nothing moves, and not before."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from starlette.requests import Request

from headway.api.routes.models import health
from headway.front.refusals import Refusal
from headway.front.state import STUCK_AFTER_S, Front
from headway.story.reduce.reducer import Story


def asked(stuck_s: float, state: str = "ready", log: object = None) -> dict:
    front = SimpleNamespace(
        stuck_s=lambda: stuck_s,
        state=state,
        failure="no such file",
        log=log,
        story=Story(),
    )
    app = SimpleNamespace(state=SimpleNamespace(front=front))
    response = asyncio.run(health(Request({"type": "http", "method": "GET", "path": "/health", "app": app})))
    return json.loads(response.body)


def test_it_is_well_while_things_move_or_nothing_is_there() -> None:
    assert asked(0.0)["status"] == asked(STUCK_AFTER_S - 1)["status"] == "ok"


def test_it_fails_when_work_is_present_and_nothing_has_moved() -> None:
    with pytest.raises(Refusal, match="nothing has progressed for 61 s") as refusal:
        asked(STUCK_AFTER_S + 1)
    assert (refusal.value.status, refusal.value.code) == (503, "stuck")


def test_it_fails_when_no_model_could_be_loaded() -> None:
    with pytest.raises(Refusal, match="no such file"):
        asked(0.0, state="failed")


@pytest.mark.parametrize(("inboxes", "stuck"), [({}, False), ({"r-1": object()}, True)])
def test_only_work_that_is_present_can_be_stuck(inboxes: dict, stuck: bool) -> None:
    front = SimpleNamespace(_inboxes=inboxes, _moved_at=0.0)
    assert (Front.stuck_s(front) > 0) is stuck  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("log", "failure"),
    [
        (None, None),
        (SimpleNamespace(failure=None), None),
        (SimpleNamespace(failure="No space left on device"), "No space left on device"),
    ],
)
def test_an_event_log_that_ended_is_named_and_serving_goes_on(log: object, failure: str | None) -> None:
    told = asked(0.0, log=log)
    assert (told["status"], told["event_log_failure"]) == ("ok", failure)
