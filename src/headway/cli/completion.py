"""`headway completion SHELL`: a script that completes commands and options in a shell.

bash   headway completion bash > ~/.local/share/bash-completion/completions/headway
zsh    headway completion zsh > ~/.zfunc/_headway     (with ~/.zfunc in fpath)
"""

from __future__ import annotations

import argparse
import importlib

from headway.cli import COMMANDS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="which shell the script is for")


def run(args: argparse.Namespace) -> int:
    """Prints the script. Changes nothing: where it is to be kept is the shell's affair."""
    import shtab

    print(shtab.complete(_everything(), shell=args.shell))
    return 0


def _everything() -> argparse.ArgumentParser:
    """One parser with all commands and their options; elsewhere only the chosen one is imported."""
    parser = argparse.ArgumentParser("headway")
    commands = parser.add_subparsers()
    for name, about in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about)
        importlib.import_module(f"headway.cli.{name}").add_arguments(command)
    return parser
