"""Options: declared once, read from four places, refused by name."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core import config, options
from headway.core.config import ClientOptions, Environment, Memory, Origins, ServeOptions
from headway.core.errors import ConfigError

SOURCE = Path(config.__file__).parent


def read(*argv: str, **environ: str) -> tuple[ServeOptions, Origins]:
    parser = argparse.ArgumentParser()
    config.add_arguments(parser, ServeOptions)
    return config.read_options(ServeOptions, parser.parse_args(argv), environ)


def test_the_defaults_are_those_of_the_public_contract() -> None:
    expected = {
        "host": "127.0.0.1", "port": 8000, "memory": Memory(), "block_tokens": 16, "seats": 64, "step_tokens": None,
        "max_context": None, "policy": "fcfs", "admit": "headroom", "recovery": "warn", "weights": "auto",
        "state": "auto", "threads": None, "max_waiting": 512, "max_bypass": 32, "prefix_cache": True,
        "host_tier": None, "disk_tier": None, "disk_tier_bytes": None, "event_log": None, "log_prompts": False,
        "api_key": None, "model": ("smollm2-135m",), "served_name": None, "config": None,
        "max_waiting_positions": 1 << 20, "max_seconds": None, "max_body": Memory(bytes=32 << 20),
        "slow_reader_seconds": 30, "keep_alive_seconds": 75, "allow_origin": (), "draft": "none",
        "event_log_bytes": Memory(bytes=512 << 20), "max_slowdown": 2.0, "native": "auto", "gap_ms": 150.0,
    }  # fmt: skip
    assert {name: getattr(ServeOptions(), name) for name in dataclasses.asdict(ServeOptions())} == expected
    assert read() == (ServeOptions(), {})
    ServeOptions().validate()


def test_command_line_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "headway.toml"
    file.write_text('seats = 1\nstep-tokens = 301\nmax_bypass = 5\nmodel = "m"\nprefix-cache = false\nhost = "h"\n')
    chosen, origins = read(
        "--config", str(file), "--seats", "3", HEADWAY_SEATS="2", HEADWAY_STEP_TOKENS="302", HEADWAY_HOST=""
    )
    assert (chosen.seats, chosen.step_tokens, chosen.max_bypass) == (3, 302, 5)
    assert (chosen.model, chosen.prefix_cache, chosen.host) == (("m",), False, "h")
    assert origins == {
        "config": "--config", "seats": "--seats", "step_tokens": "HEADWAY_STEP_TOKENS", "max_bypass": "headway.toml",
        "model": "headway.toml", "prefix_cache": "headway.toml", "host": "headway.toml",
    }  # fmt: skip
    assert read(HEADWAY_CONFIG=str(file))[0].seats == 1


def test_a_value_that_equals_the_default_has_no_origin() -> None:
    assert read("--seats", "64", HEADWAY_PORT="8000")[1] == {}


def test_every_option_is_read_from_the_environment_and_the_file_as_from_the_command_line(tmp_path: Path) -> None:
    texts = {
        "host": "::1", "port": "1", "memory": "1GiB", "block_tokens": "2", "seats": "3", "step_tokens": "4",
        "max_context": "5", "policy": "fair", "admit": "reserve", "recovery": "auto", "weights": "int8",
        "state": "fp32", "threads": "6", "max_waiting": "7", "max_bypass": "8", "prefix_cache": "false",
        "host_tier": "9MiB", "disk_tier": "d", "disk_tier_bytes": "10MiB", "event_log": "e", "log_prompts": "true",
        "api_key": "k", "model": "m", "served_name": "n", "max_waiting_positions": "11", "max_seconds": "12",
        "max_body": "13MiB", "slow_reader_seconds": "14", "keep_alive_seconds": "15", "allow_origin": "https://o",
        "draft": "ngram:3", "event_log_bytes": "15MiB", "max_slowdown": "3", "native": "off",
        "gap_ms": "16",
    }  # fmt: skip
    assert {*texts, "config"} == {field.name for field in dataclasses.fields(ServeOptions)}
    for name, text in texts.items():
        switch = {"true": [options.flag(name)], "false": [options.flag(name).replace("--", "--no-")]}
        shell, _ = read(*switch.get(text, [options.flag(name), text]))
        from_environment, origins = read(**{"HEADWAY_" + name.upper(): text})
        assert origins == {name: "HEADWAY_" + name.upper()}
        file = tmp_path / "o.toml"
        file.write_text(f"{name.replace('_', '-')} = " + (text if text.isdigit() or text in switch else f'"{text}"'))
        from_file, _ = read(HEADWAY_CONFIG=str(file))
        assert shell == from_environment == dataclasses.replace(from_file, config=None) != ServeOptions()


def test_models_are_repeated_separated_by_commas_or_listed(tmp_path: Path) -> None:
    file = tmp_path / "headway.toml"
    file.write_text('model = ["a", "b"]')
    for chosen, _ in (read("a", "--model", "b"), read("--model", "a", "--model", "b"), read(HEADWAY_MODEL="a,b"),
                      read(HEADWAY_CONFIG=str(file))):  # fmt: skip
        assert chosen.model == ("a", "b")
    assert read("a") == (ServeOptions(model=("a",)), {"model": "MODEL"})


@pytest.mark.parametrize(
    ("environ", "option", "message"),
    [
        ({"HEADWAY_SEATS": "many"}, "--seats", "'many' is not a whole number (from HEADWAY_SEATS)"),
        ({"HEADWAY_SEATS": "0"}, "--seats", "must be at least 1, got 0"),
        ({"HEADWAY_SEATS": "-1"}, "--seats", "must be at least 1, got -1"),
        ({"HEADWAY_MAX_SLOWDOWN": "0.5"}, "--max-slowdown", "must be at least 1, got 0.5"),
        ({"HEADWAY_MAX_SLOWDOWN": "twice"}, "--max-slowdown", "'twice' is not a number like 2 or 1.5"),
        ({"HEADWAY_BLOCK_TOKENS": "257"}, "--block-tokens", "must be at most 256, got 257"),
        ({"HEADWAY_PORT": "65536"}, "--port", "must be at most 65535, got 65536"),
        ({"HEADWAY_MEMORY": "-2GiB"}, "--memory", "'-2GiB' is not a size"),
        ({"HEADWAY_MEMORY": "2GB"}, "--memory", "'2GB' is not a size"),
        ({"HEADWAY_MEMORY": "1.5blocks"}, "--memory", "not a whole number of blocks"),
        ({"HEADWAY_HOST_TIER": "5blocks"}, "--host-tier", "'5blocks' is not a size"),
        ({"HEADWAY_POLICY": "fcsf"}, "--policy", "did you mean fcfs?"),
        ({"HEADWAY_LOG_PROMPTS": "maybe"}, "--log-prompts", "neither true nor false"),
        ({"HEADWAY_SEAT": "1"}, "--seats", "the environment has HEADWAY_SEAT; did you mean HEADWAY_SEATS?"),
        ({"HEADWAY_CONFIG": "/nowhere.toml"}, "--config", "cannot read /nowhere.toml"),
    ],
)
def test_a_value_that_cannot_work_names_option_need_and_source(
    environ: dict[str, str], option: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**environ)
    assert caught.value.option == option
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("seat = 1", "the unknown key 'seat'; did you mean seats?"),
        ("step_token = 1", "did you mean step-tokens?"),
        ("config = 'x'", "the unknown key 'config'"),
        ("seats = 1.5", "'1.5' is not a whole number (from headway.toml)"),
        ("seats = true", "'True' is not a whole number"),
        ("[seats]\nx = 1", "is not one value"),
        ("seats = [1]", "is not one value"),
        ("seats = ", "is not TOML"),
    ],
)
def test_a_mistake_in_the_file_names_the_file_and_what_was_meant(tmp_path: Path, toml: str, message: str) -> None:
    (tmp_path / "headway.toml").write_text(toml)
    with pytest.raises(ConfigError) as caught:
        read("--config", str(tmp_path / "headway.toml"))
    assert message in str(caught.value) and "headway.toml" in str(caught.value)


def test_variables_of_other_programs_are_left_alone() -> None:
    assert read(HEADWAY_SERVICE_HOST="10.0.0.1", HEADWAY_CACHE="/c", HEADWAY_URL="u", SEATS="1") == read()


def test_more_seats_than_step_tokens_cannot_work() -> None:
    with pytest.raises(ConfigError, match=r"--seats: 600 is more than --step-tokens, which is 512") as caught:
        ServeOptions(seats=600, step_tokens=512).validate()
    assert caught.value.option == "--seats"
    ServeOptions(seats=600, step_tokens=600).validate()


def test_an_automatic_step_has_room_for_every_seat() -> None:
    ServeOptions(seats=600).validate()
    assert ServeOptions(seats=600).most_step_tokens == 600
    assert ServeOptions().most_step_tokens == 512 == ServeOptions(step_tokens=512).most_step_tokens
    assert read("--step-tokens", "auto") == read()
    assert read("--step-tokens", "256")[0].step_tokens == 256


def test_a_gap_is_kept_by_an_automatic_step_and_refused_beside_a_fixed_one() -> None:
    assert ServeOptions(gap_ms=80).kept_gap_ms == 80 and ServeOptions(step_tokens=64).kept_gap_ms is None
    with pytest.raises(ConfigError, match=r"--gap-ms: a step of --step-tokens 256 keeps no gap; set it to auto"):
        ServeOptions(step_tokens=256, gap_ms=80).validate()


def test_state_has_four_formats_and_a_refusal_names_them() -> None:
    for state in ("auto", "fp32", "bf16", "int8"):
        ServeOptions(state=state).validate()
    with pytest.raises(ConfigError, match="auto, fp32, bf16, int8") as caught:
        ServeOptions(state="int9").validate()
    assert caught.value.option == "--state"


@pytest.mark.parametrize(
    ("options", "option", "words"),
    [({"disk_tier": "d"}, "--disk-tier", "needs --disk-tier-bytes as well"),
     ({"disk_tier_bytes": Memory(bytes=1)}, "--disk-tier-bytes", "needs --disk-tier as well"),
     ({"host_tier": Memory(bytes=1), "prefix_cache": False}, "--host-tier", "needs prefix caching, which is off")],
)  # fmt: skip
def test_tiers_that_cannot_work_are_refused(options: dict[str, object], option: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        ServeOptions(**options).validate()
    assert caught.value.option == option


def test_what_is_implemented_is_not_refused() -> None:
    ServeOptions(host_tier=Memory(bytes=1), disk_tier="d", disk_tier_bytes=Memory(bytes=1)).validate()
    for chosen in ({"api_key": "k"}, {"allow_origin": ("http://a",)}):
        ServeOptions(**chosen).validate()
    for chosen in ({"policy": "priority"}, {"weights": "bf16"}, {"state": "bf16"}, {"model": ("a",)}):
        ServeOptions(**chosen).validate()


def test_options_made_in_python_keep_the_same_limits() -> None:
    for chosen in ({"block_tokens": 0}, {"port": -1}, {"policy": "lifo"}, {"threads": 0}):
        with pytest.raises(ConfigError):
            ServeOptions(**chosen).validate()


@given(st.one_of(st.builds(Memory, bytes=st.integers(1, 1 << 50)), st.builds(Memory, blocks=st.integers(1, 1 << 40))))
def test_a_size_is_written_as_it_is_read(memory: Memory) -> None:
    assert Memory.parse(str(memory)) == memory
    assert not memory.auto


def test_sizes_are_what_they_say() -> None:
    assert Memory.parse("2GiB") == Memory(bytes=2 << 30) and str(Memory(bytes=2 << 30)) == "2GiB"
    assert Memory.parse("512MiB") == Memory(bytes=512 << 20)
    assert Memory.parse("1.5KiB") == Memory(bytes=1536)
    assert Memory.parse("512blocks") == Memory(blocks=512)
    assert Memory.parse("auto").auto and str(Memory()) == "auto"
    for text in ("0B", "0.1B", "0blocks", "", "GiB", "2", "1e3B"):
        with pytest.raises(ValueError, match="is"):
            Memory.parse(text)


def test_other_commands_declare_options_the_same_way() -> None:
    parser = argparse.ArgumentParser()
    config.add_arguments(parser, ClientOptions)
    chosen, origins = config.read_options(ClientOptions, parser.parse_args([]), {"HEADWAY_URL": "http://h:1"})
    assert (chosen.url, origins) == ("http://h:1", {"url": "HEADWAY_URL"})
    assert ClientOptions().url == "http://127.0.0.1:8000"


def test_the_help_says_default_choices_and_what_is_not_implemented_yet(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--help")
    help = " ".join(capsys.readouterr().out.split())
    assert "--seats N maximum number of active sequences; vLLM's max_num_seqs (default 64)" in help
    assert "until it is over (auto) (default warn)" in help
    assert "[not implemented yet]" not in help
    assert (
        "--event-log PATH file that every event is appended to; an existing event log is renamed to PATH.1 --" in help
    )
    assert "may call the server (CORS), like https://example.com, http://localhost:* or" in help


def test_the_environment_holds_the_cache_and_no_color() -> None:
    assert Environment.read({}) == Environment(None, False)
    assert Environment.read({"HEADWAY_CACHE": "/c", "NO_COLOR": "1"}) == Environment(Path("/c"), True)
    assert Environment.read({"HEADWAY_CACHE": "", "NO_COLOR": ""}) == Environment(None, False)


def test_nothing_else_reads_the_environment_and_the_options_are_nouns() -> None:
    for file in SOURCE.parent.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert file.name == "config.py" or not names & {"environ", "getenv"}, file
    for name, allowed in (
        ("options", {"headway.core.errors"}),
        ("config", {"headway.core", "headway.core.errors", "headway.core.options", "headway.core.request"}),
    ):
        tree = ast.parse((SOURCE / f"{name}.py").read_text(encoding="utf-8"))
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert {module for module in imported if module and module.startswith("headway")} <= allowed


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ("https://Example.com", "https://example.com"),
        ("https://example.com:443", "https://example.com"),
        ("http://example.com:80", "http://example.com"),
        ("http://example.com:443", "http://example.com:443"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("http://localhost:*", "http://localhost:*"),
        ("https://*.Example.com", "https://*.example.com"),
        ("app://obsidian.md", "app://obsidian.md"),
        ("chrome-extension://abcdef", "chrome-extension://abcdef"),
        ("tauri://localhost", "tauri://localhost"),
        ("vscode-webview://*", "vscode-webview://*"),
        ("app://-", "app://-"),
        ("file://", "file://"),
        ("*", "*"),
    ],
)
def test_an_origin_is_kept_as_browsers_write_it(given: str, origin: str) -> None:
    assert read("--allow-origin", given)[0].allow_origin == (origin,)


@pytest.mark.parametrize(
    "given", ["example.com", "https://example.com/", "https://a b", "https://a:b", "https://a*", "*.a", "://a"]
)
def test_what_is_no_origin_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="is not an origin like") as caught:
        read("--allow-origin", given)
    assert caught.value.option == "--allow-origin"


@pytest.mark.parametrize("cls", [ServeOptions, ClientOptions])
@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("", "the key is empty"),
        (" ", "printable ASCII characters, without spaces or line breaks"),
        ("a b", "printable ASCII"),
        ("key\n", "printable ASCII"),
        ("schlüssel", "printable ASCII"),
        ("k" * 4097, "4097 characters long; the maximum is 4096"),
    ],
)
def test_a_key_that_no_header_carries_is_refused_wherever_it_is_from(
    tmp_path: Path, cls: type, key: str, words: str
) -> None:
    file = tmp_path / "headway.toml"
    file.write_text(f"api-key = {json.dumps(key, ensure_ascii=False)}", encoding="utf-8")
    sources: list[tuple[list[str], dict[str, str]]] = [(["--api-key", key], {}), ([], {"HEADWAY_API_KEY": key})]
    if cls is ServeOptions:
        sources.append((["--config", str(file)], {}))
    for argv, environ in sources:
        parser = argparse.ArgumentParser()
        config.add_arguments(parser, cls)
        with pytest.raises(ConfigError, match=words) as caught:
            config.read_options(cls, parser.parse_args(argv), environ)
        assert caught.value.option == "--api-key" and (not key.strip() or key not in str(caught.value))


@pytest.mark.parametrize("name", sorted(options.specs(ServeOptions).keys() - {"api_key", "config"}))
def test_an_empty_variable_counts_as_absent_and_an_empty_value_in_a_file_is_refused(
    tmp_path: Path, name: str
) -> None:
    assert read(**{"HEADWAY_" + name.upper(): ""}) == read()
    (tmp_path / "headway.toml").write_text(f'{name} = ""')
    with pytest.raises(ConfigError) as caught:
        read("--config", str(tmp_path / "headway.toml"))
    assert caught.value.option == options.flag(name)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("event-log = false", "--event-log: false must be text, in quotes"),
        ("host = 5", "--host: 5 must be text, in quotes"),
        ("served-name = true", "--served-name: true must be text, in quotes"),
        ("memory = 5", "--memory: 5 must be text, in quotes"),
        ("api-key = 5", "--api-key: the key must be text, in quotes"),
        ("api-key = true", "--api-key: the key must be text, in quotes"),
        ("model = []", "--model: is an empty list"),
        ('model = ["a", ""]', "--model: is empty"),
        ('event-log = "a\\u0000b"', "--event-log: 'a\\x00b' contains a NUL character"),
        ('event-log = "folder/"', "--event-log: 'folder/' is a folder; give a file"),
        ('served-name = "a\\nb"', "--served-name: 'a\\nb' contains control characters, or bytes that are not UTF-8"),
        ("seats = 99999999999999999999", "--seats: 99999999999999999999 is too large"),
        ('memory = "' + "9" * 40 + 'GiB"', "is more than any machine has"),
        ('memory = "' + "9" * 400 + 'GiB"', "is not a size"),
        ('event-log-bytes = "1KiB"', "--event-log-bytes: must be at least 1MiB, got 1KiB"),
    ],
)
def test_a_value_of_the_wrong_type_or_size_is_refused(tmp_path: Path, toml: str, message: str) -> None:
    (tmp_path / "headway.toml").write_text(toml)
    with pytest.raises(ConfigError) as caught:
        read("--config", str(tmp_path / "headway.toml"))
    assert message in str(caught.value)


def test_a_home_that_nobody_has_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="HEADWAY_CACHE: ~nosuch/x"):
        Environment.read({"HEADWAY_CACHE": "~nosuch/x"})


@pytest.mark.parametrize(
    ("given", "why"), [("null", "any page can have"), ("https://*", "nearly every"), ("http://*:80", "nearly every")]
)
def test_an_origin_that_would_admit_more_than_it_seems_is_refused(given: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read("--allow-origin", given)


def test_a_key_is_shown_by_nothing(tmp_path: Path) -> None:
    file = tmp_path / "headway.toml"
    for text in ('api-key = "se cret"', 'api-key = ["secret"]', 'api-key = "secrét"'):
        file.write_text(text)
        with pytest.raises(ConfigError) as caught:
            read("--config", str(file))
        assert caught.value.option == "--api-key"
        assert not any(part in str(caught.value) for part in ("se cret", "secret", "secrét"))
    chosen, _ = read(HEADWAY_API_KEY="secret")
    assert chosen.api_key == "secret" and "secret" not in repr(chosen)
