"""Fields of bodies: which have an effect, which are accepted without one and named, which are refused."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import msgspec
import pytest

from fake_server import FakeServer, fake_serving
from headway.artifacts.files import ModelFiles
from serving import MODEL


@pytest.fixture(scope="module")
def server(smollm2: ModelFiles) -> Iterator[FakeServer]:
    with fake_serving(smollm2) as server:
        yield server


def ignored(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return [name for name in response.headers.get("headway-ignored", "").split(", ") if name]


# -- priority ---------------------------------------------------------------------------------------------------


def test_a_priority_without_effect_is_named_and_not_recorded(server: FakeServer) -> None:
    assert ignored(server.complete("Hi", id="plain", max_tokens=1, priority=0)) == []
    assert ignored(server.complete("Hi", id="urgent", max_tokens=1, priority=-3)) == ["priority"]
    assert server.record("urgent")["priority"] == server.record("plain")["priority"] == 0


def test_a_priority_with_an_effect_is_recorded_and_not_named(smollm2: ModelFiles) -> None:
    with fake_serving(smollm2, policy="priority") as server:
        assert ignored(server.complete("Hi", id="urgent", max_tokens=1, priority=-3)) == []
        assert server.record("urgent")["priority"] == -3


# -- max_tokens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "emitted"), [({}, 16), ({"max_tokens": 3}, 3), ({"max_tokens": None}, 60)], ids=str
)
def test_a_plain_completion_has_16_tokens_unless_it_says_more_and_null_asks_for_what_fits(
    smollm2: ModelFiles, given: dict[str, int | None], emitted: int
) -> None:
    with fake_serving(smollm2, model_context=64) as server:
        body = {"model": MODEL, "prompt": [5] * 4, "ignore_eos": True, **given}
        answer = server.http.post("/v1/completions", json=body).json()
        assert answer["usage"]["completion_tokens"] == emitted
        assert answer["choices"][0]["finish_reason"] == "length"
        document = server.http.get("/openapi.json").json()["components"]["schemas"]
        assert document["CompletionBody"]["properties"]["max_tokens"]["default"] == 16
        assert "default" not in document["ChatBody"]["properties"]["max_tokens"]


# -- stop -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_thousand_stop_strings_are_served_as_one_is(server: FakeServer, stream: bool) -> None:
    def text(**fields: object) -> str:
        answer = server.complete([9] * 8, max_tokens=40, seed=1, stream=stream, **fields)
        assert answer.status_code == 200, answer.text
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        return "".join(msgspec.json.decode(line)["choices"][0]["text"] for line in lines or [answer.text])

    whole = text()
    stop = whole[30:34]
    rare = [f"\x00{i}" for i in range(998)]
    assert text(stop=[*rare, stop, stop]) == text(stop=stop) == whole.partition(stop)[0]
