"""How a whole server stops: a second signal, or no signal at all, leaves no process."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path

import httpx
import psutil

from serving import Server, completion, serving, until

GONE = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def busy(server: Server) -> socket.socket:
    """A request that would take minutes, and its client, which does not leave."""
    body = json.dumps(completion([700] * 9, max_tokens=4000, ignore_eos=True, stream=True))
    url = httpx.URL(server.url)
    client = socket.create_connection((url.host, url.port))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall((head + body).encode())
    assert b" 200 " in client.recv(100)
    return client


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    first, second = signal.SIGINT, signal.SIGTERM
    with serving(tmp_path, "--memory", "256blocks") as server, busy(server):
        replica = server.replica
        server.process.send_signal(first)
        time.sleep(0.5)
        assert server.process.poll() is None, "it waits for the answer"
        began = time.monotonic()
        server.process.send_signal(second)
        assert server.process.wait(5) == 128 + second
        assert time.monotonic() - began < 1.5
        assert not replica.is_running()
        assert "Traceback" not in server.log.read_text()


def test_a_front_that_is_killed_leaves_no_replica(tmp_path: Path) -> None:
    with serving(tmp_path, "--memory", "256blocks") as server, busy(server):
        replica = server.replica
        server.process.kill()
        server.process.wait()
        until(lambda: not replica.is_running() or replica.status() in GONE, 4)
