"""`headway models`: the models that have short names; with a name, bring that model here and print its facts; with
`--clean`, remove converted weights that no server uses."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headway.core.config import Environment
from headway.core.errors import ConfigError, UnsupportedModel

if TYPE_CHECKING:
    from headway.artifacts.files import ModelFiles


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="a model to fetch and describe (a name of any form that serve takes)"
    )
    parser.add_argument("--offline", action="store_true", help="download nothing")
    parser.add_argument(
        "--clean",
        action="store_true",
        help="remove the converted weights that no running server uses (downloads are kept, and converted again when "
        "next served)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    environment = Environment.read()
    if args.clean:
        if args.name is not None:
            raise ConfigError(
                "--clean", f"removes all converted weights, not only those of {args.name}; leave out NAME"
            )
        freed = clean(environment)
        print(json.dumps(freed, indent=2)) if args.json else _print_freed(freed)
        return 0
    if args.name is None:
        rows = aliases(environment)
        print(json.dumps({"data": rows}, indent=2)) if args.json else _print_aliases(rows)
        return 0
    facts = describe(args.name, environment, args.offline)
    print(json.dumps(facts, indent=2)) if args.json else _print_facts(facts)
    return 0


def aliases(environment: Environment) -> list[dict[str, Any]]:
    """One row per alias: what it is, what a download costs (bytes, None if not known), and whether all of it is
    here."""
    from headway.artifacts.aliases import ALIASES, wheels
    from headway.artifacts.cache import Cache
    from headway.artifacts.wheel import cached

    cache = Cache.at(environment.cache)
    return [
        {
            "name": alias.name,
            "pattern": alias.pattern,
            "what": alias.what,
            "licence": alias.licence,
            "download_bytes": _sum(wheel.size_bytes for wheel in wheels(alias)),
            "cached": all(cached(wheel, cache) is not None for wheel in wheels(alias)),
        }
        for alias in ALIASES.values()
    ]


def _sum(sizes: Iterable[int | None]) -> int | None:
    known = list(sizes)
    return None if None in known else sum(size for size in known if size is not None)


def clean(environment: Environment) -> dict[str, Any]:
    """Remove converted weights that are in nobody's use. Returns what went and what stayed, in bytes."""
    from headway.artifacts.cache import Cache
    from headway.artifacts.converted import ConvertedWeights

    folder = Cache.at(environment.cache).converted
    cleaned = ConvertedWeights(folder).clean()
    sides = {"removed": cleaned.removed, "kept": cleaned.kept}
    return {
        "folder": str(folder),
        "freed_bytes": sum(entry.bytes for entry in cleaned.removed),
        "kept_bytes": sum(entry.bytes for entry in cleaned.kept),
        **{side: [{"name": e.path.name, "bytes": e.bytes} for e in entries] for side, entries in sides.items()},
    }


def _print_freed(freed: dict[str, Any]) -> None:
    print(f"Freed {_mebibytes(freed['freed_bytes'])}: {len(freed['removed'])} removed from {freed['folder']}.")
    if freed["kept"]:
        names = ", ".join(one["name"] for one in freed["kept"])
        print(f"Kept {_mebibytes(freed['kept_bytes'])} that are in use: {names}.")


def describe(name: str, environment: Environment, offline: bool) -> dict[str, Any]:
    """A model's facts, after downloading it if need be. Raises ArtifactError."""
    from headway.artifacts import resolve

    files = resolve(name, cache=environment.cache, offline=offline)
    return {
        "name": files.name,
        "source": files.source,
        "revision": files.revision,
        "architectures": files.config.get("architectures"),
        "layers": files.config.get("num_hidden_layers"),
        "hidden_size": files.config.get("hidden_size"),
        "vocab_size": files.config.get("vocab_size"),
        "max_context": files.max_context,
        "graph": list(files.graph),
        "usable": "image" if files.output == "pixels" else files.output,
        "text_encoder": None if files.pipeline is None else files.pipeline.text.name,
        "weights_bytes": files.weights_bytes,
        "state_bytes_per_position": _state_bytes(files) if files.output == "tokens" else None,
        "tensors": len(files.tensors.names()),
        "chat_template": files.chat_template is not None,
        "eos_ids": list(files.eos_ids),
        "tokenizer": str(files.tokenizer),
    }


def _state_bytes(files: ModelFiles) -> dict[str, int] | None:
    """What a position's keys and values take in each format of `--state`; None for a model that cannot be served."""
    from headway.compute.kernels.state_format import STATE_FORMATS
    from headway.compute.models.spec import DecoderSpec
    from headway.compute.text.executor import block_bytes

    try:
        spec = DecoderSpec.from_config(files.config, files.name)
    except UnsupportedModel:
        return None
    return {name: block_bytes(spec, 1, name) for name in STATE_FORMATS}


def _print_aliases(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("name", "pattern", "what", "licence", "download", "cached", box=None, pad_edge=False)
    for row in rows:
        size, here = row["download_bytes"], "yes" if row["cached"] else "no"
        table.add_row(*(row[key] for key in ("name", "pattern", "what", "licence")), _mebibytes(size), here)
    _console().print(table)


def _print_facts(facts: dict[str, Any]) -> None:
    from rich.table import Column, Table

    table = Table("fact", Column("value", overflow="fold"), box=None, show_header=False, pad_edge=False)
    facts = facts | {"graph": f"{' → '.join(facts['graph'])}; usable: {facts['usable']}"}
    for key, value in facts.items():
        if key == "usable" or value is None:
            continue
        shown = _mebibytes(value) if key.endswith("_bytes") else str(value)
        if key == "state_bytes_per_position":
            shown = ", ".join(f"{form} {size:,}" for form, size in value.items())
        table.add_row(key.removesuffix("_bytes").replace("_", " "), shown)
    _console().print(table)


def _console() -> Any:
    from headway.cli.console import make_console

    return make_console()


def _mebibytes(size: int | None) -> str:
    return "?" if size is None else f"{size / (1 << 20):.0f} MiB"
