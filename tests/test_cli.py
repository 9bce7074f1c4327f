"""The command line: quick to help, one clear line for an error."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway import cli
from headway.artifacts.files import ModelFiles
from headway.cli import main, models
from headway.core.errors import ConfigError

SLOW = ("torch", "rich", "httpx", "numpy", "gguf", "tokenizers", "starlette", "httptools", "jinja2")


def test_help_imports_nothing_that_is_slow_and_is_there_in_a_blink() -> None:
    code = (
        "import sys\nfrom headway.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        f"print(sorted(set({SLOW}) & set(sys.modules)), file=sys.stderr)"
    )
    quickest = float("inf")
    for _ in range(5):  # the machine may be busy: the quickest of a few says what the work costs
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        quickest = min(quickest, time.perf_counter() - start)
    assert done.stderr.strip() == "[]"
    assert all(name in done.stdout for name in cli.COMMANDS)
    assert quickest < 0.3


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_commands_help_is_there_in_a_blink(name: str) -> None:
    for _ in range(8):  # as above: once it was quick, it is quick
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "headway", name, "--help"], capture_output=True, text=True)
        took_s = time.perf_counter() - start
        assert done.returncode == 0 and f"usage: headway {name}" in done.stdout
        if took_s < 0.3:
            return
    raise AssertionError(f"headway {name} --help took {took_s:.2f} s at last")


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(f"{name} {help}" in shown for name, help in cli.COMMANDS.items())


def test_an_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["srve"])
    assert caught.value.code == 2 and "'srve'" in capsys.readouterr().err


def test_an_error_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["models", "smolm2", "--offline"]) == 2
    out, err = capsys.readouterr()
    assert (
        out == "" and err.count("\n") == 1 and err.startswith("headway: no model, file or folder is called 'smolm2'")
    )


@pytest.mark.parametrize(
    ("raised", "status"), [(KeyboardInterrupt(), 130), (ConfigError("--seats", "no"), 2), (None, 0)]
)
def test_the_status_says_how_it_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException | None, status: int
) -> None:
    def run(args: object) -> int:
        if raised is not None:
            raise raised
        return 0

    monkeypatch.setattr(models, "run", run)
    assert main(["models"]) == status
    assert capsys.readouterr().err == ("headway: --seats: no\n" if status == 2 else "")


def test_models_lists_every_alias_and_whether_it_is_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    assert main(["models", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["data"]}
    assert {name: row["pattern"] for name, row in rows.items()} == {
        "smollm2-135m": "text", "minilm-l6": "embed", "bge-small-en": "embed", "ms-marco-minilm-l12": "embed",
        "emoji-64": "image",
    }  # fmt: skip
    assert not any(row["cached"] for row in rows.values())
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in rows)


def test_models_with_a_name_prints_its_facts(smollm2: ModelFiles, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "smollm2-135m", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["revision"] == smollm2.revision and facts["max_context"] == 8192 and facts["eos_ids"] == [2]
    heads = 2 * 30 * 3  # keys and values, layers, heads of 64
    assert facts["state_bytes_per_position"] == {
        "fp32": heads * 64 * 4, "bf16": heads * 64 * 2, "int8": heads * (64 + 2)
    }  # fmt: skip
    assert main(["models", "smollm2-135m"]) == 0
    out = capsys.readouterr().out
    assert smollm2.revision in out and "fp32 46,080, bf16 23,040, int8 11,880" in out


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = [sys.executable, "-m", "headway", "models", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    with process.stderr as told:
        assert told.read() == ""
    assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["headway", "do"], {"doctor"}),
        (["headway", "serve", "--sea"], {"--seats"}),
        (["headway", "completion", "z"], {"zsh"}),
    ],
)
def test_bash_completes_commands_options_and_choices(words: list[str], wanted: set[str], tmp_path: Path) -> None:
    script = tmp_path / "headway.bash"
    made = subprocess.run([sys.executable, "-m", "headway", "completion", "bash"], capture_output=True, text=True)
    script.write_text(made.stdout, encoding="utf-8")
    ask = (
        f"source {shlex.quote(str(script))}; COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; "
        f'_shtab_headway headway {words[-1]} {words[-2]}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    said = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout.split()
    assert set(said) == wanted
