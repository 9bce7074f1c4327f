"""Diffusion models in the replica: loaded from a folder, within their memory, with durations that stay."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("diffusers")

from headway.compute.fake_patterns import FakeDiffusion
from headway.core.choices import choose_models
from headway.core.clock import ModelledClock, RealClock
from headway.core.config import Memory, ServeOptions
from headway.core.errors import ConfigError
from headway.core.request import ImageRequest
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.policy.durations import Durations
from headway.replica.durations import KeptDurations, this_machine
from headway.replica.loading import LoadedModel, hosted_images, load
from headway.replica.messages import Loading, Ready, decode_to_front, encode
from headway.replica.options import ModelOptions, ReplicaOptions, replica_options
from tiny_images import tokens_of, write_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny") / "m")


def loaded(folder: Path, cache: Path, **options: Any) -> LoadedModel:
    said: list[Any] = []
    model = ModelOptions(model=str(folder), name="tiny", pattern="image", **options)
    (found,) = load(ReplicaOptions(models=(model,), cache=str(cache), threads=1), said.append)
    assert [type(message) for message in said] == [Loading]
    return found


def test_a_folder_is_loaded_and_the_front_is_told_what_it_makes(folder: Path, tmp_path: Path) -> None:
    model = loaded(folder, tmp_path, engine=EngineOptions(seats=3))
    told = decode_to_front(encode(Ready((model.ready(),), threads=1, load_ms=0, resident_bytes=0)))
    assert isinstance(told, Ready)
    (ready,) = told.models
    assert ready.facts.images is not None and ready.facts.images.takes(16, 16)
    assert (ready.facts.output, ready.blocks, ready.block_tokens, ready.max_context) == ("pixels", 0, 0, 12)
    assert ready.reserved_bytes == ready.pool_bytes == 3 * model.served.executor.most_state_bytes  # type: ignore[attr-defined]


def test_memory_bounds_the_latents_and_no_more_is_reserved_than_seats_can_fill() -> None:
    executor = FakeDiffusion(latent_bytes=100)
    options = ModelOptions(model="m", pattern="image", engine=EngineOptions(seats=4))

    def reserved(memory: int | None) -> int:
        from msgspec.structs import replace

        return hosted_images(executor, replace(options, memory_bytes=memory)).ready().reserved_bytes

    assert [reserved(memory) for memory in (None, 250, 10_000)] == [400, 250, 400]


def test_a_longer_context_than_the_models_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--max-context: 13 is more than the 12 positions"):
        loaded(folder, tmp_path, max_context=13)


def divided(memory: str, *models: str) -> dict[str, ModelOptions]:
    served = ServeOptions(memory=Memory.parse(memory), model=models)
    choices = choose_models(served)
    patterns = {choice.name: "image" if "image" in choice.name else "text" for choice in choices}
    found = replica_options(served, choices, patterns, Path("cache"))  # type: ignore[arg-type]
    return {model.name: model for model in found.models}


def test_of_a_size_in_bytes_latents_have_a_share_and_of_auto_or_blocks_none() -> None:
    models = "text", "image:share=3"
    by_size = divided("64MiB", *models)
    assert (by_size["text"].memory_bytes, by_size["image"].memory_bytes) == (16 << 20, 48 << 20)
    by_blocks = divided("512blocks", *models)
    assert (by_blocks["text"].blocks, by_blocks["image"].memory_bytes, by_blocks["image"].blocks) == (512, None, None)
    auto = divided("auto", *models)
    assert auto["image"].memory_bytes is None and auto["text"].memory_bytes
    own = divided("512blocks", "text", "image:memory=8MiB")
    assert (own["text"].blocks, own["image"].memory_bytes) == (512, 8 << 20)


@pytest.mark.parametrize("option", ["memory=64blocks", "block-tokens=8", "state=bf16", "draft=ngram:4"])
def test_what_only_a_kv_cache_has_is_refused_of_a_diffusion_model(option: str) -> None:
    with pytest.raises(ConfigError, match="--model"):
        divided("auto", "text", f"image:{option}")


def test_without_the_extra_it_is_said_how_to_get_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("diffusers", "headway.compute.image"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "diffusers", None)
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    (extra,) = project["optional-dependencies"]["images"]
    with pytest.raises(ConfigError, match=re.escape(f"needs diffusers (the extra images): pip install '{extra}'")):
        loaded(folder, tmp_path)


# -- durations that stay ---------------------------------------------------------------------------------------


def test_what_steps_took_answers_after_a_new_start(folder: Path, tmp_path: Path) -> None:
    first = loaded(folder, tmp_path)
    assert first.durations is not None and first.durations.known is first.served.durations
    engine = Engine([first.served], RealClock())
    engine.add(ImageRequest(id="a", prompt=tokens_of("sun"), updates=4))
    while engine.busy:
        engine.step()
    first.durations.save()
    again = loaded(folder, tmp_path).served.durations
    for kind, size in (("update", (16, 16)), ("decode_pixels", (16, 16)), ("encode", ())):
        assert again.ns(kind, size, 1) == first.served.durations.ns(kind, size, 1) is not None


def test_durations_of_another_machine_or_damaged_ones_say_nothing(tmp_path: Path) -> None:
    elsewhere = KeptDurations(tmp_path / "durations.json", "elsewhere", Durations())
    elsewhere.known.note("update", (), 1, 100)
    elsewhere.save()
    assert KeptDurations.open(tmp_path, 1).known.rows() == []
    for damaged in (b"", b"{", b'{"machine": 1, "rows": []}', b"\xff", b'{"machine": "x", "rows": [[1]]}'):
        (tmp_path / "durations.json").write_bytes(damaged)
        assert KeptDurations.open(tmp_path, 1).known.rows() == []
    assert this_machine(1) != this_machine(2)


def test_only_what_is_new_is_written_and_a_cache_that_cannot_be_costs_nothing_else(tmp_path: Path) -> None:
    durations = KeptDurations.open(tmp_path, 1)
    durations.save()
    assert not (tmp_path / "durations.json").exists()
    durations.known.note("update", (1, 2), 3, 100)
    durations.save()
    assert json.loads((tmp_path / "durations.json").read_text())["rows"] == [["update", [1, 2], 3, 100, 1]]
    (tmp_path / "file").write_text("")
    nowhere = KeptDurations.open(tmp_path / "file" / "below", 1)
    nowhere.known.note("update", (), 1, 100)
    nowhere.save()


def test_a_fake_model_on_a_modelled_clock_measures_what_the_model_says() -> None:
    clock = ModelledClock()
    executor = FakeDiffusion(clock=clock, cost_ns=lambda plan: 1000 + 10 * len(plan.items), latent_bytes=1)
    model = hosted_images(executor, ModelOptions(model="m", pattern="image"))
    engine = Engine([model.served], clock)
    for id in "abc":
        engine.add(ImageRequest(id=id, prompt=(1,), updates=3))
    while engine.busy:
        engine.step()
    assert model.served.durations.rows() == [("update", (0, 0), 3, 1030, 3)]
