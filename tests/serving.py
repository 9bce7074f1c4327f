"""A real server for tests: `headway serve` as a process of its own, asked over HTTP as any client would."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

MODEL = "smollm2-135m"
START_PATIENCE_S = 120.0
T = TypeVar("T")


class Server:
    """One running `headway serve`. `log` is the file with all that it printed, `at_start` its first metrics."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, key: str | None = None) -> None:
        self.process = process
        self.log = log
        self.url = self._await_ready()
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False, headers=headers)
        self.at_start = self.metrics()

    def _await_ready(self) -> str:
        deadline = time.monotonic() + START_PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            told = re.search(r"curl (http://[^/]+)/", self.log.read_text())
            if told is not None and httpx.get(f"{told[1]}/ready", trust_env=False).status_code == 200:
                return told[1]
            time.sleep(0.05)
        raise AssertionError(f"the server did not become ready: {self.log.read_text()}")

    # -- asking ----------------------------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        """The JSON of a good answer."""
        response = self.http.get(path)
        assert response.status_code == 200, response.text
        return response.json()

    def complete(self, prompt: str | list[int], /, *, id: str | None = None, **fields: Any) -> httpx.Response:
        """`POST /v1/completions`, greedy, and as long as fits, unless told otherwise."""
        return self.http.post("/v1/completions", json=completion(prompt, **fields), headers=_id(id))

    def text(self, prompt: str | list[int], /, **fields: Any) -> str:
        """The answer's text."""
        response = self.complete(prompt, **fields)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["text"])

    def stream(self, prompt: str | list[int], /, *, id: str | None = None, **fields: Any) -> Stream:
        """The same, streamed: it is on its way when this returns."""
        return Stream(self.url, completion(prompt, stream=True, **fields), id)

    def record(self, id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/v1/requests/{id}")
        return found

    def records(self) -> dict[str, dict[str, Any]]:
        """All records, from one answer, so of one moment."""
        return {record["id"]: record for record in self.get("/v1/requests?limit=1000")["data"]}

    def metrics(self) -> dict[tuple[str, str], float]:
        """(sample name, the value of its label beside `model` or "") to value; a histogram's buckets are left out."""
        return {
            (sample.name, "".join(value for label, value in sample.labels.items() if label != "model")): sample.value
            for family in text_string_to_metric_families(self.http.get("/metrics").text)
            for sample in family.samples
            if not sample.name.endswith("_bucket")
        }

    def live(self) -> int:
        return int(self.get("/v1/pool")["blocks"]["live"])

    # -- the process -----------------------------------------------------------------------------------------

    @property
    def replica(self) -> psutil.Process:
        (child,) = replicas(self.process.pid)
        return child

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self.http.close()
        self.process.terminate()
        return self.process.wait(30)


def replicas(front: int) -> list[psutil.Process]:
    """The replicas among a front's children: the last word that they were given is the front's process id. A child
    that has not begun its own program yet still shows the front's command line: it may be one that renders chat
    templates, from before the front hears signals."""
    children = psutil.Process(front).children()
    return [child for child in children if child.cmdline()[-1:] == [str(front)]]


class Stream:
    """A stream that a thread reads. `events` are the JSON data so far, the last one "[DONE]" when it was said."""

    def __init__(self, url: str, body: dict[str, Any], id: str | None) -> None:
        self.events: list[Any] = []
        self.status: int | None = None
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url, body, id))
        self._thread.start()

    def _read(self, url: str, body: dict[str, Any], id: str | None) -> None:
        with (
            httpx.Client(base_url=url, timeout=60, trust_env=False) as http,
            http.stream("POST", "/v1/completions", json=body, headers=_id(id)) as response,
        ):
            self.status = response.status_code
            for line in response.iter_lines():
                if self._leave.is_set():
                    return
                if (data := line.removeprefix("data: ")) and not line.startswith(":"):
                    self.events.append(data if data == "[DONE]" else json.loads(data))

    def leave(self) -> None:
        """Close the socket at the next line that comes."""
        self._leave.set()
        self._thread.join(60)

    def end(self) -> list[Any]:
        """All events, once the stream is over."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.events

    def begun(self) -> Stream:
        """Itself, once the first token is there."""
        until(lambda: bool(self.events))
        return self

    @property
    def text(self) -> str:
        return "".join(event["choices"][0]["text"] for event in self.events if isinstance(event, dict))


def completion(prompt: str | list[int], /, **fields: Any) -> dict[str, Any]:
    """A body: greedy, and as long as fits, unless told otherwise."""
    return {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": None} | fields


@contextlib.contextmanager
def serving(folder: Path, *options: str, key: str | None = None) -> Iterator[Server]:
    """A server on a free port, ended with the block, however that ends. fp32, whose results are exact in any batch
    and which starts fastest; one thread, so that other work on the machine does not make the threads wait for each
    other."""
    log = folder / "serve.log"
    words = command("serve", "--port", "0", "--weights", "fp32", "--threads", "1", *options)
    environ = os.environ | ({"HEADWAY_API_KEY": key} if key else {})
    with log.open("wb") as out, subprocess.Popen(words, stdout=out, stderr=out, env=environ) as process:
        try:
            server = Server(process, log, key)
            try:
                yield server
            finally:
                server.http.close()
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "headway", *words]


def headway(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    environ = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200", **environment}
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=180, env=environ)


def until(truth: Callable[[], T], patience_s: float = 30.0) -> T:
    """The first true value of `truth`."""
    deadline = time.monotonic() + patience_s
    while not (value := truth()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)
    return value


def together(jobs: list[Callable[[], T]]) -> list[T]:
    """All at once; the results in order."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        return [job.result() for job in [pool.submit(job) for job in jobs]]


def _id(id: str | None) -> dict[str, str]:
    return {} if id is None else {"x-request-id": id}
