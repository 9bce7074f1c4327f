"""The processes of a real server: how they start, end, die, and are replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import httpx
import psutil
import pytest

from serving import Server, command, headway, replicas, serving, until
from signals import hearing_sigint

END_PATIENCE_S = 12.0


def ends(server: Server, number: signal.Signals) -> float:
    """Send the signal; the server must end with status 0 and leave no process. Returns the seconds that it took."""
    processes = [psutil.Process(server.process.pid), server.replica]
    began = time.monotonic()
    server.process.send_signal(number)
    assert server.process.wait(END_PATIENCE_S) == 0, server.log.read_text()
    took_s = time.monotonic() - began
    assert not any(process.is_running() for process in processes)
    assert "Traceback" not in server.log.read_text()
    return took_s


def test_sigterm_lets_short_answers_end_and_cuts_long_ones_off_with_an_error_event(tmp_path: Path) -> None:
    with serving(tmp_path, "--memory", "256blocks") as server:
        long = server.stream([700] * 9, max_tokens=4000, ignore_eos=True, id="long").begun()
        short = server.stream([900] * 9, max_tokens=9, ignore_eos=True).begun()
        assert ends(server, signal.SIGTERM) > 5
        assert short.end()[-1] == "[DONE]"
        assert long.end()[-1]["error"]["code"] == "cancelled" and "[DONE]" not in long.events


def test_ctrl_c_ends_an_idle_server_at_once_and_meanwhile_its_port_is_taken(tmp_path: Path) -> None:
    with serving(tmp_path, "--memory", "64blocks") as server:
        port = str(httpx.URL(server.url).port)
        began = time.monotonic()
        taken = headway("serve", "--port", port)
        assert taken.returncode == 2 and taken.stderr.count("\n") == 1
        assert taken.stderr.startswith("headway: --port: ") and port in taken.stderr
        assert time.monotonic() - began < 5, "the port is asked for before anything is loaded"

        said = headway("chat", "--max-tokens", "5", "What is the capital of France?", "--url", server.url)
        assert (said.returncode, said.stdout) == (0, "The capital of France is\n"), said.stderr
        assert "prefill;dur=" in said.stderr
        assert ends(server, signal.SIGINT) < 4
        gone = headway("chat", "hello", "--url", server.url)
        assert gone.returncode == 2 and "no server answers" in gone.stderr and gone.stderr.count("\n") == 1


def test_an_idle_server_takes_less_than_a_hundredth_of_a_core(tmp_path: Path) -> None:
    """All of its processes, once its threads were awake."""
    with serving(tmp_path, "--memory", "64blocks") as server:
        assert server.complete([5], max_tokens=5).status_code == 200
        front = psutil.Process(server.process.pid)
        processes = [front, *front.children(recursive=True)]
        assert server.replica.pid in {each.pid for each in processes}

        def spent_s() -> float:
            return sum(sum(each.cpu_times()[:2]) for each in processes)

        time.sleep(1)
        before = spent_s()
        time.sleep(3)
        assert spent_s() - before <= 0.03


def test_a_replica_that_is_killed_is_replaced_and_one_without_front_ends(tmp_path: Path) -> None:
    with serving(tmp_path, "--memory", "64blocks") as server:
        killed = server.replica
        stream = server.stream([700] * 9, max_tokens=900, ignore_eos=True, id="doomed").begun()
        killed.kill()
        assert "exit status -9" in stream.end()[-1]["error"]["message"] and "[DONE]" not in stream.events
        down = server.http.get("/ready")
        assert down.status_code == 503 and down.json()["error"]["code"] == "loading"
        assert server.complete([5], max_tokens=1).status_code == 503
        record = server.record("doomed")
        assert record["stage"] == "failed" and record["sequences"][0]["blocks"]["held"] == 0
        assert server.get("/v1/pool")["blocks"] == {"total": 64, "live": 0, "reusable": 0, "free": 64}

        until(lambda: server.http.get("/ready").status_code == 200, 60)
        assert server.text([5], max_tokens=2, id="doomed") and server.record("doomed")["stage"] == "finished"
        assert server.replica != killed and "the replica ended (exit status -9)" in server.log.read_text()
        assert server.metrics()["headway_requests_finished_total", "failed"] == 1

        orphan = server.replica
        server.process.kill()
        server.process.wait()
        # It looks every half second, gives its last words a second, and unloads torch, on a machine with other work.
        until(lambda: not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE, 8)


@pytest.mark.parametrize(("number", "after_s"), [(signal.SIGINT, 0.0), (signal.SIGTERM, 1.0)])
def test_a_signal_to_all_while_loading_ends_the_server_at_once(
    tmp_path: Path, number: signal.Signals, after_s: float
) -> None:
    """A terminal's Ctrl-C goes to its whole process group."""
    words = command("serve", "--port", "0", "--memory", "64blocks")
    with (tmp_path / "log").open("wb") as log:
        with hearing_sigint():
            process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        with process:
            (replica,) = until(lambda: replicas(process.pid))
            time.sleep(after_s)
            os.killpg(process.pid, number)
            assert process.wait(4) == 0
            assert not replica.is_running()
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.parametrize(
    "given",
    [
        ("--seats", "0"),
        ("--seats", "513", "--step-tokens", "512"),
        ("--memory", "lots"),
        ("--memory", "900TiB"),
        ("--policy", "fastest"),
        ("--max-context", "9000"),
    ],
)
def test_an_option_that_cannot_work_is_named_in_one_line(given: tuple[str, ...]) -> None:
    ended = headway("serve", "--port", "0", *given)
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.startswith(f"headway: {given[0]}: ") and ended.stderr.count("\n") == 1, ended.stderr
