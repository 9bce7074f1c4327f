"""What HTTP lets clients send in several ways: marks, compressed bodies, absolute targets, slashes at the end."""

from __future__ import annotations

import gzip
import json
import random
import socket
import time
import zlib
from collections.abc import Callable, Iterator

import httpx
import pytest
from openai import OpenAI

from fake_server import FakeServer, fake_serving
from headway.artifacts.files import ModelFiles
from headway.front.guard import Guard
from headway.front.limits import ServeLimits
from serving import MODEL

BODY_BYTES = 1 << 20
COMMENT_S = 0.2
BODY = json.dumps({"model": MODEL, "prompt": [5], "max_tokens": 1}).encode()


@pytest.fixture(scope="module")
def server(smollm2: ModelFiles) -> Iterator[FakeServer]:
    limits = ServeLimits(max_body_bytes=BODY_BYTES, comment_seconds=COMMENT_S, max_waiting_positions=100_000)
    with fake_serving(smollm2, limits=limits, guard=Guard(loopback=True)) as server:
        yield server


def post(server: FakeServer, content: bytes | Iterator[bytes], coding: str | None = None) -> httpx.Response:
    headers = {} if coding is None else {"content-encoding": coding}
    return server.http.post("/v1/completions", content=content, headers=headers)


def bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


# -- bodies ---------------------------------------------------------------------------------------------------


def test_a_byte_order_mark_is_ignored(server: FakeServer) -> None:
    assert post(server, b"\xef\xbb\xbf" + BODY).status_code == 200
    assert post(server, b"\xef\xbb\xbf" * 2 + BODY).status_code == 400


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress), "upper case": ("GZip", gzip.compress), "x-gzip": ("x-gzip", gzip.compress),
    "zlib": ("deflate", zlib.compress), "bare deflate": ("deflate", bare_deflate), "identity": ("identity", bytes),
    "identity and gzip": ("identity, gzip", gzip.compress), "nothing": ("", bytes),
}  # fmt: skip


@pytest.mark.parametrize("name", PACKERS)
def test_a_compressed_body_is_read_as_it_was_before(server: FakeServer, name: str) -> None:
    coding, pack = PACKERS[name]
    large = json.dumps({"model": MODEL, "prompt": [5] * 50_000, "max_tokens": 1, "user": "u" * 700_000}).encode()
    for body in (BODY, large):
        answer = post(server, pack(body), coding)
        assert answer.status_code == 200 and answer.json()["usage"]["prompt_tokens"] in (1, 50_000), answer.text
    by_byte = post(server, (bytes([one]) for one in pack(BODY)), coding)
    assert by_byte.status_code == 200


def test_a_compressed_body_of_any_size_ends_where_it_ended(server: FakeServer) -> None:
    """Sizes around the pieces in which it is inflated, of data that packs well and of data that does not."""
    noise = random.Random(1).randbytes(300_000).hex()
    for length in ((256 << 10) - 1, 256 << 10, (256 << 10) + 1, 512 << 10):
        for filling in ("u" * length, noise[:length]):
            frame = len(json.dumps({"model": MODEL, "prompt": [5], "max_tokens": 1, "user": ""}))
            body = {"model": MODEL, "prompt": [5], "max_tokens": 1, "user": filling[: length - frame]}
            assert post(server, gzip.compress(json.dumps(body).encode()), "gzip").status_code == 200


def test_a_bomb_is_refused_without_inflating_past_the_bound(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.front import coding

    inflated, real = [], zlib.decompressobj

    class Watched:
        def __init__(self, window: int) -> None:
            self._stream = real(window)

        def decompress(self, data: bytes, most: int) -> bytes:
            inflated.append(len(piece := self._stream.decompress(data, most)))
            return piece

        def __getattr__(self, name: str) -> object:
            return getattr(self._stream, name)

    monkeypatch.setattr(coding.zlib, "decompressobj", Watched)
    bomb = gzip.compress(b" " * (64 << 20))
    assert len(bomb) < BODY_BYTES
    answer = post(server, bomb, "gzip")
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "body_too_large"
    assert "once inflated, and --max-body is 1048576" in answer.json()["error"]["message"]
    assert sum(inflated) <= BODY_BYTES + (256 << 10)
    packed = post(server, b"\0" * (BODY_BYTES + 1), "gzip")
    assert packed.status_code == 413, "the bytes that come are bounded too"


@pytest.mark.parametrize(
    ("coding", "content", "why"),
    [
        ("gzip", gzip.compress(BODY, mtime=0)[:-1], "it is cut off"),
        ("gzip", gzip.compress(BODY, mtime=0)[:5], "it is cut off"),
        ("gzip", b"\x1f", "it is cut off"),
        ("deflate", zlib.compress(BODY)[:-1], "it is cut off"),
        ("gzip", gzip.compress(BODY, mtime=0) + b"x", "something follows its end"),
        ("deflate", bare_deflate(BODY) + b"\0", "something follows its end"),
        ("gzip", BODY, "incorrect header check"),
        ("gzip", gzip.compress(BODY, mtime=0)[:-8] + b"\0" * 8, "incorrect data check"),
        ("deflate", b"\x78\x9c" + b"\xff" * 20, "invalid block type"),
    ],
)
def test_a_broken_stream_is_400_and_says_what_is_wrong(
    server: FakeServer, coding: str, content: bytes, why: str
) -> None:
    for answer in (post(server, content, coding), post(server, (bytes([one]) for one in content), coding)):
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == "body" and why in error["message"] and coding in error["message"]
    assert server.complete([5], max_tokens=1).status_code == 200


@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "chunked"])
def test_another_coding_is_415_with_those_that_are_understood(server: FakeServer, coding: str) -> None:
    answer = post(server, BODY, coding)
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "gzip, deflate")
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "unsupported_content_encoding")
    assert repr(coding) in error["message"]
    assert server.http.get("/v1/models", headers={"content-encoding": coding}).status_code == 200, "it has no body"


def test_a_body_that_was_compressed_twice_is_400(server: FakeServer) -> None:
    twice = gzip.compress(gzip.compress(BODY, mtime=0))
    assert post(server, twice, "gzip, gzip").status_code == 400
    headers = [("content-encoding", "gzip"), ("content-encoding", "deflate")]
    assert server.http.post("/v1/completions", content=twice, headers=headers).status_code == 400


def test_an_empty_body_is_empty_whatever_its_coding(server: FakeServer) -> None:
    for answer in (post(server, b"", "gzip"), post(server, iter([b""]), "gzip")):
        assert answer.status_code == 400 and "must be a JSON object" in answer.json()["error"]["message"]


# -- targets --------------------------------------------------------------------------------------------------


def ask(server: FakeServer, target: str, host: str = "localhost", method: str = "GET", body: bytes = b"") -> bytes:
    """What comes back for a target that is sent as it is."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        data = b""
        while piece := connection.recv(65536):
            data += piece
        return data


def test_a_target_in_absolute_form_is_answered_as_its_path(server: FakeServer) -> None:
    for target in ("http://localhost/v1/models", "HTTP://127.0.0.1:1/v1/models", "https://localhost/v1/models"):
        assert ask(server, target).startswith(b"HTTP/1.1 200 "), target
    assert ask(server, "http://localhost/v1/requests?limit=0").startswith(b"HTTP/1.1 400 "), "the query is kept"
    assert ask(server, "http://localhost").startswith(b"HTTP/1.1 200 "), "an empty path is /"
    assert ask(server, "http://localhost/v1/completions", method="POST", body=BODY).startswith(b"HTTP/1.1 200 ")
    proxied = httpx.get(f"{server.url}/v1/models", proxy=server.url, trust_env=False)
    assert proxied.json()["data"][0]["id"] == MODEL, "a client that takes the server for a proxy"


def test_the_host_of_an_absolute_target_counts_and_not_the_header_s(server: FakeServer) -> None:
    refused = ask(server, "http://evil.example/v1/models", host="localhost")
    assert refused.startswith(b"HTTP/1.1 403 ") and b"'evil.example'" in refused
    assert ask(server, "http://localhost/v1/models", host="evil.example").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("target", ["ftp://localhost/", "http:///x", "http://u@localhost/", "v1/models", "a:1", "*"])
def test_a_target_that_is_neither_path_nor_url_is_400(server: FakeServer, target: str) -> None:
    answer = ask(server, target)
    code = b"invalid_http" if target in ("v1/models", "a:1") else b"invalid_target"  # what the grammar excludes
    assert answer.startswith(b"HTTP/1.1 400 ") and code in answer


ROUTES = [
    ("GET", "/v1/models"), ("GET", f"/v1/models/{MODEL}"), ("GET", "/v1/requests"), ("GET", "/v1/requests/r-1"),
    ("DELETE", "/v1/requests/r-1"), ("GET", "/v1/pool"), ("GET", "/metrics"), ("GET", "/health"), ("GET", "/ready"),
    ("GET", "/openapi.json"), ("GET", "/v1/events"), ("POST", "/v1/completions"), ("POST", "/v1/chat/completions"),
    ("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/page/main.js"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_slash_at_the_end_leads_to_the_route_without(server: FakeServer, method: str, path: str) -> None:
    for slashes in ("/", "//"):
        answer = server.http.request(
            method, f"{path}{slashes}?until=now&x=%2F", content=BODY if method == "POST" else b""
        )
        assert (answer.status_code, answer.headers["location"]) == (307, f"{path}?until=now&x=%2F")


def test_whoever_follows_gets_the_answer(server: FakeServer) -> None:
    answer = server.http.post("/v1/completions/", content=BODY, follow_redirects=True)
    assert answer.status_code == 200 and answer.json()["object"] == "text_completion"
    client = OpenAI(base_url=f"{server.url}/v1/", api_key="none")
    assert client.post("/completions/", body=json.loads(BODY), cast_to=dict)["object"] == "text_completion"


@pytest.mark.parametrize(
    "path", ["//evil.example/", "//evil.example/v1/models/", "/\\evil.example/", "/%2Fevil.example/", "/nowhere/",
             "//v1/models/", "/v1/models%2F"],
)  # fmt: skip
def test_no_slash_leads_anywhere_else(server: FakeServer, path: str) -> None:
    answer = ask(server, path)
    assert answer.startswith(b"HTTP/1.1 404 ") and b"location:" not in answer.lower()


# -- time -----------------------------------------------------------------------------------------------------


def test_a_stream_that_waits_says_so_in_comments_that_clients_skip(server: FakeServer) -> None:
    """Before its first token and between two. The story's time is that of the wait, and nothing was delivered."""
    body = json.loads(BODY) | {"stream": True, "max_tokens": 3}
    server.executor.gate.clear()
    began = time.monotonic()
    lines = []
    with server.http.stream("POST", "/v1/completions", json=body, headers={"x-request-id": "waits"}) as response:
        for line in response.iter_lines():
            lines += [line] if line else []
            if lines.count(": still here") == 3:
                if "waiting" not in locals():
                    waiting = server.record("waits")
                    assert server.front.stuck_s() > 0.5 * COMMENT_S, "a comment is no progress"
                server.executor.gate.set()
    assert lines[:3] == [": still here"] * 3 and time.monotonic() - began > 3 * COMMENT_S
    assert [line for line in lines if not line.startswith("data: ")] == lines[:3]
    assert lines[-1] == "data: [DONE]"
    names = [interval["name"] for interval in waiting["intervals"]]
    assert names[0] == "received" and names[-1] == "prefill" and "delivery" not in names
    record = server.record("waits")
    assert "delivery" not in [interval["name"] for interval in record["intervals"][:-1]]
    assert sum(interval["ms"] for interval in record["intervals"]) == pytest.approx(record["elapsed_ms"], abs=1e-3)


def test_the_openai_client_takes_no_comment_for_an_event(server: FakeServer) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    messages = [{"role": "user", "content": "hi"}]
    server.executor.gate.clear()
    try:
        stream = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=3, stream=True)  # type: ignore[call-overload]
        time.sleep(2.5 * COMMENT_S)
    finally:
        server.executor.gate.set()
    chunks = list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_a_quiet_event_stream_says_so_too(server: FakeServer) -> None:
    with server.http.stream("GET", "/v1/events?after=now") as response:
        assert next(response.iter_lines()) == ": still here"


def test_a_connection_outlives_those_of_common_proxies_between_requests(server: FakeServer) -> None:
    """60 s with nginx, AWS and Apache: the proxy must be the one that ends an idle connection."""
    assert ServeLimits().keep_alive_seconds == server.server.config.timeout_keep_alive == 75
