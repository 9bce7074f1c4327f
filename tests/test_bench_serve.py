"""`headway bench serve`: its arithmetic by hand, its loads, and what it says of servers that answer, fail or are not
there."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy
import pytest

from fake_server import FakeServer, fake_serving
from headway.bench.serve.arrivals import Recorded, poisson, read_trace, trace_asks
from headway.bench.serve.asks import WORDS, Ask, Lengths, random_asks, random_words, read_prompts
from headway.bench.serve.drive import open_loop
from headway.bench.serve.figures import Answer, Failure, Limits, percentile, summary
from headway.bench.serve.streaming import Target, ask_once
from headway.cli import main
from headway.core.errors import ConfigError
from headway.text.tokenizer import Tokenizer

# -- arithmetic -----------------------------------------------------------------------------------------------

#: Due at 10 s, sent 5 ms late; the first text after 100 ms, gaps of 20, 40 and 90 ms, and an end that has no text.
FOUR = Answer(10.0, 10.005, (10.100, 10.120, 10.160, 10.250), 10.280, 4, prompt_tokens=7)
ONE = Answer(10.0, 10.0, (10.300,), 10.310, 1, prompt_tokens=5)
EMPTY = Answer(10.0, 10.0, (), 10.050, 1, prompt_tokens=5)
FAILED = Failure(10.0, 10.0, 11.0, "429: full")


def test_the_times_of_one_answer_by_hand() -> None:
    assert FOUR.ttft_ms == pytest.approx(100)
    assert FOUR.e2el_ms == pytest.approx(280)
    assert FOUR.tpot_ms == pytest.approx((280 - 100) / 3)
    assert FOUR.gaps_ms == pytest.approx([20, 40, 90])


def test_one_token_has_no_time_per_token_and_no_text_no_first_one() -> None:
    assert ONE.ttft_ms == pytest.approx(300) and ONE.tpot_ms is None and ONE.gaps_ms == []
    assert EMPTY.ttft_ms is None and EMPTY.tpot_ms is None


def test_the_figures_of_a_load_by_hand() -> None:
    found = summary([FOUR, ONE, FAILED], Limits(ttft_ms=200))
    assert (found["requests"], found["finished"], found["failed"], found["one_token"], found["empty"]) == (
        3,
        2,
        1,
        1,
        0,
    )
    assert found["seconds"] == pytest.approx(1.0)
    assert found["output_tokens"] == 5 and found["output_tok_s"] == pytest.approx(5.0)
    assert found["prompt_tokens"] == 12
    assert found["tpot_ms"]["mean"] == pytest.approx(60) == found["tpot_ms"]["max"]
    assert found["itl_ms"]["p50"] == pytest.approx(40) and found["itl_ms"]["max"] == pytest.approx(90)
    assert found["itl_ms"]["p99"] == pytest.approx(40 + 0.98 * 50)
    assert found["ttft_ms"]["p50"] == pytest.approx(200)
    assert found["late_ms"]["max"] == pytest.approx(5)
    assert found["errors"] == {"429: full": 1}
    assert found["goodput"] == pytest.approx({"requests_per_s": 1.0, "output_tok_s": 4.0, "share": 1 / 3})


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        (Limits(tpot_ms=59), 1),  # FOUR has 60; ONE has none, which is within any limit
        (Limits(tpot_ms=61), 2),
        (Limits(gap_ms=89), 1),
        (Limits(e2el_ms=300), 1),
        (Limits(ttft_ms=99), 0),
        (Limits(ttft_ms=101, tpot_ms=59), 0),
    ],
)
def test_goodput_counts_answers_within_every_limit(limits: Limits, good: int) -> None:
    assert summary([FOUR, ONE], limits)["goodput"]["share"] == good / 2


def test_without_limits_there_is_no_goodput() -> None:
    assert summary([FOUR], Limits())["goodput"] is None


@pytest.mark.parametrize("values", [[3.0], [2.0, 1.0], [5.0, 1.0, 9.0, 4.0], [0.1 * i * i for i in range(101)]])
@pytest.mark.parametrize("percent", [0, 50, 90, 99, 100])
def test_percentiles_are_numpys(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(float(numpy.percentile(values, percent)))


# -- loads ----------------------------------------------------------------------------------------------------


def test_poisson_arrivals_have_the_rate_the_spread_and_the_seed() -> None:
    def arrivals(seed: int) -> list[float]:
        return [ask.at_s or 0.0 for ask in poisson([Ask("a", 1)] * 4000, 20.0, seed)]

    gaps = [after - before for before, after in pairwise(arrivals(1))]
    assert arrivals(1)[0] == 0 and arrivals(1) == arrivals(1) != arrivals(2)
    # The mean and the deviation of exponential gaps are both 1/rate; five standard errors of 4,000 draws.
    assert numpy.mean(gaps) == pytest.approx(0.05, rel=0.08)
    assert numpy.std(gaps) == pytest.approx(0.05, rel=0.12)


def test_an_infinite_rate_asks_all_at_once() -> None:
    assert [ask.at_s for ask in poisson([Ask("a", 1)] * 3, float("inf"), 1)] == [0, 0, 0]


def test_random_words_have_about_as_many_tokens_as_words(smollm2: Any) -> None:
    encode = Tokenizer(smollm2).encode
    assert len(set(WORDS)) == len(WORDS) > 90
    for count in (1, 64, 500):
        assert abs(len(encode(random_words(count, "a"))) - count) <= 1


def test_random_prompts_are_new_each_and_the_same_again_with_the_seed() -> None:
    def first(seed: int) -> list[Ask]:
        return list(islice(random_asks(Lengths(8, 12), Lengths(3, 3), seed), 50))

    assert first(1) == first(1) != first(2)
    assert len({ask.prompt for ask in first(1)}) == 50
    assert {len(str(ask.prompt).split()) for ask in first(1)} == {8, 9, 10, 11, 12}


def test_an_azure_trace_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
        "2023-11-16 18:15:51.2224670,879,55\n"
    )
    assert read_trace(path, 2) == [Recorded(0.0, 374, 44), Recorded(pytest.approx(4.314579), 396, 109)]


def test_a_mooncake_trace_keeps_which_prompts_begin_alike(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [(0, 700, 5, [0, 1]), (3000, 1100, 6, [0, 1, 2]), (9000, 600, 9, [7, 8])]
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    first, second, third = trace_asks(read_trace(path, 9), speed=2, max_input=1 << 20, max_output=6)
    assert [ask.at_s for ask in (first, second, third)] == [0, 1.5, 4.5]
    assert [len(str(ask.prompt).split()) for ask in (first, second, third)] == [700, 1100, 600]
    assert str(second.prompt).split()[:512] == str(first.prompt).split()[:512] != str(third.prompt).split()[:512]
    assert [ask.max_tokens for ask in (first, second, third)] == [5, 6, 6]


def test_a_traces_prompts_are_cut() -> None:
    (ask,) = trace_asks([Recorded(0, 5000, 9, (1, 2, 3))], 1, max_input=600, max_output=9)
    assert len(str(ask.prompt).split()) == 600


def test_prompts_are_read_from_lines_and_from_json_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n two\n")
    assert read_prompts(tmp_path / "a.txt") == ["one", " two"]
    messages = [{"role": "user", "content": "four"}]
    rows: list[Any] = [
        "one",
        {"prompt": "two"},
        {"turns": ["three", "later"]},
        {"messages": messages},
        {"text": "five"},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read_prompts(tmp_path / "a.jsonl") == ["one", "two", "three", tuple(messages), "five"]


@pytest.mark.parametrize(
    ("name", "text"), [("a.jsonl", "{"), ("b.jsonl", '{"q": 1}'), ("c.txt", "\n"), ("d.txt", None)]
)
def test_a_file_without_prompts_is_refused_by_name(tmp_path: Path, name: str, text: str | None) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=rf"--prompts: .*{name}"):
        read_prompts(tmp_path / name)


# -- servers --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(smollm2: Any) -> Iterator[FakeServer]:
    with fake_serving(smollm2) as server:
        yield server


def bench(capsys: pytest.CaptureFixture[str], server: FakeServer, *words: str) -> dict[str, Any]:
    assert main(["bench", "serve", "--url", server.url, "--json", *words]) == 0, capsys.readouterr().err
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_a_closed_loop_counts_what_the_server_counts(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--concurrent", "1,4", "--requests", "6", "--input", "20-30", "--output", "5", "--warmup", "0")
    before = server.sample("headway_emitted_tokens_total")
    result = bench(capsys, server, *words, "--limit-ttft-ms", "60000")
    assert server.sample("headway_emitted_tokens_total") - before == 60
    assert result["endpoint"] == "completions" and result["fields"] == {"temperature": 0.0, "ignore_eos": True}
    for row, concurrent in zip(result["rows"], (1, 4), strict=True):
        assert (row["finished"], row["output_tokens"], row["concurrent"]) == (6, 30, concurrent)
        assert row["tokens_from"] == "usage" and 6 * 19 <= row["prompt_tokens"] <= 6 * 31
        assert row["goodput"]["share"] == 1


def test_an_open_loop_answers_chats_and_says_so(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--rate", "200", "--requests", "8", "--output", "1", "--ignore-eos", "--warmup", "0")
    result = bench(capsys, server, *words)
    row = result["rows"][0]
    assert result["endpoint"] == "chat/completions"
    assert (row["finished"], row["one_token"], row["tpot_ms"]) == (8, 8, None)
    assert main(["bench", "serve", "--url", server.url, *words]) == 0
    shown = capsys.readouterr().out
    assert "8 of 8 answers have one token and no TPOT" in shown and "200/s" in shown


def test_a_trace_is_replayed(server: FakeServer, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "short.csv"
    stamp = "2023-11-16 18:15:46.{:02}00000"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{stamp.format(i)},9,3\n" for i in range(4))
    )
    row = bench(capsys, server, "--trace", str(path))["rows"][0]
    assert (row["load"], row["requests"], row["output_tokens"]) == ("short × 1", 4, 12)


def test_a_request_counts_from_when_it_was_due(server: FakeServer) -> None:
    """A client that cannot send in time hides nothing: the second ask is due while the loop is held up."""

    async def drive() -> list[Any]:
        asyncio.get_running_loop().call_soon(time.sleep, 0.3)
        target = Target(server.url, server.model.name, chat=False)
        return await open_loop(target, [Ask("a", 1, 0.0), Ask("b", 1, 0.05)], lambda: None)

    _, second = asyncio.run(drive())
    assert second.ttft_ms > 200 and 1e3 * (second.sent_s - second.due_s) > 200


class Says(BaseHTTPRequestHandler):
    """A server that streams `lines`, pausing where one is a number of seconds, or answers `status`."""

    lines: tuple[bytes | float, ...] = ()
    status = 200

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.status)
        self.end_headers()
        for line in self.lines:
            if isinstance(line, float):
                time.sleep(line)
            else:
                self.wfile.write(line)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def answer(status: int, *lines: bytes | float, timeout_s: float = 30) -> Answer | Failure:
    handler = type("Saying", (Says,), {"lines": lines, "status": status})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as said:
        threading.Thread(target=said.serve_forever, args=(0.02,), daemon=True).start()
        target = Target(f"http://127.0.0.1:{said.server_address[1]}", "m", chat=True, timeout_s=timeout_s)
        end = asyncio.run(ask_once(target, Ask("a", 3), time.perf_counter()))
        said.shutdown()
        return end


def data(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(**fields: Any) -> bytes:
    return data(choices=[{"index": 0, "delta": fields, "finish_reason": None}])


def test_the_first_token_is_the_first_text_not_the_role() -> None:
    """The role's chunk, as OpenAI sends it first, says nothing. A loaded machine may lengthen the pauses, never
    shorten them."""
    text = (delta(content="a"), 0.1, delta(content="b"), data(choices=[{"delta": {}, "finish_reason": "stop"}]))
    usage = data(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 3})
    end = answer(200, delta(role="assistant", content=""), 0.1, *text, usage, b"data: [DONE]\n\n")
    assert isinstance(end, Answer) and end.ttft_ms is not None
    assert end.ttft_ms > 95 and len(end.gaps_ms) == 1 and end.gaps_ms[0] > 95
    assert (end.tokens, end.prompt_tokens, end.counted) == (3, 9, True)


def test_reasoning_counts_as_text_and_chunks_as_tokens_without_usage() -> None:
    end = answer(200, delta(reasoning_content="hm"), delta(content="a"), b"data: [DONE]\n")
    assert isinstance(end, Answer) and (end.tokens, end.counted, len(end.chunks_s)) == (2, False, 2)


@pytest.mark.parametrize(
    ("status", "lines", "why"),
    [
        (429, (b'{"error": {"message": "the queue is full"}}',), "429: the queue is full"),
        (502, (b"bad gateway",), "502: bad gateway"),
        (200, (delta(content="a"), data(error={"message": "it broke"})), "it broke"),
        (200, (delta(content="a"),), "the stream ended without [DONE]"),
        (200, (b"data: {\n\n",), "the connection broke: Input data was truncated"),
    ],
)
def test_a_failure_keeps_the_servers_words(status: int, lines: tuple[bytes, ...], why: str) -> None:
    end = answer(status, *lines)
    assert isinstance(end, Failure) and end.why == why


def test_an_answer_that_takes_too_long_is_a_failure() -> None:
    end = answer(200, delta(content="a"), 0.6, b"data: [DONE]\n", timeout_s=0.2)
    assert isinstance(end, Failure) and end.why == "no whole answer within 0.2 s"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["bench", "serve", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("headway: "), (out, err)
    return err


def test_where_no_server_is_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no server answers at http://127.0.0.1:9" in refused(capsys, "--url", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9: the connection broke" in refused(
        capsys, "--url", "http://127.0.0.1:9", "--model", "m"
    )


def test_a_load_that_gets_no_answer_is_an_error_in_the_servers_words(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "404: " in refused(capsys, "--url", server.url, "--model", "nobody")


@pytest.mark.parametrize(
    "words",
    [
        ("--concurrent", "0"),
        ("--concurrent", "a"),
        ("--rate", "0"),
        ("--rate", "nan"),
        ("--input", "9-3"),
        ("--output", "x"),
        ("--requests", "0"),
        ("--timeout", "nan"),
        ("--limit-tpot-ms", "-1"),
        ("--plot", "/nowhere/a.png"),
    ],
)
def test_what_cannot_work_is_refused_by_its_option(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert refused(capsys, "--model", "m", *words).startswith(f"headway: {words[0]}: ")


def test_a_plot_without_matplotlib_is_refused_before_the_load(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    told = refused(capsys, "--model", "m", "--plot", str(tmp_path / "a.png"))
    assert "pip install 'headway[plots]'" in told


def test_a_plot_is_a_picture(server: FakeServer, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "a.svg"
    bench(capsys, server, "--requests", "3", "--concurrent", "1,2", "--limit-ttft-ms", "9999", "--plot", str(path))
    assert "<svg" in path.read_text()
