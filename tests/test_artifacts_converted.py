"""The cache of converted weights: keyed by tensors, bounded, never a half or an unchecked file, never one in use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import tiny_models
from headway.artifacts import resolve
from headway.artifacts.converted import ConvertedWeights
from headway.artifacts.files import ModelFiles
from headway.cli import main
from headway.compute.models.spec import DecoderSpec
from headway.compute.text.executor import TextExecutor
from headway.compute.text.weights import Weights, load_tensors
from headway.core.errors import ArtifactError, ConfigError
from tiny_decoders import StateDict, files_of, oracle

OLD = time.time() - 3600


def loaded(files: ModelFiles, cache: Path, weights: str = "fp32") -> Weights:
    return load_tensors(DecoderSpec.from_config(files.config, files.name), files, weights, cache)


def gguf_model(path: Path, cache: Path, seed: int = 0, **options: object) -> ModelFiles:
    tiny_models.write_gguf(path, tensors=tiny_models.weights("llama", seed), **options)  # type: ignore[arg-type]
    return resolve(str(path), cache=cache)


def kept(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.glob("*.safetensors"))


def file_of(cache: Path, key: str, size: int, used_at_s: float = OLD) -> Path:
    with ConvertedWeights(cache, limit_bytes=1 << 40).making(key, size):
        pass
    path = cache / f"{key}.safetensors"
    os.utime(path, (used_at_s, used_at_s))
    return path


# -- what decides a file ---------------------------------------------------------------------------------------


def test_another_template_makes_no_other_copy_of_the_weights(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for template in ("one", "two {{ messages }}"):
        files = gguf_model(tmp_path / "m.gguf", cache, extra={"tokenizer.chat_template": template})
        loaded(files, cache / "converted")
    copy = gguf_model(tmp_path / "copied elsewhere", cache)
    loaded(copy, cache / "converted")
    assert len(kept(cache / "converted")) == 1


def test_other_tensors_formats_and_shapes_of_the_model_make_another(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for seed in (1, 2):
        loaded(gguf_model(tmp_path / "m.gguf", cache, seed), cache / "converted")
    loaded(gguf_model(tmp_path / "m.gguf", cache, 2), cache / "converted", "bf16")
    assert len(kept(cache / "converted")) == 3


def test_one_changed_byte_of_a_tensor_is_another_model(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = gguf_model(tmp_path / "m.gguf", cache)
    changed = bytearray((tmp_path / "m.gguf").read_bytes())
    changed[-100] ^= 1
    (tmp_path / "n.gguf").write_bytes(changed)
    second = resolve(str(tmp_path / "n.gguf"), cache=cache)
    assert first.tensors.digest() != second.tensors.digest()


def test_the_same_weights_in_two_shards_or_one_are_the_same(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float16)}
    for folder in folders:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        source = resolve("smollm2-135m").tokenizer
        (folder / "tokenizer.json").symlink_to(source)
    save_file(arrays, folders[0] / "model.safetensors")
    for name, array in arrays.items():
        save_file({name: array}, folders[1] / f"{name}.safetensors")
    index = {"weight_map": {name: f"{name}.safetensors" for name in arrays}}
    (folders[1] / "model.safetensors.index.json").write_text(json.dumps(index))
    one, two = (resolve(str(folder), cache=tmp_path / "cache").tensors for folder in folders)
    assert sorted(one.names()) == sorted(two.names()) and one.digest() == two.digest()


# -- what is never in it ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["fp32", "bf16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_and_nothing_is_kept(
    tmp_path: Path, weights: str, value: float
) -> None:
    files = files_of(oracle("llama, tied"))
    arrays = {name: array.copy() for name, array in files.tensors.read()}
    arrays["model.layers.1.mlp.down_proj.weight"][3, :2] = value
    broken = replace(files, tensors=StateDict(arrays))
    words = r"2 of the 3840 values of the tensor model\.layers\.1\.mlp\.down_proj\.weight are not finite"
    for _ in range(2):  # the second time as well
        with pytest.raises(ArtifactError, match=words):
            loaded(broken, tmp_path, weights)
        assert list(tmp_path.iterdir()) == []


def test_a_norm_is_checked_as_well(tmp_path: Path) -> None:
    files = files_of(oracle("llama, tied"))
    arrays = {name: array.copy() for name, array in files.tensors.read()}
    arrays["model.norm.weight"][0] = np.nan
    with pytest.raises(ArtifactError, match=r"1 of the 48 values of the tensor model\.norm\.weight are not finite"):
        loaded(replace(files, tensors=StateDict(arrays)), tmp_path)


def test_values_that_bf16_cannot_hold_are_refused_with_the_way_out(tmp_path: Path) -> None:
    files = files_of(oracle("llama, tied"))
    arrays = {name: array.copy() for name, array in files.tensors.read()}
    arrays["model.embed_tokens.weight"][5, 5] = 3.4e38
    large = replace(files, tensors=StateDict(arrays))
    with pytest.raises(
        ConfigError, match=r"--weights: model\.embed_tokens\.weight has 1 values too large for bf16; use fp32"
    ):
        loaded(large, tmp_path, "bf16")
    assert loaded(large, tmp_path, "fp32").tensors["embedding"][5, 5] == np.float32(3.4e38)


def test_a_damaged_copy_does_not_take_the_place_of_a_healthy_one(tmp_path: Path) -> None:
    """One NaN in the scale of one quantised block: the file has the same size and header."""
    cache = tmp_path / "cache"
    kind = tiny_models.gguf.GGMLQuantizationType.Q8_0
    healthy = gguf_model(tmp_path / "m.gguf", cache, quantised=kind)
    loaded(healthy, cache / "converted")
    reader = tiny_models.gguf.GGUFReader(tmp_path / "m.gguf")
    down = next(tensor for tensor in reader.tensors if tensor.name == "blk.1.ffn_down.weight")
    data = bytearray((tmp_path / "m.gguf").read_bytes())
    data[down.data_offset : down.data_offset + 2] = np.float16(np.nan).tobytes()
    (tmp_path / "n.gguf").write_bytes(data)
    with pytest.raises(ArtifactError, match=r"32 of the 2048 values of the tensor model\.layers\.1\.mlp\.down_proj"):
        loaded(resolve(str(tmp_path / "n.gguf"), cache=cache), cache / "converted")
    assert len(kept(cache / "converted")) == 1


def other_process(code: str, cache: Path) -> subprocess.Popen[str]:
    """Python that knows `cache`, and waits for its end when it has printed a line; that line is read here."""
    begin = "import sys, pathlib, headway.artifacts.converted as c\n"
    begin += "cache = c.ConvertedWeights(pathlib.Path(sys.argv[1]))\n"
    command = [sys.executable, "-c", begin + code, str(cache)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "there\n"
    return process


WAITS = "print('there', flush=True); sys.stdin.read()\n"


def test_a_crash_in_the_middle_leaves_no_half_file_and_its_rest_is_removed(tmp_path: Path) -> None:
    code = f"with cache.making('slow', 64) as path:\n    path.write_bytes(b'half'); {WAITS}"
    with other_process(code, tmp_path) as other:
        (rest,) = tmp_path.glob(".partial-*")
        os.utime(rest, (OLD, OLD))
        assert ConvertedWeights(tmp_path).clean().removed == ()  # it is being made
        other.kill()
    assert ConvertedWeights(tmp_path).hold("slow") is None
    file_of(tmp_path, "next", 10)
    assert [path.name for path in tmp_path.iterdir()] == ["next.safetensors"]


def test_two_that_convert_at_once_both_serve_from_a_whole_file(tmp_path: Path) -> None:
    files = files_of(oracle("llama, tied"))
    others: list[Weights] = []

    class Meanwhile(StateDict):
        def read(self):
            if not others:
                others.append(loaded(files, tmp_path))
            yield from super().read()

    mine = loaded(replace(files, tensors=Meanwhile(dict(files.tensors.read()))), tmp_path)
    assert all(torch.equal(tensor, others[0].tensors[name]) for name, tensor in mine.tensors.items())
    assert len(kept(tmp_path)) == 1


def test_a_full_disk_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"cannot write converted weights \(\d+ bytes\).*HEADWAY_CACHE"):
        file_of(tmp_path, "large", 1 << 60)
    assert list(tmp_path.iterdir()) == []


# -- its bound -------------------------------------------------------------------------------------------------


def test_what_was_used_least_recently_goes_first(tmp_path: Path) -> None:
    for age, key in enumerate("abc"):
        file_of(tmp_path, key, 100, OLD - age)
    cache = ConvertedWeights(tmp_path, limit_bytes=250)
    assert cache.hold("c") is not None  # used just now
    with cache.making("d", 100):
        pass
    assert kept(tmp_path) == ["c.safetensors", "d.safetensors"]


def test_what_is_in_use_stays_however_much_that_is(tmp_path: Path) -> None:
    for key in "ab":
        file_of(tmp_path, key, 100)
    cache = ConvertedWeights(tmp_path, limit_bytes=10)
    held = cache.hold("a")
    os.utime(tmp_path / "a.safetensors", (OLD - 9, OLD - 9))
    with cache.making("c", 100):
        pass
    assert kept(tmp_path) == ["a.safetensors", "c.safetensors"]
    del held
    cache.trim()
    assert kept(tmp_path) == []


def test_a_model_that_is_loaded_keeps_its_files_until_it_is_gone(tmp_path: Path) -> None:
    files = files_of(oracle("llama, tied"))
    executor = TextExecutor.load(files, cache=tmp_path, weights="fp32", blocks=4)
    for path in tmp_path.rglob("*"):
        os.utime(path, (OLD, OLD))
    cleaned = ConvertedWeights(tmp_path).clean()
    assert cleaned.removed == () and len(cleaned.kept) == 2  # the weights, and the folder of its revision
    del executor
    assert len(ConvertedWeights(tmp_path).clean().removed) == 2 and list(tmp_path.iterdir()) == []


# -- headway models --clean ------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    (tmp_path / "models").mkdir()
    return tmp_path / "converted"


def test_models_clean_says_what_it_freed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file_of(cache, "a", 3 << 20)
    file_of(cache, "b", 1 << 20)
    held = ConvertedWeights(cache).hold("b")
    assert main(["models", "--clean", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "folder": str(cache), "freed_bytes": 3 << 20, "kept_bytes": 1 << 20,
        "removed": [{"name": "a.safetensors", "bytes": 3 << 20}],
        "kept": [{"name": "b.safetensors", "bytes": 1 << 20}],
    }  # fmt: skip
    assert main(["models", "--clean"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"Freed 0 MiB: 0 removed from {cache}.", "Kept 1 MiB that are in use: b.safetensors."
    ]  # fmt: skip
    del held
    assert main(["models", "--clean"]) == 0 and not kept(cache)


def test_models_clean_of_a_cache_that_is_not_there_frees_nothing(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "--clean", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["freed_bytes"] == 0


def test_models_clean_takes_no_name(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "smollm2-135m", "--clean"]) == 2
    assert "--clean" in capsys.readouterr().err


def test_another_processs_hold_counts(tmp_path: Path) -> None:
    file_of(tmp_path, "a", 10)
    with other_process(f"held = cache.hold('a'); {WAITS}", tmp_path) as other:
        assert ConvertedWeights(tmp_path).clean().removed == ()
        other.kill()
    assert len(ConvertedWeights(tmp_path).clean().removed) == 1
