"""A log of up to two text models, an encoder and a diffusion model at once, by the real engine on fake executors."""

from __future__ import annotations

from headway.core import events as ev
from mixed_world import LATENT, MixedWorld

BLOCKS = 24


def mixed_log(*names: str) -> list[ev.AnyEvent]:
    """Several requests of each of these of MixedWorld's models, preceded by what a replica says of them."""
    world = MixedWorld(blocks=BLOCKS, size=4, latents=2, seats=3, budget=12, bypass=2, names=names)
    for turn in range(6):
        if "text" in names:
            world.text(f"t{turn}", 14 + turn, 9)
        if "other" in names:
            world.text(f"o{turn}", 9 + turn, 6, "other")
        if "embed" in names:
            world.embed(f"e{turn}", 5, 4, 20 if turn == 2 else 3)
        if "image" in names:
            world.image(f"i{turn}", 4)
        for _ in range(12):
            if world.engine.busy:
                world.step()
    world.run()
    return [*map(loaded, names), *world.events]


def loaded(name: str) -> ev.Loaded:
    pattern = name if name in ("embed", "image") else "text"
    blocks, block_bytes = {"text": (BLOCKS, 64), "embed": (0, 0), "image": (2 * LATENT, 1)}[pattern]
    return ev.Loaded(at=0, model=name, blocks=blocks, block_tokens=4, block_bytes=block_bytes, seats=3,
                     step_tokens=12, threads=1, weights="fp32", pattern=pattern)  # fmt: skip
