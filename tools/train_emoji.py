"""Make the text-to-image model `emoji-64` from emoji with names.

The commands, in this order; training goes on from its last checkpoint when it was stopped:

    pip install diffusers resvg-py pillow
    python tools/train_emoji.py pictures            # fetch with npm, rasterise
    python tools/train_emoji.py autoencoder         # then encodes the pictures
    python tools/train_emoji.py transformer
    python tools/train_emoji.py save models/emoji-64
    python tools/train_emoji.py measure models/emoji-64
    python tools/train_emoji.py grid models/emoji-64 docs/emoji.png

`untrained FOLDER` writes a folder of the same form with random weights, for tests of what loads it.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

import torch


def pictures(options: argparse.Namespace) -> None:
    from emoji import sets

    sets.fetch(options.work)
    sets.build(options.work)


def autoencoder(options: argparse.Namespace) -> None:
    import numpy as np
    from emoji import autoencoder, prompts, sets

    known, pixels = sets.load(options.work)
    drawn = np.array([sample.at for samples in prompts.samples(known) for sample in samples])
    autoencoder.train(options.work, pixels, drawn, options.minutes * 60)
    autoencoder.encode(options.work, pixels)


def transformer(options: argparse.Namespace) -> None:
    from emoji import diffusion, prompts, sets

    known, _ = sets.load(options.work)
    trained, held = prompts.samples(known)
    print(f"{len(trained)} pictures of {len({sample.name for sample in trained})} names; {len(held)} held out")
    latents = torch.load(options.work / "latents.pt", weights_only=True)
    draw = diffusion.Draw(trained, latents, prompts.TextFeatures())
    diffusion.train(options.work / "transformer.pt", draw, options.minutes * 60)


def save(options: argparse.Namespace) -> None:
    from emoji import autoencoder, models
    from emoji.progress import averaged

    dit = averaged(options.work / "transformer.pt", models.transformer())
    models.save(options.folder, autoencoder.trained(options.work), dit)


def measure(options: argparse.Namespace) -> None:
    from emoji import autoencoder, diffusion, measure, models, prompts, sets

    known, pixels = sets.load(options.work)
    trained, held = prompts.samples(known)
    names = sorted({sample.name for sample in trained})
    if not (options.work / "classifier.pt").exists():
        measure.train(options.work, known, pixels, names, options.minutes * 60)
    judge, parts, features = measure.Judge(options.work, names), models.load(options.folder), prompts.TextFeatures()
    chosen = measure.fifty(trained)
    for style in ("noto", "gradient"):
        real = [(at, one.name) for at, one in enumerate(known) if one.style == style and one.name in chosen]
        images = autoencoder.as_tensor(pixels[[at for at, _ in real]])
        with torch.no_grad():
            decoded = parts[0].decode(parts[0].encode(images).latent_dist.mean).sample
        for kind, shown in (("real", images), ("decoded", decoded)):
            print(f"{kind}, {style}: {judge.hits(shown, [name for _, name in real], chosen)} of {len(real)}")

    def draw(texts: Sequence[str], seed: int) -> torch.Tensor:
        return diffusion.sample(parts, features, texts, steps=options.steps, guidance=options.guidance, seed=seed)

    print(json.dumps(measure.measure(judge, draw, trained, held, options.seeds)))


def grid(options: argparse.Namespace) -> None:
    from emoji import diffusion, measure, models, prompts, sets
    from emoji.autoencoder import as_pixels
    from PIL import Image

    names = measure.fifty(prompts.samples(sets.load(options.work)[0])[0])
    usual = [*names[:24], *[f"flat {name}" for name in names[:12]], *map(prompts.unseen, names[24:36])]
    texts = options.prompts or usual
    images = diffusion.sample(models.load(options.folder), prompts.TextFeatures(), texts, seed=options.seed)
    page = Image.new("RGB", (64 * options.columns, 64 * -(-len(texts) // options.columns)), "white")
    for place, pixels in enumerate(as_pixels(images)):
        row, column = divmod(place, options.columns)
        page.paste(Image.fromarray(pixels), (64 * column, 64 * row))
    page.quantize(256, dither=Image.Dither.NONE).save(options.file, optimize=True)
    print("\n".join(", ".join(texts[at : at + options.columns]) for at in range(0, len(texts), options.columns)))


def untrained(options: argparse.Namespace) -> None:
    from emoji import models

    torch.manual_seed(0)
    models.save(options.folder, models.autoencoder(beside=True), models.transformer())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("emoji-work"), help="folder for data and checkpoints")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    commands = parser.add_subparsers(required=True)
    made = {}
    for command in (pictures, autoencoder, transformer, save, measure, grid, untrained):
        made[command] = commands.add_parser(command.__name__)
        made[command].set_defaults(command=command)
    for command, minutes in ((autoencoder, 6), (transformer, 30), (measure, 1.5)):
        made[command].add_argument("--minutes", type=float, default=minutes, help="of processor time to train")
    for command in (save, measure, grid, untrained):
        made[command].add_argument("folder", type=Path)
    made[measure].add_argument("--steps", type=int, default=20)
    made[measure].add_argument("--guidance", type=float, default=3.0)
    made[measure].add_argument("--seeds", type=int, default=4)
    made[grid].add_argument("file", type=Path)
    made[grid].add_argument("--prompts", nargs="+")
    made[grid].add_argument("--columns", type=int, default=12)
    made[grid].add_argument("--seed", type=int, default=0)
    return parser


def main() -> None:
    options = _parser().parse_args()
    torch.set_num_threads(options.threads)
    options.command(options)


if __name__ == "__main__":
    main()
