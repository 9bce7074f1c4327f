"""Make the text-to-image model `emoji-64` from emoji with names. Each part goes on from where it stopped.

    pip install diffusers resvg-py pillow
    python tools/train_emoji.py pictures            # fetch with npm, rasterise
    python tools/train_emoji.py autoencoder         # then encodes the pictures
    python tools/train_emoji.py transformer
    python tools/train_emoji.py save models/emoji-64
    python tools/train_emoji.py measure models/emoji-64
    python tools/train_emoji.py grid models/emoji-64 docs/emoji.png
    python tools/train_emoji.py untrained FOLDER    # random weights, for tests of what loads it
"""

from __future__ import annotations

import argparse
import os
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


def untrained(options: argparse.Namespace) -> None:
    from emoji import models

    torch.manual_seed(0)
    models.save(options.folder, models.autoencoder(beside=True), models.transformer())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("emoji-work"), help="folder for data and checkpoints")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    commands = parser.add_subparsers(required=True)
    for command in (pictures, autoencoder, untrained):
        one = commands.add_parser(command.__name__)
        one.set_defaults(command=command)
        if command is autoencoder:
            one.add_argument("--minutes", type=float, default=18, help="of processor time")
        if command is untrained:
            one.add_argument("folder", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.command(options)


if __name__ == "__main__":
    main()
