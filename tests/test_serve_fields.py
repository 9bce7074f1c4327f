"""Fields of bodies: which have an effect, which are accepted without one and named, which are refused."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from fake_server import FakeServer, fake_serving
from headway.artifacts.files import ModelFiles


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
