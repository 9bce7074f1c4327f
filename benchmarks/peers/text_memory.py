"""What a replica holds beyond weights and pool: text.py `memory`."""

from __future__ import annotations

import argparse
import json
import re
import urllib.request
from collections import Counter
from dataclasses import replace
from pathlib import Path

from text_http import load
from text_samples import Samples
from text_sides import choose, family, pss, start

MIB = 1 << 20


def measure_memory(args: argparse.Namespace, gguf: Path, samples: Samples) -> None:
    """With each format of the weights serve a pool so small that prompts fill all of it, and weigh the replica."""
    for weights in args.sides or ("bf16",):
        name = f"headway-serve-{weights}"
        [side] = choose([name], args.folder, args.model, gguf, args.threads, args.positions)
        words = tuple(word for word in side.words if word != "--no-prefix-cache")
        found = start(replace(side, name=f"{name}-memory", words=(*words, "--memory", "64MiB")), args.folder)
        try:
            for concurrent in (8, 32):  # blocks of finished requests stay reusable, so the pool fills
                load(args, found, concurrent, seed=concurrent)
            pool = json.load(urllib.request.urlopen(f"http://127.0.0.1:{found.port}/v1/pool"))
            told = (args.folder / "run" / f"{found.name}.log").read_text()
            size = re.search(r"([\d.,]+) (MiB|GiB) in \w+, held once", told.replace("\n", " "))
            assert size is not None, told
            weights_mib = float(size[1].replace(",", "")) * (1024 if size[2] == "GiB" else 1)
            replica = [pid for pid in family(found.pid) if b"headway.replica.process" in _words(pid)]
            sample = {
                "weights_mib": round(weights_mib), "pool_mib": pool["reserved_bytes"] // MIB,
                "pool_free_blocks": pool["blocks"]["free"], "replica_mib": sum(map(pss, replica)) // MIB,
                "all_processes_mib": found.memory() // MIB,
                "of_files_mib": sum(pss(pid, "Pss_File") for pid in replica) // MIB,
                "largest_mib": [part for pid in replica for part in largest(pid)],
            }  # fmt: skip
            sample["beyond_mib"] = sample["replica_mib"] - sample["weights_mib"] - sample["pool_mib"]
            samples.add(what="memory", model=args.model, side=name, **sample)
            print(name, sample, flush=True)
        finally:
            found.end()


def largest(pid: int, count: int = 8) -> list[tuple[int, str]]:
    """The most that a process holds of any one file, and of memory without one (`heap`, or none: tensors, stacks,
    arenas), in MiB."""
    held: Counter[str] = Counter()
    name = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        key, *rest = line.split()
        if not key.endswith(":"):  # ADDRESS PERMISSIONS OFFSET DEVICE INODE [NAME]
            name = Path(rest[4]).name if len(rest) > 4 else "none"
        elif key == "Pss:":
            held[name] += int(rest[0])
    return [(kib >> 10, name) for name, kib in held.most_common(count)]


def _words(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
