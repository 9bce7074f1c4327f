"""What a request's first step finds ready: state that is cleared a block at a time, and nothing left to import."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from headway.compute.kernels.state import PagedState
from headway.compute.kernels.state_format import STATE_FORMATS
from headway.compute.models.spec import DecoderSpec
from headway.core.collecting import importing
from headway.core.plan import Span, StepPlan
from tiny_decoders import greedy, load, oracle, tokens

#: What happens in a process that loads text models, in which nothing was imported before.
FRESH = """
import gc
import json
import sys
from headway.core.errors import HeadwayError
from headway.replica import loading
from headway.replica.options import ModelOptions, ReplicaOptions

full = []
gc.callbacks.append(lambda phase, info: full.append(phase) if info["generation"] == 2 else None)
try:
    model = ModelOptions(model=f"{sys.argv[1]}/nothing")
    loading._load_text(model, ReplicaOptions(models=(model,), cache=sys.argv[1]), print)
except HeadwayError:
    pass
said = {"full_collections": len(full), "frozen": gc.get_freeze_count(), "collects": gc.isenabled()}

import torch
from headway.compute.text import executor
from headway.core.plan import Draw, Sampling

before = set(sys.modules)
samplings = (
    Sampling(),
    Sampling(temperature=0.8, seed=3),
    Sampling(temperature=0.8, top_k=5, top_p=0.9, min_p=0.01, repetition_penalty=1.1, presence_penalty=1.0),
)
draws = [Draw(0, 4, sampling, history=(1, 2, 3), prompt=2, logprobs=2) for sampling in samplings]
logits = torch.randn(len(draws), 300)
for row, token in enumerate(executor.choose(logits, list(enumerate(draws)))):
    executor.report(logits[row], token, 2)
print(json.dumps(said | {"imported": sorted(set(sys.modules) - before)}))
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    command = [sys.executable, "-c", FRESH, str(tmp_path_factory.mktemp("empty"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("native", ["off", "auto"])
@pytest.mark.parametrize("state", STATE_FORMATS)
def test_a_step_writes_all_layers_state_into_the_bytes_of_its_own_blocks(
    native: str, state: str, tmp_path: Path
) -> None:
    """So that its memory is what its blocks take, and not a page of each layer's and head's."""
    model = oracle("llama, tied")
    executor = load(model, tmp_path, native=native, state=state)
    executor.run(StepPlan(0, (Span(0, tokens(20), (5, 40), (greedy(20),)),)))
    size = executor.facts.block_bytes
    memory = executor._state._all.view(-1).view(torch.uint8).view(executor.blocks, size)
    assert [block for block in range(executor.blocks) if memory[block].any()] == [5, 40]
    planes = memory[5].view(model.config.num_hidden_layers * 2 * model.config.num_key_value_heads, -1)
    assert bool(planes.any(1).all())


@pytest.mark.skipif(sys.platform != "linux", reason="counts resident memory as Linux does")
def test_the_first_block_of_a_large_pool_takes_few_pages() -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 30,
        "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 97,
        "max_position_embeddings": 8192,
    }  # fmt: skip
    state = PagedState(DecoderSpec.from_config(config, "tiny"), 1_200, 16, STATE_FORMATS["bf16"])
    spans, process = [Span(0, (1,) * 16, (700,))], psutil.Process()
    before = process.memory_info().rss
    for layer in range(30):
        state.write(layer, state.places(spans), torch.ones(6, 16, 64))
    # A block is 0.35 MiB, within one huge page, or two; a plane for each layer and head took 180 of them.
    assert process.memory_info().rss - before < 32 << 20


def test_the_first_tokens_are_chosen_without_importing_anything(fresh: dict[str, Any]) -> None:
    assert fresh["imported"] == []


def test_a_replica_imports_without_looking_for_garbage_and_never_looks_at_modules(fresh: dict[str, Any]) -> None:
    assert fresh["full_collections"] == 0 and fresh["frozen"] > 100_000
    assert fresh["collects"]


def test_only_the_first_imports_are_spared() -> None:
    """Later there may be garbage, which would stay for good."""
    gc.unfreeze()
    try:
        with importing():
            assert not gc.isenabled()
        assert gc.isenabled() and (spared := gc.get_freeze_count())
        later = [[] for _ in range(1_000)]
        with importing():
            pass
        assert gc.get_freeze_count() <= spared and len(later) == 1_000
    finally:
        gc.unfreeze()
