"""Embeddings beside sentence-transformers, ONNX Runtime and OpenVINO: see README.md."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
PEERS = {
    "sentence-transformers": ["torch==2.13.0", "sentence-transformers>=5"],
    "onnxruntime": ["onnxruntime>=1.20", "onnx", "torch==2.13.0", "transformers", "tokenizers", "numpy"],
    "openvino": ["openvino>=2025", "tokenizers", "numpy"],
}
#: A server of its own, which batches as it sees fit.
INFINITY = ["torch==2.13.0", "infinity-emb[server,torch]>=0.0.78"]
CLIENTS = (1, 16, 64)
BATCHES = (1, 4, 8, 16, 32, 64)


def texts(count: int = 600) -> list[str]:
    """Of mixed lengths: log-normal, half of them below 30 words, some at the model's limit. The words are those of
    Headway's own documentation."""
    pages = sorted((HERE.parent.parent / "docs").glob("*.md"))
    words = re.findall(r"[A-Za-z][a-z]+", " ".join(path.read_text() for path in pages))
    chance = random.Random(11)
    lengths = [min(180, max(3, round(chance.lognormvariate(3.4, 0.8)))) for _ in range(count)]
    starts = [chance.randrange(len(words) - 200) for _ in lengths]
    return [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


# -- peers ----------------------------------------------------------------------------------------------------


def setup(folder: Path) -> None:
    """Make what is missing."""
    for name, packages in {**PEERS, "infinity": INFINITY}.items():
        python = folder / name / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
            subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
    if not (folder / "onnx" / "model-int8.onnx").exists():
        python = folder / "onnxruntime" / "bin" / "python"
        subprocess.run(
            [str(python), str(HERE / "export_onnx.py"), str(model_folder()), str(folder / "onnx")], check=True
        )


def model_folder() -> Path:
    """Where Headway keeps `minilm-l6`."""
    from headway.artifacts import resolve

    return Path(resolve("minilm-l6").tokenizer).parent


class Peer:
    """A peer's process; it is idle but while it is asked."""

    def __init__(self, name: str, folder: Path) -> None:
        model = model_folder() if name == "sentence-transformers" else folder / "onnx"
        words = [str(folder / name / "bin" / "python"), str(HERE / "embed_peer.py"), name, str(model)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port: int = self._line()["port"]

    def _line(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, **ask: Any) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(ask) + "\n")
        self._process.stdin.flush()
        return self._line()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


# -- Headway --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def headway(*words: str) -> Iterator[int]:
    """`headway serve` with these words; yields its port."""
    words = (sys.executable, "-m", "headway", "serve", *words, "--port", "0")
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = ""
        while (found := re.search(r"curl http://[^:]+:(\d+)/", told)) is None:
            told += process.stderr.readline()
        try:
            yield int(found[1])
        finally:
            process.terminate()


@contextlib.contextmanager
def infinity(folder: Path) -> Iterator[int]:
    """infinity-emb over torch, which is its fastest engine that needs no export; yields its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    words = [str(folder / "infinity" / "bin" / "infinity_emb"), "v2", "--model-id", str(model_folder())]
    words += ["--served-model-name", "minilm-l6", "--engine", "torch", "--device", "cpu", "--port", str(port)]
    words += ["--url-prefix", "/v1", "--no-bettertransformer", "--no-model-warmup", "--log-level", "warning"]
    with subprocess.Popen(
        words, env={**os.environ, "OMP_NUM_THREADS": "2", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    ) as process:
        try:
            for _ in range(600):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.1)
            yield port
        finally:
            process.terminate()


async def load(
    port: int, given: list[str], clients: int, seconds: float, path: str = "/v1/embeddings"
) -> dict[str, float]:
    """Closed loop over kept connections, as cheap as a client can be: its cost is on the same cores."""
    place, latencies, ends = iter(range(1 << 30)), [], time.perf_counter() + seconds
    begun = time.perf_counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < ends:
            text = given[next(place) % len(given)]
            body = json.dumps({"model": "minilm-l6", "input": text, "encoding_format": "base64"}).encode()
            asked_at = time.perf_counter()
            writer.write(b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\n" % path.encode())
            writer.write(b"content-type: application/json\r\n")
            writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            length = re.search(rb"content-length: (\d+)", answer)
            assert length is not None
            await reader.readexactly(int(length[1]))
            latencies.append(time.perf_counter() - asked_at)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    latencies.sort()
    took_s = time.perf_counter() - begun
    return {"texts_per_s": len(latencies) / took_s, "p99_ms": 1e3 * latencies[int(0.99 * (len(latencies) - 1))]}


# -- the run --------------------------------------------------------------------------------------------------


def run(folder: Path, seconds: float, rounds: int, weights: list[str], batches: Sequence[int]) -> dict[str, Any]:
    """Rounds of all sides in turn at each number of clients; of each the median over the rounds."""
    given, file = texts(), folder / "texts.txt"
    file.write_text("\n".join(given))
    with contextlib.ExitStack() as stack:
        peers = {name: Peer(name, folder) for name in PEERS}
        for peer in peers.values():
            stack.callback(peer.close)
        ports = {
            f"headway {kind}": stack.enter_context(headway("minilm-l6", "--weights", kind, "--threads", "2"))
            for kind in weights
        }
        ports["infinity-emb"] = stack.enter_context(infinity(folder))
        ask = {"seconds": seconds, "texts": str(file)}
        best = {}
        for name, peer in peers.items():
            found = {batch: peer.ask(clients=64, batch=batch, **ask)["texts_per_s"] for batch in batches}
            best[name] = max(found, key=found.__getitem__)
            print(
                name, {batch: round(rate) for batch, rate in found.items()}, "best batch", best[name], file=sys.stderr
            )
        rows = []
        for clients in CLIENTS:
            sides: dict[str, list[dict[str, float]]] = {}
            for _ in range(rounds):
                for name, port in ports.items():
                    sides.setdefault(name, []).append(asyncio.run(load(port, given, clients, seconds)))
                for name, peer in peers.items():
                    bare = peer.ask(clients=clients, batch=best[name], **ask)
                    sides.setdefault(f"{name}, in process", []).append(bare)
                    served = asyncio.run(load(peer.port, given, clients, seconds, f"/{best[name]}"))
                    sides.setdefault(f"{name}, served", []).append(served)
            for name, found in sides.items():
                row = {key: median(each[key] for each in found) for key in ("texts_per_s", "p99_ms")}
                rows.append({"clients": clients, "side": name, **row})
                print(
                    f"{clients:3} clients  {name:34} {row['texts_per_s']:7.0f} texts/s  p99 {row['p99_ms']:7.1f} ms",
                    file=sys.stderr,
                )
    return {"what": "embeddings of minilm-l6, mixed lengths", "rows": rows, "best_batch": best, **machine()}


def machine() -> dict[str, Any]:
    """Where and when it was measured."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    load_average = os.getloadavg()[0]
    return {
        "date": date.today().isoformat(), "cpu": model[1] if model else platform.processor(), "cores": os.cpu_count(),
        "load_at_end": round(load_average, 1), "python": platform.python_version(),
    }  # fmt: skip


def table(result: dict[str, Any]) -> str:
    """Markdown: a row for each side."""
    sides = list(dict.fromkeys(row["side"] for row in result["rows"]))
    head = (
        "| | "
        + " | ".join(f"{clients} client{'s' if clients > 1 else ''}: texts/s (p99 ms)" for clients in CLIENTS)
        + " |"
    )
    lines = [head, "|---" * (len(CLIENTS) + 1) + "|"]
    for side in sides:
        cells = [row for row in result["rows"] if row["side"] == side]
        lines.append(
            f"| {side} | " + " | ".join(f"{row['texts_per_s']:.0f} ({row['p99_ms']:.0f})" for row in cells) + " |"
        )
    return "\n".join(lines)


def plot(result: dict[str, Any], path: Path) -> None:
    """Bars of texts per second for each number of clients."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sides = list(dict.fromkeys(row["side"] for row in result["rows"]))
    figure, axis = pyplot.subplots(figsize=(10, 4))
    width = 0.8 / len(sides)
    for place, side in enumerate(sides):
        rates = [row["texts_per_s"] for row in result["rows"] if row["side"] == side]
        axis.bar([x + place * width for x in range(len(rates))], rates, width, label=side)
    axis.set_xticks([x + 0.4 - width / 2 for x in range(len(CLIENTS))], [f"{clients} clients" for clients in CLIENTS])
    axis.set_ylabel("texts per second")
    axis.set_title(
        f"minilm-l6, mixed lengths; {result['cpu']}, {result['cores']} cores, {result['date']}", fontsize=9
    )
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("setup", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--weights", nargs="+", default=["fp32", "int8"])
    parser.add_argument(
        "--batches", type=int, nargs="+", default=BATCHES, help="tried for each peer; the best counts"
    )
    args = parser.parse_args()
    if args.what == "setup":
        return setup(args.folder)
    result = run(args.folder, args.seconds, args.rounds, args.weights, args.batches)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "embeddings.json").write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    with contextlib.suppress(ImportError):  # the plot is an extra
        plot(result, RESULTS / "embeddings.png")
    return None


if __name__ == "__main__":
    main()
