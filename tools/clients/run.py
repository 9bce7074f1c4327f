"""Runs the field's clients, unchanged, against Headway, and writes what came of it as docs/clients.md.

    python tools/clients/run.py --tools-model PATH.gguf --output docs/clients.md
    python tools/clients/run.py --tools-model PATH.gguf --only LangChain "openai-python 3.x" --tasks overflow,stops
    python tools/clients/run.py --url http://127.0.0.1:8000 --model NAME --tools-url … --tools-model NAME --key KEY

It needs Headway installed in the Python that runs it, and for two clients Node.js 22 with npm. Everything else is
installed, as versions.toml pins it, into a cache folder, which later runs reuse. Servers that are given by `--url`
must have no other users meanwhile: a cancelled stream is looked up as the newest request.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import platformdirs

import environments
import load
import page
import servers
from page import Outcome
from servers import Target

#: Far more than all tasks take on two slow cores; a client that hangs is ended.
CLIENT_PATIENCE_S = 1800


def main() -> int:
    options = _options()
    clients = [client for client in environments.read("client") if not options.only or client.name in options.only]
    loads = [client for client in environments.read("load") if not options.only or client.name in options.only]
    if unknown := set(options.only) - {client.name for client in clients + loads}:
        print(f"run.py: versions.toml has no client {sorted(unknown)[0]!r}", file=sys.stderr)
        return 2
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        target = _target(options, stack, logs)
        results = {client: _run(client, options, target) for client in clients}
        loads = [] if options.tasks else loads
        loaded = {client: load.run(client, options.cache, options.model, target, logs) for client in loads}
    text = page.write(results, loaded, options.model, options.tools_model)
    if options.output:
        options.output.write_text(text, encoding="utf-8")
        print(f"written: {options.output}")
    else:
        print(text)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="for the tasks without tools (default %(default)s)")
    parser.add_argument("--tools-model", required=True, help="a model whose chat template has tools")
    parser.add_argument("--url", help="a running server of --model; without it one is started")
    parser.add_argument("--tools-url", help="a running server of --tools-model; without it one is started")
    parser.add_argument("--key", default="sk-clients", help="the API key of the servers")
    parser.add_argument("--cache", type=Path, default=platformdirs.user_cache_path("headway-clients"),
                        help="where clients are installed (default %(default)s)")  # fmt: skip
    parser.add_argument("--only", nargs="+", default=[], metavar="CLIENT", help="names of versions.toml")
    parser.add_argument("--tasks", default="", metavar="TASK,TASK", help="only these of tasks.json, and no load")
    parser.add_argument("--output", type=Path, help="the Markdown file to write; without it, it is printed")
    return parser.parse_args()


def _target(options: argparse.Namespace, stack: contextlib.ExitStack, logs: Path) -> Target:
    url, model, tools_url, tools_model = options.url, options.model, options.tools_url, options.tools_model
    if url is None:
        model = "plain"
        url = stack.enter_context(servers.serving(options.model, model, options.key, logs / "plain.log"))
    if tools_url is None:
        tools_model, log = "tools", logs / "tools.log"
        tools_url = stack.enter_context(servers.serving(options.tools_model, tools_model, options.key, log))
    return Target(url, model, tools_url, tools_model, options.key)


def _run(client: environments.Client, options: argparse.Namespace, target: Target) -> dict[str, Outcome]:
    """What came of each task. A client that could not run, or ended early, has its reason in the missing ones."""
    wanted = [task for task, _ in page.TASKS if not options.tasks or task in options.tasks.split(",")]
    found: dict[str, Outcome] = {}
    try:
        words, folder = _script(client, environments.make(client, options.cache))
        reason = _ask([*words, *target.options(), "--only", ",".join(wanted)], folder, client.name, found)
    except environments.Missing as missing:
        reason = f"not run: {missing}"
        print(f"{client.name}: {reason}", flush=True)
    return {task: found.get(task, Outcome(False, reason)) for task in wanted}


def _script(client: environments.Client, folder: Path) -> tuple[list[str], Path]:
    if not client.in_node:
        return [environments.python(folder), str(environments.HERE / client.script)], folder
    for name in ("tasks.json", "tasks.mjs", client.script):
        shutil.copy(environments.HERE / name, folder)  # node looks for packages where the script lies
    return ["node", client.script], folder


def _ask(words: list[str], folder: Path, name: str, found: dict[str, Outcome]) -> str:
    """Runs a script and enters its outcomes; returns what to say of tasks that have none."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            assert process.stdout is not None
            watch = threading.Timer(CLIENT_PATIENCE_S, process.kill)
            watch.start()
            for line in process.stdout:
                told = json.loads(line)
                found[told["task"]] = outcome = Outcome(told["ok"], told["detail"])
                print(f"{name}: {told['task']}: {page.WORDS[outcome.ok]}: {outcome.detail}", flush=True)
            watch.cancel()
        errors.seek(0)
        last = [line for line in errors.read().splitlines() if line.strip()][-1:]
    return f"the script ended early: {last[0] if last else f'status {process.returncode}'}"


if __name__ == "__main__":
    sys.exit(main())
