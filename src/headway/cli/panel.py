"""The start panel of `headway serve`."""

from __future__ import annotations

import json

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headway.artifacts.files import ModelFiles
from headway.core.config import Origins, ServeOptions
from headway.replica.messages import Ready


def start_panel(
    options: ServeOptions, origins: Origins, files: ModelFiles, ready: Ready, *, name: str, url: str
) -> Panel:
    """What is served, within which bounds, where each value that is not the default came from."""
    facts = ready.facts
    rows = {
        "model": f"{name}   {files.source}",
        "revision": facts.revision,
        "weights": f"{size(facts.weights_bytes)} in {facts.weights_format}, held once for all requests",
        "pool": f"{ready.blocks:,} blocks of {ready.block_tokens} positions, "
        f"{size(ready.blocks * facts.block_bytes)}, state (KV cache) in {facts.state_format}",
        "seats": f"{ready.seats} sequences",
        "step budget": f"{ready.step_tokens} positions",
        "context": f"{ready.max_context:,} positions",
        "compute": f"{ready.threads} threads; {facts.kernels.get('products', '')}",
        "loaded in": f"{ready.load_ms / 1000:.1f} s",
    }
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows.items():
        table.add_row(label, Text(value))
    for field, origin in origins.items():
        value = getattr(options, field)
        shown = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        shown = "set" if field == "api_key" else shown
        table.add_row("set", Text(f"{field.replace('_', '-')} = {shown}   from {origin}"))
    panel = Panel(table, title="Headway", subtitle=url, expand=False, border_style="green")
    return panel


def curl(name: str, url: str, *, keyed: bool) -> str:
    """A line to copy; a server with a key (`keyed`) takes it from the shell's HEADWAY_API_KEY."""
    body = {
        "model": name,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
    }
    key = ' -H "authorization: Bearer $HEADWAY_API_KEY"' if keyed else ""
    return f"curl {url}/v1/chat/completions{key} -H 'content-type: application/json' -d '{json.dumps(body)}'"


def size(bytes: int) -> str:
    """Bytes in binary units."""
    amount = float(bytes)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"
