"""What there is to decode in a body is counted while it arrives, so that no body holds the event loop for long."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_server import FakeServer, fake_serving
from headway.artifacts.files import ModelFiles
from headway.front.jsonsize import JsonSize
from headway.front.refusals import Refusal
from serving import MODEL

MIB = 1 << 20
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
STRINGS_OF_MARKS = st.text(alphabet='",:[]{}\\\n', max_size=20)


def separators(value: Any) -> dict[str, int]:
    """Counted on the value itself: openings and commas bound its values from above."""
    nested = members = commas = 0
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, list | dict):
            nested += 1
            commas += max(0, len(one) - 1)
            members += len(one) if isinstance(one, dict) else 0
            stack += one.values() if isinstance(one, dict) else one
    return {"values": nested + commas, "lists and objects": nested, "members of objects": members}


@settings(max_examples=60)
@given(
    value=st.recursive(
        JSON | STRINGS_OF_MARKS, lambda inner: st.lists(inner) | st.dictionaries(STRINGS_OF_MARKS, inner)
    ),
    ascii=st.booleans(),
    cuts=st.lists(st.integers(0, 400), max_size=6),
)
def test_what_stands_outside_strings_is_counted_however_the_bytes_are_cut(
    value: Any, ascii: bool, cuts: list[int]
) -> None:
    data = json.dumps(value, ensure_ascii=ascii).encode()
    size = JsonSize(1 << 30)
    at = 0
    for cut in sorted(cuts):
        size.add(data[at:cut])
        at = max(at, cut)
    size.add(data[at:])
    for what, count in separators(value).items():
        assert size.counts[what] == count


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"[" + b"1," * 100 + b"1]", "100 values"),
        (b'{"a":' * 200_000, "values"),
        (b"[" * (1 << 17) + b"[", "131072 lists and objects"),
        (b'{"":1},' * (1 << 16), "100 values"),
        (b"1" * ((1 << 16) + 33), "65536 digits in numbers of more than 32"),
        ((b"-1." + b"1" * 1056 + b",") * 65, "65536 digits in numbers of more than 32"),
    ],
)
def test_what_is_too_much_is_refused_however_the_bytes_are_cut(data: bytes, what: str) -> None:
    for step in (len(data), 1000, 7):
        size = JsonSize(100 if what == "values" or "100" in what else 1 << 30)
        with pytest.raises(Refusal, match=what) as refused:
            for at in range(0, len(data), step):
                size.add(data[at : at + step])
        assert refused.value.status == 413


def test_no_number_of_digits_is_counted_twice_however_the_bytes_are_cut() -> None:
    data = b",".join(b"1" * length for length in range(80))
    for step in range(1, 90):
        size = JsonSize(1 << 30)
        for at in range(0, len(data), step):
            size.add(data[at : at + step])
        assert size.counts["digits in numbers of more than 32"] == sum(range(48))


def test_strings_of_any_content_are_never_too_much() -> None:
    size = JsonSize(10)
    for text in ("," * 100_000, "[{:" * 100_000, "1" * 100_000, '\\"' * 100_000, "\\" * 99_999):
        size.add(json.dumps([text]).encode())
    assert size.counts["values"] == 5


# -- the loop -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(smollm2: ModelFiles) -> Iterator[FakeServer]:
    with fake_serving(smollm2) as server:
        yield server


def longest_stall_s(server: FakeServer, path: str, body: bytes, **headers: str) -> tuple[int, float]:
    """The status of the answer, and how long the event loop went round once at most meanwhile."""
    stalls: list[float] = []
    over = threading.Event()

    async def watch() -> None:
        while not over.is_set():
            last = time.monotonic()
            await asyncio.sleep(0.001)
            stalls.append(time.monotonic() - last)

    watching = asyncio.run_coroutine_threadsafe(watch(), server.server.servers[0].get_loop())
    answer = server.http.post(
        path, content=body, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    over.set()
    watching.result(10)
    return answer.status_code, max(stalls)


def quickest_stall_s(server: FakeServer, status: int, body: bytes, **headers: str) -> float:
    """Of a few tries: what other work on the machine adds to one is not in all of them."""
    tries = []
    while not tries or (tries[-1] >= 0.5 and len(tries) < 5):
        found, stall_s = longest_stall_s(server, "/v1/completions", body, **headers)
        assert found == status
        tries.append(stall_s)
    return min(tries)


HEAD = b'{"model":"%s","max_tokens":1,"prompt":' % MODEL.encode()
MILLION = b",".join([b"12345"] * (1 << 20))
BODIES = {
    "32 MiB of numbers": (413, HEAD + b"[" + b"1," * (16 * MIB - 100) + b"1]}"),
    "32 MiB of lists": (413, HEAD + b"[" + b"[]," * (10 * MIB) + b"[]]}"),
    "32 MiB of objects": (413, HEAD + b"[" + b'{"a":1},' * (4 * MIB - 100) + b"1]}"),
    "32 MiB of digits": (413, HEAD + b"[" + (b"1" * 4000 + b",") * 8000 + b"1]}"),
    "32 MiB of long numbers": (413, HEAD + b"[" + (b"1" * 39 + b",") * 800_000 + b"1]}"),
    "a million token ids": (400, HEAD + b"[" + MILLION + b"]}"),
    "as many lists as may be": (400, HEAD + b"[" + b"[]," * 130_000 + b"[]]}"),
    "as many names as may be": (400, HEAD + b"{" + b",".join(b'"%d":1' % i for i in range(260_000)) + b"}}"),
}


@pytest.mark.parametrize("kind", BODIES)
def test_no_body_holds_the_loop_for_long(server: FakeServer, kind: str) -> None:
    """The bodies of 32 MiB held it for 0.6 to 8 s when they were decoded. What is left of that, the decoding of as
    many values as are decoded at all, takes up to 0.1 s; the bound leaves room for a busy machine."""
    status, body = BODIES[kind]
    assert quickest_stall_s(server, status, body) < 0.5


def test_a_compressed_body_holds_it_no_longer(server: FakeServer) -> None:
    """32 MiB of spaces are 32 KiB to send: inflated in one go they would take a tenth of a second and more."""
    body = gzip.compress(HEAD + b" " * (32 * MIB - 200) + b"[5]}")
    assert quickest_stall_s(server, 200, body, content_encoding="gzip") < 0.5


def test_a_large_text_is_no_large_number_of_values(server: FakeServer) -> None:
    text = json.dumps({"prompt": 'a,b:[c]{d}"' * 10_000}).encode()
    assert server.http.post("/tokenize", content=text).status_code == 200
