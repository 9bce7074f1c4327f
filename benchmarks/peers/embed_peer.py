"""One peer in its own process and virtual environment: embeds what waits in a queue, up to a batch size.

    python embed_peer.py KIND MODEL        KIND: sentence-transformers, onnxruntime, openvino

Tells the port of an HTTP server over it (see `serve`). Reads lines of JSON, {"clients", "seconds", "batch", "texts"},
and answers each with {"texts_per_s", "p99_ms"}.
`texts` is a file with one text a line; a client asks for the next one as soon as it has the vector of the one before.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

THREADS = 2
LIMIT = 256


def sentence_transformers(model: Path) -> Callable[[Sequence[str]], Any]:
    """The library's own `encode`, which sorts by length and pads within a batch."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(THREADS)
    encoder = SentenceTransformer(str(model), device="cpu")
    encoder.max_seq_length = LIMIT
    return lambda texts: encoder.encode(list(texts), batch_size=len(texts), show_progress_bar=False)


def onnxruntime(model: Path) -> Callable[[Sequence[str]], Any]:
    """int8 weights by the library's dynamic quantisation; mean pooling and norm in numpy."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(str(model / "model-int8.onnx"), options, providers=["CPUExecutionProvider"])
    return _pooled(model, lambda feeds: session.run(None, feeds)[0])


def openvino(model: Path) -> Callable[[Sequence[str]], Any]:
    """Its own precision choice for throughput (bf16 or fp32 by the CPU), compiled once with dynamic shapes."""
    import openvino as ov

    core = ov.Core()
    settings = {"INFERENCE_NUM_THREADS": THREADS, "PERFORMANCE_HINT": "LATENCY"}
    compiled = core.compile_model(str(model / "model.onnx"), "CPU", settings)
    return _pooled(model, lambda feeds: compiled(feeds)[0])


def _pooled(model: Path, run: Callable[[dict[str, Any]], Any]) -> Callable[[Sequence[str]], Any]:
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.enable_truncation(LIMIT)
    tokenizer.enable_padding()

    def embed(texts: Sequence[str]) -> Any:
        encodings = tokenizer.encode_batch(list(texts))
        ids = np.array([encoding.ids for encoding in encodings], np.int64)
        mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
        hidden = run({"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)})
        pooled = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)

    return embed


def measure(embed: Callable[[Sequence[str]], Any], texts: Sequence[str], ask: dict[str, Any]) -> dict[str, float]:
    """Closed loop: every client has one text in the queue or in the batch that is being evaluated."""
    place, now = 0, time.perf_counter()
    queue: deque[tuple[str, float]] = deque()
    for _ in range(ask["clients"]):
        queue.append((texts[place % len(texts)], now))
        place += 1
    latencies: list[float] = []
    begun = time.perf_counter()
    while time.perf_counter() - begun < ask["seconds"]:
        taken = [queue.popleft() for _ in range(min(ask["batch"], len(queue)))]
        embed([text for text, _ in taken])
        now = time.perf_counter()
        for _, asked_at in taken:
            latencies.append(now - asked_at)
            queue.append((texts[place % len(texts)], now))
            place += 1
    latencies.sort()
    took_s = time.perf_counter() - begun
    return {"texts_per_s": len(latencies) / took_s, "p99_ms": 1e3 * latencies[int(0.99 * (len(latencies) - 1))]}


def serve(embed: Callable[[Sequence[str]], Any]) -> int:
    """The leanest HTTP server there can be over a queue: what waits is embedded together, up to `batch`. Returns its
    port; the batch size is the path: POST /8."""
    waiting: queue.SimpleQueue[tuple[int, str, asyncio.Future[bytes]]] = queue.SimpleQueue()
    started: queue.SimpleQueue[int] = queue.SimpleQueue()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                text = json.loads(await reader.readexactly(length))["input"]
                future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
                waiting.put((int(head.split(b" ", 2)[1][1:]), text, future))
                body = json.dumps({"data": [{"embedding": base64.b64encode(await future).decode()}]}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    async def listen() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        started.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    def work(loop: asyncio.AbstractEventLoop) -> None:
        while True:
            taken = [waiting.get()]
            while len(taken) < taken[0][0] and not waiting.empty():
                taken.append(waiting.get())
            vectors = embed([text for _, text, _ in taken])
            for (_, _, future), vector in zip(taken, vectors, strict=True):
                loop.call_soon_threadsafe(future.set_result, vector.astype("<f4").tobytes())

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_until_complete, args=(listen(),), daemon=True).start()
    threading.Thread(target=work, args=(loop,), daemon=True).start()
    return started.get()


def main(kind: str, model: str) -> None:
    makers = {"sentence-transformers": sentence_transformers, "onnxruntime": onnxruntime, "openvino": openvino}
    embed = makers[kind](Path(model))
    embed(["warm", "up"])
    print(json.dumps({"port": serve(embed)}), flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        texts = Path(ask["texts"]).read_text().splitlines()
        print(json.dumps(measure(embed, texts, ask)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
