"""Several models in one server: one replica, one loop, each asked by its own name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serving import MODEL, Server, serving, until

SECOND = "second"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--memory", "96blocks", "--model", MODEL, "--model", f"{MODEL}:served-name={SECOND}:seats=4:share=2")
    with serving(tmp_path_factory.mktemp("models"), *options) as server:
        yield server


def test_every_model_is_listed_with_what_it_has(server: Server) -> None:
    listed = {model["id"]: model["headway"] for model in server.get("/v1/models")["data"]}
    assert list(listed) == [MODEL, SECOND]
    assert [listed[name]["blocks"] for name in listed] == [32, 64]
    assert [listed[name]["seats"] for name in listed] == [64, 4]
    assert server.get(f"/v1/models/{SECOND}")["id"] == SECOND
    missing = server.http.get("/v1/models/third")
    assert missing.status_code == 404 and f"'{MODEL}', '{SECOND}' are" in missing.json()["error"]["message"]


def test_one_prompt_has_one_answer_whichever_copy_of_the_model_is_asked(server: Server) -> None:
    fields = {"max_tokens": 12, "ignore_eos": True}
    first, second = (server.text("The sea is", model=name, **fields) for name in (MODEL, SECOND))
    assert first == second != ""
    assert server.complete("The sea is", model="third").status_code == 404


def test_two_models_at_work_take_turns_and_a_wait_for_the_other_one_is_explained(server: Server) -> None:
    streams = {
        name: server.stream([700] * 9, model=name, max_tokens=120, ignore_eos=True, id=f"turn-{name}").begun()
        for name in (MODEL, SECOND)
    }
    waits = until(
        lambda: [r["verdict"] for r in server.records().values() if (r["verdict"] or {}).get("rule") == "model"]
    )
    assert waits[0]["on"] == "turn" and waits[0]["holders"] == []
    for stream in streams.values():
        assert stream.end()[-1] == "[DONE]"
    for name in streams:
        record = server.record(f"turn-{name}")
        waited = sum(i["ms"] for i in record["intervals"] if i.get("rule") == "model")
        assert waited > 0 and abs(sum(i["ms"] for i in record["intervals"]) - record["elapsed_ms"]) < 1e-3


def test_pool_and_metrics_keep_the_models_apart(server: Server) -> None:
    server.text([5] * 40, model=SECOND, max_tokens=2)
    pool = {model["model"]: model for model in server.get("/v1/pool")["models"]}
    assert {name: each["live"] + each["reusable"] + each["free"] for name, each in pool.items()} == {
        MODEL: 32,
        SECOND: 64,
    }
    assert pool[SECOND]["reusable"] >= 2
    text = server.http.get("/metrics").text
    for name, blocks in ((MODEL, 32), (SECOND, 64)):
        levels = [line for line in text.splitlines() if line.startswith(f'headway_blocks{{model="{name}"')]
        assert sum(float(line.split()[-1]) for line in levels) == blocks


def test_a_chat_goes_to_the_model_that_it_names(server: Server) -> None:
    body = {"model": SECOND, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    answer = server.http.post("/v1/chat/completions", json=body).json()
    assert answer["model"] == SECOND
    tokens = server.http.post("/tokenize", json={"model": SECOND, "prompt": "Hello"}).json()
    assert (tokens["count"], tokens["max_model_len"]) == (1, 8192)
