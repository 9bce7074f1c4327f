"""A real server and the shipped model: a deadline that cannot be met is a 422 with the estimate, for every client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

pytest.importorskip("diffusers")

from serving import Server, serving

EMOJI = Path(__file__).parent.parent / "models" / "emoji-64"
ASKED = {"prompt": "a red apple", "steps": 2, "guidance": 1, "seed": 1}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With one image made, so that everything was measured."""
    with serving(tmp_path_factory.mktemp("deadlines"), str(EMOJI), "--served-name", "emoji") as server:
        assert ask(server).status_code == 200
        yield server


def ask(server: Server, **fields: object) -> httpx.Response:
    return server.http.post("/v1/images/generations", json=ASKED | fields)


def test_a_deadline_that_cannot_be_met_is_refused_at_once_with_the_estimate(server: Server) -> None:
    """A hundred updates take longer than 5 ms on any machine."""
    refused = ask(server, steps=100, deadline_ms=5)
    error = refused.json()["error"]
    assert refused.status_code == 422
    assert (error["code"], error["param"]) == ("deadline", "deadline_ms")
    verdict = server.record(refused.headers["x-request-id"])["verdict"]
    assert (verdict["kind"], verdict["rule"], verdict["unit"], verdict["limit"]) == ("never", "deadline", "ms", 5)
    assert verdict["need"] >= verdict["alone"] > 5
    assert f"is complete {verdict['need']} ms after the request's arrival" in error["message"]


def test_openais_client_raises_its_own_error_and_gets_what_can_be_had(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    asked = {key: ASKED[key] for key in ("steps", "seed", "guidance")}
    with pytest.raises(openai.UnprocessableEntityError, match="deadline_ms is 5"):
        client.images.generate(prompt="a cat", extra_body=asked | {"steps": 100, "deadline_ms": 5})
    answer = client.images.generate(prompt="a cat", extra_body=asked | {"deadline_ms": 300_000})
    assert answer.data is not None and answer.data[0].b64_json


def test_what_is_promised_is_told_with_the_answer_and_what_may_be_late_is_served(server: Server) -> None:
    kept = ask(server, deadline_ms=300_000)
    deadline = kept.json()["headway"]["images"][0]["deadline"]
    assert deadline["promised"] and deadline["met"]
    late = ask(server, deadline_ms=0.5, serve_late=True)
    assert late.status_code == 200
    deadline = late.json()["headway"]["images"][0]["deadline"]
    assert not deadline.get("promised") and deadline["met"] is False
    alone = ask(server, serve_late=True)
    assert alone.status_code == 400 and alone.json()["error"]["param"] == "serve_late"
    counted = server.metrics()
    assert [counted["headway_deadlines_total", result] for result in ("met", "missed")] == [2, 1]
