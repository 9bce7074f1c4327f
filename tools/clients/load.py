"""The load clients, unchanged: a few short streamed chats each, on synthetic prompts, and what each client counted.

They count tokens themselves and need a tokenizer for that. It is made a folder from the model's own, as Headway keeps
it, so that none is looked for in a hub. A server given by `--url` must serve a model that `headway models` knows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import environments
import page
from servers import Target

REQUESTS, CONCURRENCY, PROMPT_TOKENS, OUTPUT_TOKENS = 6, 2, 64, 16
PATIENCE_S = 900


def run(client: environments.Client, cache: Path, model: str, target: Target, logs: Path) -> page.Load:
    """Never raises for what the client does: that is what the table tells."""
    words, read = CLIENTS[client.name]
    try:
        folder = environments.make(client, cache)
        place = logs / client.folder
        tokenizer = _tokenizer(model, place)
        options = words(folder, target, tokenizer, place)
        print(f"{client.name}: {REQUESTS} requests …", flush=True)
        environ = os.environ | {"PYTHONPATH": str(folder / "unpacked"), "OPENAI_API_KEY": target.key}
        ended = subprocess.run(
            options, cwd=place, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=PATIENCE_S,
        )  # fmt: skip
        load = read(place)
    except (environments.Missing, subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        load = page.Load(0, REQUESTS, f"not run: {error}")
    except FileNotFoundError:
        last = [line for line in ended.stdout.splitlines() if line.strip()][-1:]
        load = page.Load(0, REQUESTS, f"no result, status {ended.returncode}: {' '.join(last)}")
    print(f"{client.name}: completed {load.completed}, failed {load.failed} {load.reason}", flush=True)
    return load


def _tokenizer(model: str, place: Path) -> Path:
    """A folder that transformers reads as a tokenizer."""
    asked = [sys.executable, "-m", "headway", "models", model, "--json"]
    facts = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    folder = place / "tokenizer"
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_bytes(Path(facts["tokenizer"]).read_bytes())
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": facts["max_context"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


# -- guidellm ---------------------------------------------------------------------------------------------------


def _guidellm(folder: Path, target: Target, tokenizer: Path, place: Path) -> list[str]:
    return [
        environments.python(folder), "-m", "guidellm", "run", "--disable-console",
        "--backend", f"kind=openai_http,target={target.url},model={target.model},api_key={target.key}",
        "--profile", f"kind=concurrent,streams={CONCURRENCY}",
        "--constraint", f"kind=max_requests,count={REQUESTS}",
        "--tokenizer", f"kind=huggingface_auto,model={tokenizer}",
        "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}",
        "--output", f"kind=json,path={place / 'result.json'}",
    ]  # fmt: skip


def _of_guidellm(place: Path) -> page.Load:
    (benchmark,) = _json(place / "result.json")["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    errors = {str(request["info"].get("error")) for request in benchmark["requests"]["errored"]}
    return page.Load(totals["successful"], totals["errored"] + totals["incomplete"], "; ".join(sorted(errors)))


# -- aiperf -----------------------------------------------------------------------------------------------------


def _aiperf(folder: Path, target: Target, tokenizer: Path, place: Path) -> list[str]:
    return [
        environments.python(folder), "-m", "aiperf", "profile", "--url", target.url, "--model", target.model,
        "--api-key", target.key, "--endpoint-type", "chat", "--streaming", "--tokenizer", str(tokenizer),
        "--concurrency", str(CONCURRENCY), "--request-count", str(REQUESTS),
        "--isl", str(PROMPT_TOKENS), "--osl", str(OUTPUT_TOKENS),
        "--output-artifact-dir", str(place / "result"), "--ui", "none",
    ]  # fmt: skip


def _of_aiperf(place: Path) -> page.Load:
    result = _json(place / "result" / "profile_export_aiperf.json")
    completed = int(result["completed_request_count"]["avg"])
    errors = "; ".join(json.dumps(error) for error in result["error_summary"])
    return page.Load(completed, REQUESTS - completed, errors)


# -- vllm bench serve -------------------------------------------------------------------------------------------


def _vllm(folder: Path, target: Target, tokenizer: Path, place: Path) -> list[str]:
    return [
        environments.python(folder), "-m", "vllm.entrypoints.cli.main", "bench", "serve",
        "--backend", "openai-chat", "--base-url", target.url, "--endpoint", "/v1/chat/completions",
        "--model", target.model, "--tokenizer", str(tokenizer), "--dataset-name", "random",
        "--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(OUTPUT_TOKENS),
        "--num-prompts", str(REQUESTS), "--max-concurrency", str(CONCURRENCY),
        "--save-result", "--save-detailed", "--result-dir", str(place), "--result-filename", "result.json",
    ]  # fmt: skip


def _of_vllm(place: Path) -> page.Load:
    result = _json(place / "result.json")
    errors = "; ".join(sorted({error for error in result.get("errors", []) if error}))
    return page.Load(result["completed"], result["failed"], errors)


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


Words = Callable[[Path, Target, Path, Path], list[str]]
#: By the name in versions.toml: its command line, and how its own result is read.
CLIENTS: dict[str, tuple[Words, Callable[[Path], page.Load]]] = {
    "guidellm": (_guidellm, _of_guidellm),
    "aiperf": (_aiperf, _of_aiperf),
    "vllm bench serve": (_vllm, _of_vllm),
}
