"""Images per second against images in time, by batch size and load: see README.md."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "peers"))
from embeddings import RESULTS, machine

from headway.artifacts import resolve
from headway.artifacts.cache import Cache
from headway.compute.image.executor import DiffusionExecutor
from headway.core.clock import RealClock
from headway.core.request import ImageRequest, Pictured
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.memory.bytes import BytePool
from headway.patterns.image.pattern import image_model
from headway.policy.durations import Durations
from headway.text.tokenizer import Tokenizer

NAMES = ("red apple", "tiger face", "hot dog", "frog", "strawberry", "sunflower", "pizza", "snail")
UPDATES, GUIDANCE = 20, 3.0
BATCHES = (1, 2, 4, 8, 16, 32)
AT_ONCE, SEATS = 64, 32
FILE = RESULTS / "images.json"


class Side:
    """What makes images of requests that arrive over time. `serve` returns when each was complete, in seconds from
    the beginning, and nothing for those that were not."""

    def serve(self, arrivals: Sequence[float], deadline_s: float | None) -> dict[int, float]:
        raise NotImplementedError


class Headway(Side):
    """Up to `seats` images at a time; with `promises` the deadline rule, else whoever comes first."""

    def __init__(self, executor: DiffusionExecutor, prompts: Prompts, durations: Durations, seats: int, *,
                 promises: bool = False) -> None:  # fmt: skip
        self._executor, self._prompts, self._durations = executor, prompts, durations
        self._options = EngineOptions(seats=seats, step_tokens=seats, policy="deadline", promises=promises)

    def serve(self, arrivals: Sequence[float], deadline_s: float | None) -> dict[int, float]:
        pool = BytePool(self._options.seats * self._executor.most_state_bytes, self._executor.forget)
        model = image_model(
            self._executor, pool, self._executor.state_bytes, self._options, durations=self._durations
        )
        engine = Engine([model], RealClock())
        began, done, alive, place = time.perf_counter(), {}, {}, 0
        while place < len(arrivals) or engine.busy:
            now = time.perf_counter() - began
            while place < len(arrivals) and arrivals[place] <= now:
                ms = None if deadline_s is None else (arrivals[place] + deadline_s - now) * 1e3
                if ms is None or ms > 0:
                    engine.add(self._prompts.request(place, ms))
                    alive[place] = arrivals[place]
                place += 1
            for late in [each for each, at in alive.items() if deadline_s is not None and at + deadline_s < now]:
                del alive[late]
                if str(late) in engine.requests:
                    engine.cancel(str(late), "client")
            if not engine.busy:
                time.sleep(max(0.0, arrivals[place] - now) if place < len(arrivals) else 0)
                continue
            for emission in engine.step():
                assert isinstance(emission, Pictured)
                done[int(emission.id)] = time.perf_counter() - began
                alive.pop(int(emission.id), None)
        return done


class Diffusers(Side):
    """diffusers' classes in their documentation's loop: what waits, up to `batch`, together to the end."""

    def __init__(self, prompts: Prompts, batch: int, dtype: torch.dtype) -> None:
        import diffusers

        folder = SHIPPED
        self._prompts, self._batch, self._dtype = prompts, batch, dtype
        self._transformer = diffusers.PixArtTransformer2DModel.from_pretrained(
            folder / "transformer", torch_dtype=dtype
        ).eval()
        self._vae = diffusers.AutoencoderKL.from_pretrained(folder / "vae", torch_dtype=dtype).eval()
        self._folder, self._scheduler = folder, diffusers.FlowMatchEulerDiscreteScheduler

    def serve(self, arrivals: Sequence[float], deadline_s: float | None) -> dict[int, float]:
        began, done, waiting, place = time.perf_counter(), {}, [], 0
        while place < len(arrivals) or waiting:
            now = time.perf_counter() - began
            while place < len(arrivals) and arrivals[place] <= now:
                waiting.append(place)
                place += 1
            waiting = [each for each in waiting if deadline_s is None or arrivals[each] + deadline_s >= now]
            if not waiting:
                time.sleep(max(0.0, arrivals[place] - now) if place < len(arrivals) else 0)
                continue
            together, waiting = waiting[: self._batch], waiting[self._batch :]
            self._make(together)
            done |= dict.fromkeys(together, time.perf_counter() - began)
        return done

    @torch.inference_mode()
    def _make(self, places: Sequence[int]) -> None:
        texts, mask = self._prompts.features(places)
        texts, mask = texts.to(self._dtype), mask.to(self._dtype)
        latents = torch.cat(
            [torch.randn((1, 4, 16, 16), generator=torch.Generator().manual_seed(each)) for each in places]
        )
        scheduler = self._scheduler.from_pretrained(self._folder / "scheduler")
        scheduler.set_timesteps(UPDATES)
        for timestep in scheduler.timesteps:
            rows = torch.cat((latents, latents)).to(self._dtype)
            predicted = self._transformer(
                rows, encoder_hidden_states=texts, timestep=timestep.expand(len(rows)), encoder_attention_mask=mask,
                added_cond_kwargs={"resolution": None, "aspect_ratio": None}, return_dict=False,
            )[0].float()  # fmt: skip
            away, towards = predicted.chunk(2)
            latents = scheduler.step(away + GUIDANCE * (towards - away), timestep, latents).prev_sample
        pixels = self._vae.decode(latents.to(self._dtype) / self._vae.config.scaling_factor).sample
        (pixels.float() / 2 + 0.5).clamp(0, 1).mul(255).round().to(torch.uint8).numpy()


class Prompts:
    """The same prompts for all sides, and for diffusers their features, encoded as they are needed."""

    def __init__(self, executor: DiffusionExecutor) -> None:
        files = resolve("emoji-64")
        assert files.pipeline is not None
        tokenizer = Tokenizer(files.pipeline.text)
        self._tokens = [tuple(tokenizer.encode_with_special(name)[0]) for name in NAMES]
        self._empty = tuple(tokenizer.encode_with_special("")[0])
        self._features = executor._features

    def request(self, place: int, deadline_ms: float | None) -> ImageRequest:
        return ImageRequest(
            id=str(place), prompt=self._tokens[place % len(NAMES)], negative=self._empty, updates=UPDATES, seed=place,
            guidance=GUIDANCE, deadline_ms=deadline_ms,
        )  # fmt: skip

    def features(self, places: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """[2 × images, positions, values], those led away from first, and which positions there are."""
        encoded = self._features([self._empty, *(self._tokens[each % len(NAMES)] for each in places)])
        rows = [encoded[0]] * len(places) + encoded[1:]
        longest = max(map(len, rows))
        features, mask = torch.zeros(len(rows), longest, rows[0].shape[1]), torch.zeros(len(rows), longest)
        for row, each in enumerate(rows):
            features[row, : len(each)], mask[row, : len(each)] = each, 1
        return features, mask


SHIPPED = Path(__file__).parents[2] / "models" / "emoji-64"


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    source, at, found = random.Random(seed), 0.0, []
    while (at := at + source.expovariate(rate)) < seconds:
        found.append(at)
    return found


def batches(result: dict[str, Any], executor: DiffusionExecutor, durations: Durations, deadline_s: float) -> None:
    """Images that arrive together, in batches of each size."""
    prompts, rows = Prompts(executor), []
    for batch in BATCHES:
        side = Headway(executor, prompts, durations, batch)
        side.serve([0.0] * batch, None)  # warm
        done = side.serve([0.0] * AT_ONCE, None)
        row = {
            "batch": batch, "images_per_s": len(done) / max(done.values()),
            "in_time": sum(at <= deadline_s for at in done.values()), "first_s": min(done.values()),
        }  # fmt: skip
        rows.append(row)
        print(json.dumps(row), file=sys.stderr)
    result |= {"at_once": AT_ONCE, "deadline_s": deadline_s, "batches": rows}
    result["durations"] = durations.rows()


def loads(result: dict[str, Any], executor: DiffusionExecutor, factors: Iterable[float], seconds: float) -> None:
    """Goodput of every side at each load."""
    durations = Durations.of([(kind, tuple(size), *rest) for kind, size, *rest in result["durations"]])
    prompts, deadline_s = Prompts(executor), result["deadline_s"]
    dtype = torch.bfloat16 if executor.facts.weights_format == "bf16" else torch.float32
    capacity = next(row["images_per_s"] for row in result["batches"] if row["batch"] == 8)
    sides: dict[str, Side] = {f"batch {batch}": Headway(executor, prompts, durations, batch) for batch in BATCHES}
    sides["deadline rule"] = Headway(executor, prompts, durations, SEATS, promises=True)
    sides |= {f"diffusers {batch}": Diffusers(prompts, batch, dtype) for batch in (1, 8)}
    for factor in factors:
        arrivals = poisson(factor * capacity, seconds, seed=round(100 * factor))
        row: dict[str, Any] = {"load": factor, "arrivals": len(arrivals), "seconds": seconds, "goodput": {}}
        for name, side in sides.items():
            done = side.serve(arrivals, deadline_s)
            row["goodput"][name] = sum(at <= arrivals[place] + deadline_s for place, at in done.items()) / seconds
        result["loads"] = [*(each for each in result.get("loads", []) if each["load"] != factor), row]
        result["loads"].sort(key=lambda each: each["load"])
        print(json.dumps(row), file=sys.stderr)


def table(result: dict[str, Any]) -> str:
    """Markdown."""
    lines = [f"| batch | images/s | of {AT_ONCE} in time ({result['deadline_s'] * 1e3:.0f} ms) |", "|---|---|---|"]
    lines += [f"| {row['batch']} | {row['images_per_s']:.1f} | {row['in_time']} |" for row in result["batches"]]
    if found := result.get("loads"):
        names = list(found[0]["goodput"])
        lines += ["", "| load (arrivals/s) | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
        for row in found:
            best = max(value for name, value in row["goodput"].items() if name.startswith("batch"))
            cells = [f"{row['goodput'][name]:.1f}" for name in names]
            cells[names.index("deadline rule")] += f" ({row['goodput']['deadline rule'] / best:.2f} of the best)"
            rate = row["arrivals"] / row["seconds"]
            lines.append(f"| {row['load']:g} ({rate:.0f}) | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(result: dict[str, Any], path: Path) -> None:
    """Both tables side by side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    sizes = [str(row["batch"]) for row in result["batches"]]
    left.plot(sizes, [row["images_per_s"] for row in result["batches"]], "o-", color="#0072b2")
    left.set(xlabel="batch size", title=f"{AT_ONCE} images at once, due after {result['deadline_s'] * 1e3:.0f} ms")
    left.set_ylabel("images per second", color="#0072b2")
    left.set_ylim(0)
    other = left.twinx()
    other.bar(sizes, [row["in_time"] for row in result["batches"]], color="#d55e00", alpha=0.5, width=0.5)
    other.set_ylabel("images in time", color="#d55e00")
    rows = result.get("loads", [])
    for name in rows[0]["goodput"] if rows else ():
        style = {"deadline rule": ("k-", 2.5), "diffusers 1": (":", 1.5), "diffusers 8": (":", 1.5)}.get(
            name, ("-", 1)
        )
        rates = [row["arrivals"] / row["seconds"] for row in rows]
        right.plot(rates, [row["goodput"][name] for row in rows], style[0], lw=style[1], marker=".", label=name)
    right.set(
        xlabel="arrivals per second", ylabel="images in time per second", title="goodput by load", ylim=(0, None)
    )
    right.legend(fontsize=8)
    figure.suptitle(f"emoji-64, {result['cpu']}, {result['cores']} cores, {result['date']}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("batches", "load", "plot"))
    parser.add_argument("loads", nargs="*", type=float)
    parser.add_argument("--deadline", type=float, default=0.5, help="seconds")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    result: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() and args.part != "batches" else {}
    if args.part != "plot":
        executor = DiffusionExecutor.load(
            resolve("emoji-64"), cache=Cache.at(None).converted, weights=args.weights, threads=args.threads
        )
        if args.part == "batches":
            batches(result, executor, Durations(), args.deadline)
        else:
            loads(result, executor, args.loads, args.seconds)
        result |= {"what": "images in time", "weights": executor.facts.weights_format} | machine()
        FILE.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    if args.part == "plot":
        plot(result, RESULTS / "images.png")


if __name__ == "__main__":
    main()
