"""The sides that text.py compares: how each is started, asked and ended. They stay between its subcommands, idle
while another one works."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).parent
GIB = 1 << 30
#: The longest job: a prompt of 8,000 by the slowest side, on a machine where others compute too.
LONGEST_JOB_S = 600.0
#: What a side reads of this process's environment.
KEPT = ("PATH", "HOME", "LANG", "TMPDIR")


@dataclass(frozen=True)
class Side:
    """How a side is started; `{socket}` or `{port}` in its words is filled in then."""

    name: str
    words: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def serves(self) -> bool:
        """Over HTTP."""
        return any("{port}" in word for word in self.words)


def known(folder: Path, model: str, threads: int, positions: int) -> dict[str, Side]:
    """Every side, by name. `positions` is how many its cache has to hold. Headway's are `headway-WEIGHTS`, or with
    the state's format `headway-WEIGHTS+STATE`, and are made as they are asked for: see `choose`."""
    files, ends = folder / "models" / model, (str(threads), str(positions))
    libraries = folder / "llama" / "build" / "bin"
    on_path = {"PYTHONPATH": str(folder / "llama" / "sources"), "LLAMA_CPP_LIB_PATH": str(libraries)}
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads])) if hasattr(os, "sched_getaffinity") else ""
    for_vllm = {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    found: list[Side] = []
    for kind in ("Q8_0", "Q4_0", "BF16", "own"):
        file = str(files / f"{kind}.gguf")
        words = (_python(folder, "llama"), str(HERE / "text_llama.py"), "{socket}", file, *ends)
        found.append(Side(f"llama.cpp-{kind}", words, on_path))
        server = (
            str(libraries / "llama-server"), "-m", file, "--port", "{port}", "-t", ends[0], "-tb", ends[0],
            "-np", "32", "-c", ends[1], "--no-cache-prompt", "--cache-ram", "0",
        )  # fmt: skip
        found.append(Side(f"llama-server-{kind}", server))
    for kind in ("int8", "int4", "fp16"):
        words = (
            _python(folder, "openvino"),
            str(HERE / "text_openvino.py"),
            "{socket}",
            str(files / f"openvino-{kind}"),
        )
        found.append(Side(f"openvino-{kind}", (*words, *ends)))
    python, weights = _python(folder, "vllm"), str(files / "hf")
    for name, environment in (("vllm", "vllm"), ("vllm+zentorch", "vllm-zentorch")):
        words = (_python(folder, environment), str(HERE / "text_vllm.py"), "{socket}", weights, *ends)
        found.append(Side(f"{name}-bf16", words, for_vllm))
    server = (
        python, "-m", "vllm.entrypoints.openai.api_server", "--model", weights, "--served-model-name", model,
        "--port", "{port}", "--dtype", "bfloat16", "--max-num-seqs", "32", "--no-enable-prefix-caching",
    )  # fmt: skip
    del for_vllm["VLLM_ENABLE_V1_MULTIPROCESSING"]
    found.append(Side("vllm-server-bf16", server, {**for_vllm, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}))
    words = (_python(folder, "transformers"), str(HERE / "text_transformers.py"), "{socket}", weights, *ends)
    found.append(Side("transformers-bf16", words))
    return {side.name: side for side in found}


def choose(names: Iterable[str], folder: Path, model: str, gguf: Path, threads: int, positions: int) -> list[Side]:
    """Raises KeyError for a name that no side has."""
    others = known(folder, model, threads, positions)
    ours = {"PYTHONPATH": os.pathsep.join([str(HERE.parent.parent / "src")])}
    chosen = []
    for name in names:
        what, _, weights = name.partition("-")
        if name.startswith("headway-serve-"):
            weights, _, state = name.removeprefix("headway-serve-").partition("+")
            words = (
                sys.executable, "-m", "headway", "serve", str(gguf), "--served-name", model, "--port", "{port}",
                "--weights", weights, "--state", state or "auto", "--threads", str(threads), "--no-prefix-cache",
            )  # fmt: skip
            chosen.append(Side(name, words, ours))
        elif what == "headway":
            script = str(HERE / "text_headway.py")
            words = (sys.executable, script, "{socket}", str(gguf), weights, str(threads), str(positions))
            chosen.append(Side(name, words, ours))
        else:
            chosen.append(others[name])
    return chosen


def _python(folder: Path, name: str) -> str:
    return str(folder / name / "bin" / "python")


# -- those that run -------------------------------------------------------------------------------------------


class Running:
    """A side that was started, by this process or an earlier one."""

    def __init__(self, file: Path) -> None:
        self._file = file
        told = json.loads(file.read_text())
        self.name: str = file.stem
        self.pid: int = told["pid"]
        self.port: int | None = told.get("port")
        self._socket: str = told.get("socket", "")

    def ask(self, what: Any) -> Any:
        """A line for a line. Raises OSError when the side is gone, or takes longer than any job does."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(LONGEST_JOB_S)
            connection.connect(self._socket)
            with connection.makefile("rw") as lines:
                lines.write(json.dumps(what) + "\n")
                lines.flush()
                if not (answer := lines.readline()):
                    raise ConnectionError(f"{self.name} ended: see {self._file.with_suffix('.log')}")
                return json.loads(answer)

    def ready(self) -> bool:
        """Raises ChildProcessError when it has ended."""
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                raise RuntimeError(f"{self.name} ended: see {self._file.with_suffix('.log')}")
        try:
            if self.port is None:
                self.ask("about")
            else:
                with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                    path = b"/ready" if self.name.startswith("headway") else b"/health"
                    connection.sendall(b"GET " + path + b" HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
                    return b" 200 " in connection.recv(64)
        except OSError:
            return False
        return True

    def memory(self) -> int:
        """Bytes that it and its children hold: see `pss`."""
        return sum(pss(pid) for pid in family(self.pid))

    def end(self) -> None:
        """Its whole process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGTERM)
        for _ in range(50):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
            if not lives(self.pid):
                break
            time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._file.unlink()


def family(pid: int) -> Iterator[int]:
    """A process and those it started."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from family(int(child))


def pss(pid: int) -> int:
    """Bytes that a process holds, shared pages divided by who shares them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10


def running(folder: Path) -> dict[str, Running]:
    """Those that live."""
    found = [Running(file) for file in sorted((folder / "run").glob("*.json"))]
    return {each.name: each for each in found if lives(each.pid)}


def lives(pid: int) -> bool:
    """Whether a process runs. One that has ended stays listed until its parent asks for its status, which the process
    that started a side may never do."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def start(side: Side, folder: Path, seconds: float = 400) -> Running:
    """Start it and wait until it answers. Raises RuntimeError if it ends, TimeoutError."""
    run = folder / "run"
    run.mkdir(exist_ok=True)
    file = run / f"{side.name}.json"
    path, port = run / f"{side.name}.sock", _free_port()
    path.unlink(missing_ok=True)
    words = [word.replace("{socket}", str(path)).replace("{port}", str(port)) for word in side.words]
    environment = {name: os.environ[name] for name in KEPT if name in os.environ} | side.environment
    with (run / f"{side.name}.log").open("w") as log:
        process = subprocess.Popen(
            words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/", env=environment, start_new_session=True
        )
    file.write_text(json.dumps({"pid": process.pid} | ({"port": port} if side.serves else {"socket": str(path)})))
    found, ends = Running(file), time.monotonic() + seconds
    while not found.ready():
        if time.monotonic() > ends:
            found.end()
            raise TimeoutError(f"{side.name} did not answer within {seconds:.0f} s: see {run}")
        time.sleep(0.2)
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# -- jobs -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """`sequences` prompts of `prompt` tokens, each of which gets `emits`."""

    sequences: int
    prompt: int
    emits: int

    def prompts(self, seed: int) -> list[list[int]]:
        """Others for each seed, so that nothing can be reused; ids that every model here has."""
        chance = random.Random(seed)
        return [[chance.randrange(100, 40_000) for _ in range(self.prompt)] for _ in range(self.sequences)]

    def __str__(self) -> str:
        return f"{self.sequences} x {self.prompt} -> {self.emits}"


class Busy:
    """One process that computes all the time. It ends with this process too, however this one ends, and holds none of
    its files: whoever reads this one's output is told of its end."""

    _COMPUTES = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(100_000))"
    _ENDS_WITHIN_S = 30.0

    def __enter__(self) -> Self:
        none = subprocess.DEVNULL
        words = [sys.executable, "-c", self._COMPUTES, str(os.getpid())]
        self._process = subprocess.Popen(words, stdin=none, stdout=none, stderr=none)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(self._ENDS_WITHIN_S)
