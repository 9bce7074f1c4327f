"""What a streamed token costs beside the step: processor time, waits and switches of each thread, for each token.

    python benchmarks/serving/stream_cost.py [MODEL] [--streams 1] [--tokens 400] [--rounds 5] [--options "..."]

A server, and a client in this process that reads bytes and looks at nothing, so that it takes as little as a client
can. Processor time is the scheduler's count for each thread (Linux), which other work on the machine disturbs
little; the rate is by the clock, and disturbed. A thread's voluntary switches are its waits, the others are by force.
"""

from __future__ import annotations

import argparse
import json
import selectors
import shlex
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent / "peers"))
from embeddings import headway

#: Of a thread: processor time and time in a queue for one, ns; how often it waited, and was interrupted.
FIGURES = ("cpu_us", "queued_us", "waits", "forced")
Counts = tuple[int, int, int, int]


def threads(pid: int) -> Iterator[tuple[int, Counts]]:
    """All threads of a process by number, and `FIGURES` of each, as counted since it began."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        ran, queued, _ = map(int, (task / "schedstat").read_text().split())
        lines = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        switches = (int(lines[f"{kind}_ctxt_switches"]) for kind in ("voluntary", "nonvoluntary"))
        yield int(task.name), (ran, queued, *switches)  # type: ignore[misc]


def counted(front: int, replica: int) -> dict[str, Counts]:
    """By who: the front, the replica's first thread, its others, and this process."""
    found = {"front": front, "replica": replica, "client": psutil.Process().pid}
    sums: dict[str, list[int]] = {}
    for name, pid in found.items():
        for thread, counts in threads(pid):
            who = "replica's others" if name == "replica" and thread != pid else name
            sums[who] = [a + b for a, b in zip(sums.get(who, [0] * 4), counts, strict=True)]
    return {name: tuple(each) for name, each in sums.items()}  # type: ignore[misc]


def ask(port: int, tokens: int, temperature: float, number: int) -> socket.socket:
    """A stream that has begun to be asked for."""
    body = json.dumps({
        "model": "x", "stream": True, "max_tokens": tokens, "ignore_eos": True, "temperature": temperature,
        "messages": [{"role": "user", "content": f"Tell me of number {number}, in a long story."}],
    }).encode()  # fmt: skip
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
    stream = socket.create_connection(("127.0.0.1", port))
    stream.sendall(head.encode() + body)
    return stream


def follow(streams: list[socket.socket], front: int, replica: int, tokens: int) -> dict[str, dict[str, float]]:
    """Read all to their ends. Counts are from a tenth of the tokens to nine tenths, as events tell of them."""
    begun, last = len(streams) * tokens // 10, len(streams) * tokens * 9 // 10
    chooser, events, before, after = selectors.DefaultSelector(), 0, None, None
    for stream in streams:
        chooser.register(stream, selectors.EVENT_READ)
    left = len(streams)
    while left:
        ready = streams if len(streams) == 1 else [key.fileobj for key, _ in chooser.select()]
        for stream in ready:
            data = stream.recv(65536)
            events += data.count(b"data: ")
            if data.endswith(b"0\r\n\r\n") or not data:
                left -= 1
                chooser.unregister(stream)
                stream.close()
        if before is None and events >= begun:
            before = events, time.perf_counter(), counted(front, replica)
        elif after is None and (events >= last or not left):  # some tokens have no text, and no event
            after = events, time.perf_counter(), counted(front, replica)
    assert before is not None and after is not None, "the streams are shorter than was asked for"
    each = after[0] - before[0]
    found = {
        who: {
            name: (b - a) / each / (1e3 if name.endswith("_us") else 1)
            for name, a, b in zip(FIGURES, before[2][who], counts, strict=True)
        }
        for who, counts in after[2].items()
    }
    return found | {"all": {"tok_s": each / (after[1] - before[1])}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--temperature", type=float, default=1.0, help="1 is what clients get who ask for none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--options", default="--weights int8", help="of the server")
    args = parser.parse_args()
    words = (args.model, "--served-name", "x", *shlex.split(args.options))
    with headway(*words) as port:
        front = next(c.pid for c in psutil.net_connections() if c.laddr and c.laddr.port == port and c.pid)
        (replica,) = (c.pid for c in psutil.Process(front).children() if "headway.replica.process" in c.cmdline())
        rounds = [
            follow(
                [ask(port, args.tokens, args.temperature, i) for i in range(args.streams)],
                front,
                replica,
                args.tokens,
            )
            for _ in range(args.rounds + 1)
        ][1:]
    print("for each token        " + "".join(f"{name:>12}" for name in FIGURES))
    for who in rounds[0]:
        middle = {name: statistics.median(each[who][name] for each in rounds) for name in rounds[0][who]}
        if who == "all":
            rates = " ".join(f"{each[who]['tok_s']:.0f}" for each in rounds)
            print(f"{middle['tok_s']:.0f} tok/s ({rates})")
        else:
            print(f"{who:22}" + "".join(f"{middle[name]:12.2f}" for name in FIGURES))


if __name__ == "__main__":
    main()
