"""A process for work that may take any time and memory: it answers one line with one line, within bounds.

The work is done by code that cannot be interrupted (a compiler, a template that is a program), so the operating
system ends it. The process bounds its own processor time and address space; the one that asks watches the clock and
the resident memory too, for systems that do not enforce a bound on address space. Whatever ended the process,
another one takes its place at the next question. It ends by itself when the one that asks is gone, however that
ended: then its input ends, or at the latest the time that the work may take.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil

from headway.core.errors import BoundCrossed, ProcessEnded

#: How many times the processor time may pass by the clock: on a busy machine a process may get little of a processor.
CLOCK_FACTOR = 10
#: To be imported and ready; on a busy machine a start has been seen to take several seconds.
_START_S = 60.0
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one answer may take: seconds of a processor, and bytes beyond what the process holds before."""

    processor_s: float
    memory_bytes: int

    @property
    def clock_s(self) -> float:
        return CLOCK_FACTOR * self.processor_s

    @property
    def memory(self) -> str:
        return f"{self.memory_bytes >> 20} MiB"


class BoundedProcess:
    """`python -m MODULE WORDS…`, whose main function calls `answer_lines`. Started when it is first needed."""

    def __init__(self, module: str, *words: str) -> None:
        self._command = [sys.executable, "-m", module, *words]
        self._process: subprocess.Popen[bytes] | None = None
        self._memory_bytes = 0  # that it holds before the first question
        self._asking = threading.Lock()
        self._closed = False

    def ask(self, line: bytes, bounds: Bounds) -> bytes:
        """The answer to a line, without its end. Raises BoundCrossed, or ProcessEnded when the process could not be
        started or ended for another reason."""
        with self._asking:
            process = self._running()
            answer, crossed = self._exchange(process, line + b"\n", bounds)
            if answer:
                return answer[:-1]
            raise self._cause(process, crossed)

    def start(self) -> None:
        """Have the process ready. Raises ProcessEnded."""
        with self._asking:
            self._running()

    def restart(self) -> None:
        """Give up what the process holds; the next question meets a new one."""
        with self._asking:
            self._end()

    def close(self) -> None:
        """End the process for good, and with it an answer that is being made."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()
        self.restart()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._closed:
            raise ProcessEnded("is closed")
        if self._process is None:
            self._process = self._started()
        return self._process

    def _started(self) -> subprocess.Popen[bytes]:
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # it says how it ended by its status
            )
        except OSError as error:
            raise ProcessEnded(f"could not be started: {error.strerror or error}") from error
        ready, crossed = self._exchange(process, b"", Bounds(_START_S / CLOCK_FACTOR, sys.maxsize))
        if not ready:
            raise self._cause(process, crossed)
        with contextlib.suppress(psutil.Error):  # it ended: the question will tell
            self._memory_bytes = psutil.Process(process.pid).memory_info().rss
        return process

    def _exchange(self, process: subprocess.Popen[bytes], line: bytes, bounds: Bounds) -> tuple[bytes, str | None]:
        """The answer with its end, or nothing and the bound for which the process was killed, if it was."""
        assert process.stdin is not None and process.stdout is not None
        over, crossed = threading.Event(), list[str]()
        watch = threading.Thread(target=self._watch, args=(process, bounds, over, crossed), daemon=True)
        watch.start()
        with contextlib.suppress(BrokenPipeError):  # it ended; so does its output
            process.stdin.write(line)
            process.stdin.flush()
        answer = process.stdout.readline()
        over.set()
        watch.join()
        return (answer if answer.endswith(b"\n") else b""), (crossed[0] if crossed else None)

    def _watch(
        self, process: subprocess.Popen[bytes], bounds: Bounds, over: threading.Event, crossed: list[str]
    ) -> None:
        """Kill the process at a bound that it does not keep by itself."""
        deadline = time.monotonic() + bounds.clock_s
        while not over.wait(_LOOK_S):
            if time.monotonic() > deadline:
                crossed.append("clock")
            elif _resident_bytes(process.pid) > self._memory_bytes + bounds.memory_bytes:
                crossed.append("memory")
            if crossed:
                process.kill()
                return

    def _cause(self, process: subprocess.Popen[bytes], crossed: str | None) -> Exception:
        with process:  # closes the pipes, and waits
            process.kill()  # it may have closed its output only
            status = process.wait()
        self._process = None
        if status == -signal.SIGPROF:
            return BoundCrossed("processor")
        return BoundCrossed(crossed) if crossed else ProcessEnded(f"ended with exit status {status}", status)

    def _end(self) -> None:
        if self._process is not None:
            with contextlib.suppress(BrokenPipeError), self._process as process:
                process.kill()
            self._process = None


def _resident_bytes(pid: int) -> int:
    try:
        resident: int = psutil.Process(pid).memory_info().rss
    except psutil.Error:  # it has just ended
        return 0
    return resident


def answer_lines(answer: Callable[[bytes], bytes], bounds_of: Callable[[int], Bounds]) -> int:
    """Answer each line of the input with a line, within the bounds for a line of its length, until the input ends.
    Call it in the main thread. Returns the exit status."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)  # the end of the input is its end
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # a handler in Python would wait for what is to be ended
    before = psutil.Process().memory_info().vms
    _say(b"")
    for line in sys.stdin.buffer:
        bounds = bounds_of(len(line))
        with _address_space(before + bounds.memory_bytes):
            signal.setitimer(signal.ITIMER_PROF, bounds.processor_s)
            answered = answer(line)
            signal.setitimer(signal.ITIMER_PROF, 0)
        _say(answered)
    return 0


@contextlib.contextmanager
def _address_space(most: int) -> Iterator[None]:
    """Hold the process to an address space of `most` bytes, on systems that do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    usual = [limit for limit in (soft, most) if limit != resource.RLIM_INFINITY]
    with contextlib.suppress(ValueError, OSError):  # a system without this bound: resident memory is watched
        resource.setrlimit(resource.RLIMIT_AS, (min(usual), hard))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, OSError):  # the same system
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _say(answer: bytes) -> None:
    sys.stdout.buffer.write(answer + b"\n")
    sys.stdout.buffer.flush()
