"""The start panel of `headway serve`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headway.artifacts.files import ModelFiles
from headway.core.config import Origins, ServeOptions
from headway.core.tiers import TierLevel, TierName
from headway.replica.messages import Ready, ReadyModel

_PLACES: dict[TierName, str] = {"host": "in host memory", "disk": "on disk"}


def start_panel(
    options: ServeOptions, origins: Origins, files: Mapping[str, ModelFiles], ready: Ready, *, url: str
) -> Panel:
    """What is served, within which bounds, where each value that is not the default came from. `files` are by the
    models' served names."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for model in ready.models:
        for label, value in _model_rows(model, files[model.name]).items():
            table.add_row(label, Text(value))
    table.add_row("compute", Text(f"{ready.threads} threads; {_kernels(ready, 'products')}"))
    if attention := _kernels(ready, "attention"):
        table.add_row("attention", Text(attention))
    table.add_row("loaded in", Text(f"{ready.load_ms / 1000:.1f} s"))
    for field, origin in origins.items():
        value = getattr(options, field)
        shown = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        shown = "set" if field == "api_key" else shown
        table.add_row("set", Text(f"{field.replace('_', '-')} = {shown}   from {origin}"))
    panel = Panel(table, title="Headway", subtitle=url, expand=False, border_style="green")
    return panel


def _kernels(ready: Ready, part: str) -> str:
    """What computes a part, each way once."""
    return "; ".join(dict.fromkeys(words for model in ready.models if (words := model.facts.kernels.get(part))))


def _model_rows(model: ReadyModel, files: ModelFiles) -> dict[str, str]:
    facts = model.facts
    rows = {
        "model": f"{model.name}   {files.source}",
        "revision": facts.revision,
        "weights": f"{size(facts.weights_bytes)} in {facts.weights_format}, held once for all requests",
    }
    if facts.weights_why:
        rows["weights"] += f" ({facts.weights_why})"
    if model.blocks:
        rows["pool"] = (
            f"{model.blocks:,} blocks of {model.block_tokens} positions, {size(model.reserved_bytes)}, "
            f"state (KV cache) in {facts.state_format}, "
            f"{facts.block_bytes // model.block_tokens:,} bytes per position"
        )
        if model.tiers:
            rows["tiers"] = "; ".join(map(_tier, model.tiers))
        rows["seats"] = f"{model.seats} sequences"
    if (images := facts.images) is not None:
        rows["pool"] = f"{size(model.reserved_bytes)} of latents and features in {facts.state_format}"
        rows["seats"] = f"{model.seats} images"
        rows["images"] = f"{images.sizes}; {images.noise}"
        return rows | {"prompts": f"up to {model.max_context} tokens"}
    gap = f", fewer where that keeps tokens within {model.gap_ms:g} ms" if model.gap_ms is not None else ""
    return rows | {
        "step budget": f"{model.step_tokens} positions{gap}",
        "context": f"{model.max_context:,} positions",
    }


def _tier(tier: TierLevel) -> str:
    held = f", {tier.blocks:,} held from before" if tier.blocks else ""
    return f"{tier.total:,} blocks {_PLACES[tier.name]}, {size(tier.total * tier.bytes)}{held}"


def curl(model: ReadyModel, url: str, *, keyed: bool) -> str:
    """A line to copy; a server with a key (`keyed`) takes it from the shell's HEADWAY_API_KEY."""
    path, body = _EXAMPLES[model.facts.output]
    key = ' -H "authorization: Bearer $HEADWAY_API_KEY"' if keyed else ""
    data = json.dumps({"model": model.name} | body)
    return f"curl {url}{path}{key} -H 'content-type: application/json' -d '{data}'"


#: By what comes out: where a request goes, and what it says.
_EXAMPLES: dict[str, tuple[str, dict[str, object]]] = {
    "tokens": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0},
    ),
    "pixels": ("/v1/images/generations", {"prompt": "a red fox"}),
    "vector": ("/v1/embeddings", {"input": "The capital of France is Paris."}),
    "score": (
        "/v1/rerank",
        {"query": "What is the capital of France?", "documents": ["Paris is its capital.", "It rained all day."]},
    ),
}


def size(bytes: int) -> str:
    """Bytes in binary units."""
    amount = float(bytes)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"
