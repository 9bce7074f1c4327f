"""What a model's name can mean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

import tiny_models
from headway.artifacts import resolve
from headway.artifacts.aliases import ALIASES, DEFAULT
from headway.artifacts.files import ModelFiles
from headway.core.config import ServeOptions
from headway.core.errors import ArtifactError, ModelNotFound


def test_a_name_that_means_nothing_gets_the_aliases_and_the_closest_one(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"Did you mean smollm2-135m\?.*minilm-l6") as caught:
        resolve("smolm2", cache=tmp_path)
    assert all(alias in str(caught.value) for alias in ALIASES)
    with pytest.raises(ModelNotFound, match="no model, file or folder is called"):
        resolve("./nothing/here/at/all", cache=tmp_path)


def test_the_default_is_an_alias_of_a_text_model() -> None:
    assert ServeOptions().model == (DEFAULT,)
    assert ALIASES[DEFAULT].pattern == "text"


def test_the_default_model_is_what_its_alias_says(smollm2: ModelFiles) -> None:
    config = smollm2.config
    expected = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
                "hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True,
                "max_position_embeddings": 8192, "rope_theta": 1e5, "rms_norm_eps": 1e-5,
                "rope_scaling": None, "model_type": "llama"}  # fmt: skip
    assert {key: config[key] for key in expected} == expected
    assert (smollm2.bos_id, smollm2.add_bos, smollm2.eos_ids) == (1, False, (2,))
    assert smollm2.name == DEFAULT and smollm2.chat_template is not None
    assert len(smollm2.tensors.names()) == 272


def test_the_default_model_is_found_again_without_a_connection(smollm2: ModelFiles) -> None:
    assert resolve(DEFAULT, offline=True).revision == smollm2.revision


def test_a_file_on_disk_comes_before_a_hub_id_of_the_same_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owner").mkdir()
    tiny_models.write_gguf(tmp_path / "owner" / "tiny.gguf")
    monkeypatch.chdir(tmp_path)
    files = resolve("owner/tiny.gguf", cache=tmp_path / "cache", offline=True)
    assert (files.name, files.source) == ("owner/tiny.gguf", "owner/tiny.gguf")


def test_a_hub_id_goes_to_the_hubs_own_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    def snapshot_download(name: str, *, allow_patterns: list[str], local_files_only: bool) -> str:
        asked.append((name, local_files_only))
        raise LocalEntryNotFoundError("not cached")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ArtifactError, match=r"offline.*hf download owner/name"):
        resolve("owner/name", cache=tmp_path, offline=True)
    with pytest.raises(ArtifactError, match=r"Hub cannot be reached.*hf download owner/name"):
        resolve("owner/name", cache=tmp_path)
    assert asked == [("owner/name", True), ("owner/name", False)]


def test_without_the_hubs_client_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ArtifactError, match="pip install huggingface_hub"):
        resolve("owner/name", cache=tmp_path)


def test_importing_the_package_reads_no_files_and_loads_no_numbers() -> None:
    code = "import sys, headway.artifacts as a; print({'numpy', 'gguf', 'tokenizers', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
