"""CLIP's text encoder as diffusers' folders have it: `text_encoder/`, and its words in `tokenizer/`.

Older folders have no `tokenizer.json`, only `vocab.json` and `merges.txt` (byte pairs, Sennrich et al. 2016, over
bytes, with `</w>` behind the last of a word); the rules around them are fixed (openai/CLIP, `simple_tokenizer.py`).
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from headway.artifacts import folder as folders
from headway.artifacts.cache import Cache, write_once
from headway.artifacts.files import ModelFiles, Modules
from headway.artifacts.jsonfile import optional, required
from headway.artifacts.location import Location
from headway.core.errors import ArtifactError, ModelNotFound, UnsupportedModel

KIND = "CLIPTextModel"
_BEGIN, _END = "<|startoftext|>", "<|endoftext|>"
_LONGEST = 77
_PIECES = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def load(name: str, location: Location, words: Path, cache: Cache) -> tuple[ModelFiles, int, int]:
    """The encoder, the length that its texts are filled up to, and the token that fills them. Raises as
    `folder.load` does, and UnsupportedModel for a tokenizer that does not say what fills."""
    config = required(location.path / "config.json")
    said = optional(words / "tokenizer_config.json")
    longest = min(said.get("model_max_length", _LONGEST), config.get("max_position_embeddings", _LONGEST))
    tokenizer = words / "tokenizer.json"
    if not tokenizer.is_file():
        tokenizer = _built(name, words, cache)
    text = folders.load(name, _encoder(location, int(longest)), words=words, tokenizer=tokenizer)
    fill = Tokenizer.from_file(str(tokenizer)).token_to_id(text.special.get("pad_token", ""))
    if fill is None:
        raise UnsupportedModel(name, "a tokenizer of CLIP's text encoder without a pad_token")
    return text, int(longest), fill


def _encoder(location: Location, longest: int) -> Location:
    """All of its positions are features: nothing is pooled."""
    return Location(location.path, location.identity, location.source, modules=Modules(max_tokens=longest))


def _built(name: str, words: Path, cache: Cache) -> Path:
    """A `tokenizer.json` of the two files, kept by what they hold. Raises ModelNotFound, ArtifactError."""
    vocabulary, merges = words / "vocab.json", words / "merges.txt"
    for file in (vocabulary, merges):
        if not file.is_file():
            raise ModelNotFound(f"{name}: {words} has no tokenizer.json and no {file.name}")
    digest = sha256(vocabulary.read_bytes() + b"\0" + merges.read_bytes()).hexdigest()[:16]
    built = cache.converted / "tokenizers" / f"clip-{digest}.json"
    if not built.is_file():
        lines = merges.read_text(encoding="utf-8").splitlines()
        pairs = [tuple(line.split()) for line in lines if line and not line.startswith("#version")]
        write_once(built, _tokenizer(name, required(vocabulary), pairs).to_str())
    return built


def _tokenizer(name: str, vocabulary: dict[str, int], merges: list[tuple[Any, ...]]) -> Tokenizer:
    if _BEGIN not in vocabulary or _END not in vocabulary:
        raise UnsupportedModel(name, f"a vocabulary of CLIP's text encoder without {_BEGIN} and {_END}")
    try:
        model = models.BPE(vocabulary, merges, end_of_word_suffix="</w>", unk_token=_END)
    except Exception as error:  # the library raises no narrower class
        raise ArtifactError(f"{name}: no tokenizer can be built from vocab.json and merges.txt: {error}") from error
    rules = Tokenizer(model)
    rules.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    rules.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    rules.decoder = decoders.ByteLevel()
    rules.add_special_tokens([_BEGIN, _END])
    ends = (_END, vocabulary[_END]), (_BEGIN, vocabulary[_BEGIN])
    rules.post_processor = processors.TemplateProcessing(
        single=f"{_BEGIN} $A {_END}", special_tokens=[(token, id) for token, id in ends]
    )
    return rules
