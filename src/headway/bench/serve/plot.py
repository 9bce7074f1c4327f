"""The figures as a picture. matplotlib is an extra, imported only here."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from headway.bench.serve.drive import Ends
from headway.bench.serve.figures import Answer
from headway.core.errors import ConfigError


def require_matplotlib() -> None:
    """Raises ConfigError where it is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError("--plot", "needs matplotlib: pip install 'headway[plots]'") from error
    matplotlib.use("Agg")  # no screen is needed


def picture(rows: Sequence[dict[str, Any]], ends: Sequence[Ends], title: str, format: str) -> bytes:
    """How TTFT and the gaps between tokens spread under each load, and output tokens per second by load. `rows` are
    summaries with their `load`, `ends` what each of them counts. Raises ConfigError for an unknown `format`."""
    from matplotlib import pyplot

    figure, (first, gaps, rate) = pyplot.subplots(1, 3, figsize=(13, 4))
    for row, found in zip(rows, ends, strict=True):
        answers = [end for end in found if isinstance(end, Answer)]
        _shares(first, [answer.ttft_ms for answer in answers if answer.ttft_ms is not None], row["load"])
        _shares(gaps, [gap for answer in answers for gap in answer.gaps_ms], row["load"])
    first.set(title="time to first token", xlabel="ms", ylabel="share of answers")
    gaps.set(title="gap between tokens", xlabel="ms", ylabel="share of gaps", xscale="log")
    for axis in (first, gaps):
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    names = [row["load"] for row in rows]
    rate.bar(names, [row["output_tok_s"] for row in rows], color="tab:blue", label="all")
    if all(row["goodput"] for row in rows):
        good = [row["goodput"]["output_tok_s"] for row in rows]
        rate.bar(names, good, color="tab:green", width=0.5, label="within the limits")
        rate.legend(fontsize=8)
    rate.set(title="output tokens per second")
    figure.suptitle(title, fontsize=9)
    figure.tight_layout()
    written = io.BytesIO()
    try:
        figure.savefig(written, dpi=110, format=format)
    except ValueError as error:
        raise ConfigError("--plot", f"a picture of the kind {format!r} cannot be written: {error}") from error
    finally:
        pyplot.close(figure)
    return written.getvalue()


def _shares(axis: Any, values: list[float], label: str) -> None:
    """The empirical distribution function."""
    ordered = sorted(values)
    axis.step(ordered, [(rank + 1) / len(ordered) for rank in range(len(ordered))], where="post", label=label)
