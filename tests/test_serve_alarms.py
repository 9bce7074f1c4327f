"""What a replica tells of itself as a whole reaches whoever asks `/health`, and whoever looks at the console."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fake_process import fake_process
from fake_replica import LOOPS, MOVES, STANDS
from serving import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with fake_process(tmp_path_factory.mktemp("alarms")) as server:
        yield server


def order(server: Server, what: int) -> None:
    """Have the replica tell this; the answer comes behind it."""
    assert server.complete([what, 1, 2], max_tokens=1).status_code == 200


def printed(server: Server, sentence: str) -> bool:
    until = time.monotonic() + 10
    while sentence not in server.log.read_text() and time.monotonic() < until:
        time.sleep(0.02)
    return sentence in server.log.read_text()


def test_health_fails_while_writes_stand_and_the_console_says_so(server: Server) -> None:
    assert server.get("/health")["status"] == "ok"
    order(server, STANDS)
    sentence = (
        "No progress: none of 4 writes to the disk tier of fake ended for a minute or longer; 24 blocks of fake wait "
        "behind them, and all 4 host slots are in use by what is on its way."
    )
    answer = server.http.get("/health")
    assert answer.status_code == 503
    assert (answer.json()["error"]["code"], answer.json()["error"]["message"]) == ("no_progress", sentence)
    assert printed(server, sentence)
    order(server, MOVES)
    assert server.get("/health")["status"] == "ok"


def test_health_has_a_recovery_loop_in_numbers_and_words_and_the_console_has_the_words(server: Server) -> None:
    assert server.get("/health")["recovery"] == []
    order(server, LOOPS)
    told = server.get("/health")
    sentence = (
        "fake is in a recovery loop: 10.0 sequences a second are preempted and 2,000 positions a second computed "
        "again, 50% of all prompt work (0% at its best); goodput fell from 228.0 to 140.0 tokens a second. Admission "
        "is cut until 2 windows of 10 s had no preemption."
    )
    assert told["status"] == "ok" and told["recovery"] == [
        {
            "model": "fake",
            "cut": True,
            "now": {"preempted": 10, "recomputed": 2000, "prompt": 4000, "goodput": 140},
            "best": {"preempted": 0, "recomputed": 0, "prompt": 0, "goodput": 228},
            "offered": {"requests": 3, "positions": 600},
            "rejected": {"requests": 1, "positions": 200},
            "clean": 0,
            "needed": 2,
            "share": 0.5,
            "says": sentence,
        }
    ]
    assert printed(server, sentence)
