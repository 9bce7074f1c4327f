"""`/v1/images/generations`: what is answered and streamed, what is refused and in which words, what is told of it."""

from __future__ import annotations

import base64
import json
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import msgspec
import numpy as np
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_diffusions import GUIDANCE, LATENT, LONGEST, STEPS, HostedDiffusion, diffusion
from fake_encoders import CLS, SEP, bi_encoder
from fake_server import FakeServer, fake_serving
from headway.api.answers.png import png
from headway.api.openapi import document
from headway.artifacts.files import ModelFiles
from headway.compute.fake_patterns import expected_latent, expected_picture
from headway.core.plan import Encode
from headway.front.limits import ServeLimits
from headway.patterns.image.pattern import preview_places
from headway.story.tell.sentences import brief, tell
from headway.story.tell.views import RequestView
from serving import MODEL, until

IMAGES, SCARCE = "fake-image", "scarce-image"
EMPTY = (CLS, SEP)


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> HostedDiffusion:
    return diffusion(tmp_path_factory.mktemp("images"), IMAGES)


@pytest.fixture(scope="module")
def server(
    smollm2: ModelFiles, hosted: HostedDiffusion, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FakeServer]:
    folder = tmp_path_factory.mktemp("beside")
    scarce = diffusion(folder, SCARCE, latents=0)
    limits = ServeLimits(max_waiting=40, max_waiting_positions=2000)
    with fake_serving(smollm2, limits=limits, encoders=[bi_encoder(folder)], diffusions=[hosted, scarce]) as server:
        until(lambda: server.http.get("/ready").status_code == 200)
        yield server


@pytest.fixture(autouse=True)
def _open_gate(hosted: HostedDiffusion) -> Iterator[None]:
    """A test that fails before a closed gate leaves it open for the next."""
    yield
    hosted.executor.gate.set()


def ask(server: FakeServer, prompt: Any = "a city", *, id: str | None = None, **fields: Any) -> httpx.Response:
    body = {"model": IMAGES, "prompt": prompt} | fields
    return server.http.post("/v1/images/generations", json=body, headers={"x-request-id": id} if id else {})


def good(server: FakeServer, prompt: str = "a city", **fields: Any) -> dict[str, Any]:
    answer = ask(server, prompt, **fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def streamed(answer: httpx.Response) -> list[Any]:
    """The events: their data, each named as its event line names it."""
    events: list[Any] = []
    for block in answer.text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        data = fields["data"] if fields["data"] == "[DONE]" else json.loads(fields["data"])
        assert fields.get("event") == (data.get("type") if isinstance(data, dict) else None)
        events.append(data)
    return events


def said(record: dict[str, Any]) -> str:
    return " ".join(tell(msgspec.convert(record, RequestView)))


def pixels(b64: str) -> tuple[tuple[int, int], bytes]:
    """Size and pixels of a PNG file, read as the specification says it for the rows that are used here."""
    data = base64.b64decode(b64)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        assert zlib.crc32(kind + body) == struct.unpack_from(">I", data, at + 8 + length)[0]
        chunks[kind], at = body, at + 12 + length
    width, height = struct.unpack_from(">II", chunks[b"IHDR"])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + width * 3)
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"] and set(rows[:, 0]) == {2}
    return (width, height), np.cumsum(rows[:, 1:], axis=0, dtype=np.uint8).tobytes()


def tokens(server: FakeServer, text: str) -> tuple[int, ...]:
    return (CLS, *server.http.post("/tokenize", json={"model": IMAGES, "prompt": text}).json()["tokens"], SEP)


def right(server: FakeServer, prompt: str, seed: int, after: int | None = None, **fields: Any) -> bytes:
    """What the executor makes of it, by itself."""
    negative = fields.pop("negative", None)
    asked = {"updates": STEPS, "guidance": GUIDANCE, "width": 16, "height": 16} | fields
    away = (EMPTY if negative is None else tokens(server, negative)) if asked["guidance"] > 1 else ()
    return expected_picture(Encode(0, tokens(server, prompt), seed, negative=away, **asked), after)


# -- what is answered -----------------------------------------------------------------------------------------


def test_an_image_is_a_png_file_in_base64_of_what_the_model_made(server: FakeServer) -> None:
    answer = good(server, seed=7)
    (image,) = answer["data"]
    assert pixels(image["b64_json"]) == ((16, 16), right(server, "a city", 7))
    assert {key: answer[key] for key in ("background", "output_format", "size")} == {
        "background": "opaque", "output_format": "png", "size": "16x16"
    }  # fmt: skip
    told = answer["headway"]["images"]
    assert [(row["seed"], row["steps"], row["guidance"]) for row in told] == [(7, STEPS, GUIDANCE)]


def test_every_setting_reaches_the_model(server: FakeServer) -> None:
    fields = {"seed": -3, "steps": 9, "guidance": 7.5, "negative_prompt": "france", "size": "32x8"}
    (image,) = good(server, "paris", **fields)["data"]
    asked = {"updates": 9, "guidance": 7.5, "negative": "france", "width": 32, "height": 8}
    assert pixels(image["b64_json"]) == ((32, 8), right(server, "paris", -3, **asked))


def test_without_guidance_one_prompt_is_encoded(server: FakeServer, hosted: HostedDiffusion) -> None:
    answer = good(server, seed=1, guidance=1)
    assert pixels(answer["data"][0]["b64_json"])[1] == right(server, "a city", 1, guidance=1.0)
    last = [item for plan in hosted.executor.seen for item in plan.items if isinstance(item, Encode)][-1]
    assert last.negative == () and not last.guided
    assert answer["usage"]["input_tokens"] == len(tokens(server, "a city"))


def test_several_images_are_requests_of_their_own_with_seeds_in_a_row_and_share_their_steps(
    server: FakeServer, hosted: HostedDiffusion
) -> None:
    before = len(hosted.executor.seen)
    answer = good(server, "paris", n=4, seed=10, id="four")
    found = [pixels(image["b64_json"])[1] for image in answer["data"]]
    assert found == [right(server, "paris", seed) for seed in (10, 11, 12, 13)]
    assert [row["id"] for row in answer["headway"]["images"]] == [f"four~{i}" for i in range(4)]
    assert [len(plan.items) for plan in hosted.executor.seen[before:]] == [4] * (STEPS + 2)
    records = server.record("four")["data"]
    assert [record["id"] for record in records] == [f"four~{i}" for i in range(4)]
    assert all(record["parts"][0]["done"] == STEPS + 2 for record in records)


def test_the_seed_is_told_so_that_an_image_can_be_made_again(server: FakeServer) -> None:
    first = good(server)
    again = good(server, seed=first["headway"]["images"][0]["seed"])
    other = good(server)
    assert first["data"] == again["data"] != other["data"]


def test_openais_client_works_unchanged(server: FakeServer) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    answer = client.images.generate(prompt="a city", n=2, size="auto", response_format="b64_json", user="me")
    assert answer.data is not None and len(answer.data) == 2
    assert pixels(answer.data[0].b64_json or "")[0] == (16, 16)
    assert answer.usage is not None and answer.usage.input_tokens == 2 * (len(tokens(server, "a city")) + 2)
    answer = client.images.generate(model=IMAGES, prompt="paris", quality="auto", extra_body={"seed": 3, "steps": 2})
    assert answer.data is not None
    assert pixels(answer.data[0].b64_json or "")[1] == right(server, "paris", 3, updates=2)


def test_answers_fit_the_document(server: FakeServer) -> None:
    found = document({"tokens": MODEL, "pixels": IMAGES}, needs_key=False)["components"]["schemas"]
    schema = {"$ref": "#/components/schemas/Images", "components": {"schemas": found}}
    jsonschema.validate(good(server, n=2, deadline_ms=60_000), schema)
    assert found["ImagesBody"]["properties"]["model"]["examples"] == [IMAGES]
    assert found["ImagesBody"]["properties"]["n"]["maximum"] == 10


def test_a_field_that_asks_for_nothing_counts_as_absent_and_hints_are_named(server: FakeServer) -> None:
    answer = ask(server, background="opaque", quality="auto", moderation="auto", n=None, style=None, user="me")
    assert answer.status_code == 200 and answer.headers["headway-ignored"] == "user"
    assert ask(server, priority=3).headers["headway-ignored"] == "priority"


# -- the stream -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partial", [None, 0, 1, 2, 3])
def test_a_stream_shows_previews_in_order_and_then_the_image(server: FakeServer, partial: int | None) -> None:
    events = streamed(ask(server, seed=5, steps=8, stream=True, partial_images=partial))
    places = preview_places(partial or 0, 8)
    kinds = ["image_generation.partial_image"] * len(places) + ["image_generation.completed"]
    assert [event["type"] for event in events[:-1]] == kinds and events[-1] == "[DONE]"
    *previews, completed, _ = events
    assert [event["partial_image_index"] for event in previews] == list(range(partial or 0))
    shown = [pixels(event["b64_json"])[1] for event in previews]
    assert shown == [right(server, "a city", 5, after, updates=8, previews=True) for after in places]
    assert pixels(completed["b64_json"])[1] == right(server, "a city", 5, updates=8)
    assert completed["usage"]["output_tokens"] == 0
    assert "update;dur=" in completed["headway"]["timing"]


def test_a_stream_of_several_images_says_which_is_meant(server: FakeServer) -> None:
    events = streamed(ask(server, seed=5, n=3, stream=True, partial_images=1))
    completed = {event["index"]: event for event in events[:-1] if event["type"].endswith("completed")}
    assert sorted(completed) == [0, 1, 2] and len(events) == 3 * 2 + 1
    for place, event in completed.items():
        assert pixels(event["b64_json"])[1] == right(server, "a city", 5 + place)


def test_openais_client_reads_the_stream(server: FakeServer) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    stream = client.images.generate(
        model=IMAGES, prompt="paris", stream=True, partial_images=2, extra_body={"seed": 4}
    )
    events = list(stream)
    assert [event.type.rpartition(".")[2] for event in events] == ["partial_image", "partial_image", "completed"]
    assert pixels(events[-1].b64_json)[1] == right(server, "paris", 4)
    assert events[-1].size == "16x16" and events[0].partial_image_index == 0


def test_previews_leave_before_the_image_is_complete(server: FakeServer, hosted: HostedDiffusion) -> None:
    """The gate closes once the first preview was decoded: it is on its way while the next update waits."""
    hosted.executor.gate.clear()
    body = {"model": IMAGES, "prompt": "a city", "stream": True, "partial_images": 1, "steps": 2}
    with server.http.stream("POST", "/v1/images/generations", json=body, headers={"x-request-id": "early"}) as answer:
        lines = answer.iter_lines()
        for _ in range(3):  # encoding, an update, its preview
            hosted.executor.let_one_run()
        until(lambda: hosted.executor.waits)
        assert next(lines) == "event: image_generation.partial_image"
        assert server.record("early")["stage"] == "running"
        hosted.executor.gate.set()
        assert "event: image_generation.completed" in list(lines)


# -- cancelling -----------------------------------------------------------------------------------------------


def test_a_cancelled_image_ends_at_the_next_update_and_its_latent_is_free(
    server: FakeServer, hosted: HostedDiffusion
) -> None:
    hosted.executor.gate.clear()
    answers: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: answers.append(ask(server, id="gone", steps=1000)))
    asking.start()
    until(lambda: hosted.executor.waits)
    cancelling = threading.Thread(target=lambda: server.http.delete("/v1/requests/gone"))
    cancelling.start()
    until(lambda: server.front.story.live.get("gone") is not None)
    hosted.executor.gate.set()
    asking.join(10), cancelling.join(10)
    assert answers[0].status_code == 499 and answers[0].json()["error"]["code"] == "cancelled"
    levels = {row["model"]: row for row in server.http.get("/v1/pool").json()["models"]}
    assert (levels[IMAGES]["live"], levels[IMAGES]["free"]) == (0, 64 * LATENT)
    assert not hosted.executor._latents
    view = server.record("gone")
    assert view["stage"] == "cancelled" and "of 1000 updates" in said(view)


def test_a_client_that_leaves_its_stream_cancels(server: FakeServer, hosted: HostedDiffusion) -> None:
    hosted.executor.gate.clear()
    body = {"model": IMAGES, "prompt": "a city", "stream": True, "steps": 1000}
    with server.http.stream("POST", "/v1/images/generations", json=body, headers={"x-request-id": "left"}):
        until(lambda: hosted.executor.waits)
    hosted.executor.gate.set()
    until(lambda: server.record("left")["stage"] == "cancelled")


# -- what is refused ------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": ""}, "prompt", "the prompt is empty"),
    ({"prompt": " \n"}, "prompt", "the prompt is empty"),
    ({"prompt": "x" * 32_001}, "prompt", "prompt has 32001 characters; the limit is 32000"),
    ({"prompt": 7}, "prompt", "Expected `str`"),
    ({"n": 0}, "n", "n is 0; it must be from 1 to"),
    ({"n": 11}, "n", "n is 11; it must be from 1 to 10"),
    ({"size": "16"}, "size", "size is '16'; it is WIDTHxHEIGHT in pixels, or auto"),
    ({"size": "0x16"}, "size", "size is '0x16'"),
    ({"size": "18x16"}, "size", "16x16, and sides from 8 to 32 that are multiples of 4"),
    ({"size": "1024x1024"}, "size", "size is 1024x1024; fake-image: it makes 16x16"),
    ({"steps": 0}, "steps", "steps is 0; it must be from 1 to"),
    ({"steps": 10_000}, "steps", "steps is 10000; fake-image makes from 1 to 1000"),
    ({"steps": 2.5}, "steps", "Expected `int"),
    ({"guidance": -1}, "guidance", "guidance is -1.0; it must be from 0 to 100"),
    ({"guidance": 1, "negative_prompt": "france"}, "negative_prompt", "only with guidance above 1"),
    ({"deadline_ms": 0}, "deadline_ms", "deadline_ms is 0.0; it must be more than 0"),
    ({"deadline_ms": -5}, "deadline_ms", "it must be more than 0"),
    ({"response_format": "url"}, "response_format", "images are sent as b64_json"),
    ({"output_format": "webp"}, "output_format", "images are sent as png"),
    ({"partial_images": 4, "stream": True}, "partial_images", "partial_images is 4; it must be from 0 to 3"),
    ({"partial_images": 1}, "partial_images", "partial_images requires stream: true"),
    ({"background": "transparent"}, "background", 'leave it out, or send null or "auto" or "opaque"'),
    ({"quality": "hd"}, "quality", "quality is not supported"),
    ({"scheduler": "euler"}, "scheduler", "scheduler is not a known field"),
    ({"num_inference_steps": 5}, "num_inference_steps", "is not a known field"),
    ({"model": "fake-embed"}, "model", "fake-embed makes no images: it evaluates an input once"),
    ({"model": MODEL}, "model", "makes no images: it continues prompts"),
]


@pytest.mark.parametrize("place", range(len(REFUSED)))
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_served_is_refused_by_its_field(server: FakeServer, place: int, stream: bool) -> None:
    fields, param, words = REFUSED[place]
    if stream and "partial_images" in fields:
        return
    answer = ask(server, **({"stream": True} if stream else {}) | fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param and words in error["message"]


def test_a_model_that_is_not_served_is_404(server: FakeServer) -> None:
    assert ask(server, model="dall-e-3").status_code == 404


def test_a_prompt_beyond_the_context_is_told_in_openais_words_with_need_and_limit(server: FakeServer) -> None:
    long = "paris " * LONGEST
    for stream in (False, True):
        error = ask(server, long, id=f"long-{stream}", stream=stream).json()["error"]
        assert error["code"] == "context_length_exceeded" and error["param"] == "prompt"
        assert f"maximum context length is {LONGEST} tokens" in error["message"]
        assert f"resulted in {LONGEST + 2} tokens" in error["message"]
    error = ask(server, "paris", negative_prompt=long).json()["error"]
    assert error["param"] == "negative_prompt"
    assert server.record("long-False")["stage"] == "refused"


def test_an_image_that_the_pool_could_never_hold_is_refused_with_bytes(server: FakeServer) -> None:
    error = ask(server, model=SCARCE).json()["error"]
    assert error["code"] == "never_pool" and error["param"] == "size"
    assert f"keeps {LATENT} bytes while it is made, and the pool has 0" in error["message"]
    assert "--memory" in error["message"]


def test_other_surfaces_name_where_a_diffusion_model_is_asked(server: FakeServer) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/embeddings", {"input": "hi"}),
    ):
        error = server.http.post(path, json={"model": IMAGES} | body).json()["error"]
        assert error["param"] == "model" and "/v1/images/generations" in error["message"]


def test_more_images_than_may_wait_are_429(server: FakeServer, hosted: HostedDiffusion) -> None:
    """Whoever comes while a step stands before the gate waits for its end; 40 may."""
    hosted.executor.gate.clear()
    held = [threading.Thread(target=ask, args=(server,), kwargs={"n": n}) for n in (1, 10, 10, 10, 10)]
    try:
        for thread in held:
            thread.start()
            until(lambda: hosted.executor.waits)
        until(lambda: server.front.waiting == 40)
        answer = ask(server, n=10)
    finally:
        hosted.executor.gate.set()
        for thread in held:
            thread.join(20)
    assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
    assert "40 requests are waiting, and --max-waiting is 40" in answer.json()["error"]["message"]


# -- what is told ---------------------------------------------------------------------------------------------


def test_why_says_which_update_runs_what_is_left_and_when_the_answer_is_due(
    server: FakeServer, hosted: HostedDiffusion
) -> None:
    hosted.executor.gate.clear()
    asking = threading.Thread(target=lambda: ask(server, id="told", steps=20, deadline_ms=60_000))
    asking.start()
    for _ in range(8):
        hosted.executor.let_one_run()
    until(lambda: hosted.executor.waits)
    view = server.record("told")
    hosted.executor.gate.set()
    asking.join(10)
    words = said(view)
    assert brief(msgspec.convert(view, RequestView)) == "update 8 of 20" and "7 of 20 updates done" in words
    assert "In this step: update 8 of 20; then 12 updates and the decoding to pixels." in words
    assert "Deadline: 60.00 s after its arrival, in " in words
    assert view["deadline"]["met"] is None and 0 < view["deadline"]["left_ms"] < 60_000
    view = server.record("told")
    assert view["deadline"]["met"] is True and view["deadline"]["ms"] == 60_000
    assert [each["name"] for each in view["intervals"] if each["name"] != "queued"] == [
        "received", "encode", "update", "decode_pixels", "delivery"
    ]  # fmt: skip


def test_a_running_image_can_be_looked_at_between_steps_and_only_then(
    server: FakeServer, hosted: HostedDiffusion
) -> None:
    def preview(id: str) -> httpx.Response:
        return server.http.get(f"/v1/requests/{id}/preview")

    hosted.executor.gate.clear()
    asking = threading.Thread(target=lambda: ask(server, id="seen", seed=4, steps=9))
    asking.start()
    for _ in range(3):
        hosted.executor.let_one_run()
    until(lambda: hosted.executor.waits)
    found: list[httpx.Response] = []
    looking = threading.Thread(target=lambda: found.append(preview("seen")))
    looking.start()
    looking.join(0.3)
    assert looking.is_alive(), "a step stands before the gate"
    hosted.executor.let_one_run()
    looking.join(10)
    (looked,) = found
    assert looked.status_code == 200 and looked.headers["content-type"] == "image/png"
    assert looked.headers["cache-control"] == "no-store"
    done, of = map(int, looked.headers["headway-update"].split("/"))
    assert of == 9 and done in (2, 3), "taken after the step's run, before or after its commit"
    size, shown = pixels(base64.b64encode(looked.content).decode())
    asked = Encode(0, tokens(server, "a city"), 4, 9, EMPTY, GUIDANCE, width=16, height=16)
    assert size == (1, 1) and shown in (expected_latent(asked, 2)[:3], expected_latent(asked, 3)[:3])
    hosted.executor.gate.set()
    asking.join(10)
    for id, words in (("seen", "seen is finished: it has no latent"), ("nobody", "no request 'nobody'")):
        answer = preview(id)
        assert answer.status_code == 404 and words in answer.json()["error"]["message"]
    good(server, id="both", n=2)
    answer = preview("both")
    assert answer.status_code == 400 and "2 images have that id; ask for one of them (both~0" in answer.text


def test_a_deadline_that_passes_is_told_and_never_forgotten(server: FakeServer, hosted: HostedDiffusion) -> None:
    hosted.executor.gate.clear()
    answers: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: answers.append(good(server, id="late", deadline_ms=1)))
    asking.start()
    until(lambda: hosted.executor.waits)
    until(lambda: server.record("late").get("deadline", {}).get("met") is False)
    hosted.executor.gate.set()
    asking.join(10)
    told = answers[0]["headway"]["images"][0]["deadline"]
    assert told["met"] is False and told["left_ms"] < 0
    assert told["ms"] == 1 and "Deadline: 1.0 ms after its arrival, missed by" in said(server.record("late"))


def test_three_patterns_share_one_server_and_every_answer_is_right(server: FakeServer) -> None:
    def text() -> None:
        assert server.complete([5] * 20, max_tokens=30).status_code == 200

    def vectors() -> None:
        body = {"model": "fake-embed", "input": ["paris is a city"] * 3}
        assert server.http.post("/v1/embeddings", json=body).status_code == 200

    def pictures() -> None:
        found = good(server, "paris", seed=2, n=2, steps=20)["data"]
        assert [pixels(image["b64_json"])[1] for image in found] == [
            right(server, "paris", seed, updates=20) for seed in (2, 3)
        ]

    failed: list[BaseException] = []

    def kept(work: Any) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=kept, args=(work,)) for work in (text, vectors, pictures) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failed == []


def test_of_three_models_why_says_who_waited_for_anothers_step(server: FakeServer, hosted: HostedDiffusion) -> None:
    """While the image model's step stands before the gate, the others are asked for something."""
    hosted.executor.gate.clear()
    vectors = {"model": "fake-embed", "input": "paris is a city"}
    headers = {"x-request-id": "beside-embed"}
    asking = [
        threading.Thread(target=lambda: ask(server, id="beside-image", steps=6)),
        threading.Thread(target=lambda: server.complete([5] * 20, id="beside-text", max_tokens=400, ignore_eos=True)),
        threading.Thread(target=lambda: server.http.post("/v1/embeddings", json=vectors, headers=headers)),
    ]
    asking[0].start()
    until(lambda: hosted.executor.waits)
    for thread in asking[1:]:
        thread.start()
    until(lambda: {"beside-text", "beside-embed"} <= server.front.story.live.keys())
    hosted.executor.gate.set()
    for thread in asking:
        thread.join(20)
    stories = {each: server.record(f"beside-{each}") for each in ("image", "text", "embed")}
    assert {each: story["stage"] for each, story in stories.items()} == dict.fromkeys(stories, "finished")
    for story in stories.values():
        assert abs(sum(each["ms"] for each in story["intervals"]) - story["elapsed_ms"]) < 1e-3
    passed = [story for story in stories.values() if any(each.get("rule") == "model" for each in story["intervals"])]
    assert passed and all(" for turn, model" in said(story) for story in passed)


def test_the_panel_and_the_list_of_models_say_what_is_made(server: FakeServer) -> None:
    entry = server.http.get(f"/v1/models/{IMAGES}").json()
    assert entry["max_model_len"] == LONGEST and entry["headway"]["pattern"] == "image"


# -- PNG ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(1, 9), st.randoms(use_true_random=False))
def test_a_png_file_holds_the_pixels_that_went_in(width: int, height: int, random: Any) -> None:
    data = bytes(random.randrange(256) for _ in range(width * height * 3))
    assert pixels(base64.b64encode(png(width, height, data)).decode()) == ((width, height), data)


def test_pillow_reads_the_same(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    data = np.random.default_rng(3).integers(0, 256, 64 * 48 * 3, np.uint8).tobytes()
    (tmp_path / "a.png").write_bytes(png(64, 48, data))
    read = image.open(tmp_path / "a.png")
    assert (read.mode, read.size, read.tobytes()) == ("RGB", (64, 48), data)
