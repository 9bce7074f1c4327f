"""How fast this machine reads memory: `python benchmarks/native/bandwidth.py --threads 2`.

Each thread looks through a part of its own of an array that no cache holds for a byte that is not there, by the C
library's `memchr`, which reads with the widest instructions that it has; ctypes lets go of the interpreter meanwhile.
What decodes one sequence reads all weights for each token, so this over their bytes is the most tokens per second.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from concurrent.futures import ThreadPoolExecutor

from headway.bench.machine import machine

_memchr = ctypes.CDLL(None).memchr
_memchr.argtypes, _memchr.restype = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t), ctypes.c_void_p


def bandwidth(threads: int, mib: int = 512, rounds: int = 7) -> float:
    """Bytes read per second, in the quickest of the rounds: what disturbs a round only makes it slower."""
    size = (mib << 20) // threads
    parts = [ctypes.create_string_buffer(size) for _ in range(threads)]
    for part in parts:
        ctypes.memset(part, 1, size)
    took_s = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds):
            began = time.perf_counter()
            assert not any(pool.map(lambda part: _memchr(part, 0, size), parts)), "the byte is not there"
            took_s.append(time.perf_counter() - began)
    return threads * size / min(took_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    rates = {threads: round(bandwidth(threads) / 1e9, 1) for threads in args.threads}
    print(json.dumps({"GB/s by threads": rates, **machine()}))


if __name__ == "__main__":
    main()
