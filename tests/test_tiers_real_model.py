"""State tiers of a real model: what comes back from host memory, and from disk after a restart, is bit for bit what
was computed, and the file survives what may happen to it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode

from headway.artifacts.cache import Cache
from headway.compute.executor import ModelFacts
from headway.compute.text.executor import TextExecutor
from headway.core.clock import RealClock
from headway.core.errors import ConfigError
from headway.core.events import Offloaded, Reloaded
from headway.core.miss import Miss
from headway.core.plan import StepPlan
from headway.core.request import TextRequest
from headway.engine.loop import Engine
from headway.engine.served import EngineOptions
from headway.memory.keys import Elsewhere, Origin
from headway.patterns.text.ports import no_watcher
from headway.replica import diskorigins, diskslab, tiers
from headway.replica.diskslab import DiskSlab, Unreadable, slot_bytes
from headway.replica.loading import hosted_text
from headway.replica.options import ModelOptions
from headway.replica.tiers import folder_name, identity_of, open_tiers
from headway.story.reduce.reducer import Story
from headway.story.tell.explain import request_view
from headway.story.tell.sentences import tell
from tiny_decoders import files_of, oracle, tokens

GOLDEN = Path(__file__).parent / "data" / "smollm2-135m-greedy-fp32.json"
PATIENCE_S = 60.0


class Served:
    """A text model with its tiers, as a replica serves it, in this process."""

    def __init__(self, executor: TextExecutor, **options) -> None:
        chosen = ModelOptions(
            model="tiny", block_tokens=16, engine=EngineOptions(seats=4, step_tokens=256), **options
        )
        self.tiers = open_tiers(executor, chosen)
        self.events = []
        self.story = Story()
        model = hosted_text(executor, executor.blocks, chosen, no_watcher, None, self.tiers)
        self.engine = Engine([model.served], RealClock(), emit=self._emit)
        self.pool = model.served.pattern.space

    def _emit(self, event) -> None:
        self.events.append(event)
        self.story.fold(event)

    def ask(self, id: str, prompt, tokens: int, **fields) -> list[int]:
        said = []
        self.engine.add(TextRequest(id=id, prompt=tuple(prompt), max_tokens=tokens, ignore_eos=True, **fields))
        until = time.monotonic() + PATIENCE_S
        while self.engine.requests or not self.engine.idle or self.engine.awaiting:
            assert time.monotonic() < until, "the engine does not come to rest"
            for emission in self.engine.step():
                said += emission.tokens
            self.engine.check()
            time.sleep(0)
        return said

    def reused(self, id: str) -> int:
        return self.story.record(id).sequences[0].counts.reused

    def miss(self, id: str) -> Miss | None:
        return self.story.record(id).miss

    def reloaded(self) -> list[dict]:
        return [event.blocks for event in self.events if isinstance(event, Reloaded)]

    def faults(self) -> list[dict]:
        return [event.faults for event in self.events if isinstance(event, Offloaded) and event.faults]

    def close(self) -> None:
        self.tiers.close(10.0)


@pytest.fixture(scope="module")
def tiny():
    return oracle("llama, tied")


def executor(tiny, folder: Path, blocks: int = 12) -> TextExecutor:
    return TextExecutor.load(
        files_of(tiny), cache=folder / "cache", weights="fp32", blocks=blocks, threads=1, max_step_positions=256
    )


PROMPT, FILLER = tokens(150, seed=1), tokens(185, seed=2)


def on_disk(tiny, folder: Path, size: int = 1 << 20) -> list[int]:
    """A prompt's answer; its blocks lie in the disk tier, whose server is gone."""
    served = Served(executor(tiny, folder), disk_tier=str(folder / "tier"), disk_tier_bytes=size)
    said = served.ask("first", PROMPT, 8)
    served.close()
    return said


def restarted(tiny, folder: Path, size: int = 1 << 20) -> Served:
    return Served(executor(tiny, folder), disk_tier=str(folder / "tier"), disk_tier_bytes=size)


def the_file(folder: Path) -> Path:
    (found,) = (folder / "tier").glob("*/blocks")
    return found


@pytest.mark.parametrize("where", ["host", "disk", "both"])
def test_after_eviction_the_answer_is_that_of_state_that_never_left(tiny, tmp_path, where):
    sizes = {"host_tier_bytes": 1 << 20} if where != "disk" else {}
    if where != "host":
        sizes |= {"disk_tier": str(tmp_path / "tier"), "disk_tier_bytes": 1 << 20}
    served = Served(executor(tiny, tmp_path), **sizes)
    first = served.ask("first", PROMPT, 8)
    blocks = {key: served.pool.index.get(key) for key in keys(served)}
    state = {key: served_state(served, block).clone() for key, block in blocks.items()}
    served.ask("filler", FILLER, 1)
    assert not any(served.pool.index.get(key) is not None for key in blocks), "the filler evicts all"
    assert served.ask("again", PROMPT, 8) == first
    assert served.reused("again") == 144 and served.reloaded() == [{"disk" if where == "disk" else "host": 9}]
    for key, before in state.items():
        assert torch.equal(served_state(served, served.pool.index.get(key)), before), "bit for bit"
    served.close()


def keys(served: Served) -> list[bytes]:
    return [key for key in served.pool.index._block if len(served.pool.index._tokens[key]) == 16]


def served_state(served: Served, block: int) -> torch.Tensor:
    (model,) = served.engine.models.values()
    return model.executor._state.whole_blocks()[block]


class NoTorch(TorchFunctionMode):
    """Torch computes nothing meanwhile."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        raise AssertionError(f"torch does {function}")


def test_a_step_copies_to_host_memory_and_back_without_torch_whose_threads_would_be_waited_for(tiny, tmp_path):
    loaded = executor(tiny, tmp_path)
    host = loaded.keep_outside(3)
    whole = loaded._state.whole_blocks()
    with torch.inference_mode():
        before = whole.normal_(generator=torch.Generator().manual_seed(1)).clone()
    with NoTorch():
        out = loaded.run(StepPlan(1, (), offloads=((4, 2), (7, 0))))
        back = loaded.run(StepPlan(2, (), reloads=((0, 1), (2, 9))))
    assert [(each.kind, each.rows) for each in (*out.spent, *back.spent)] == [("offload", 2), ("reload", 2)]
    assert bytes(host.bytes(2)) == before[4].numpy().tobytes() and not any(host.bytes(1))
    wanted = {1: 7, 9: 4}
    assert all(torch.equal(whole[block], before[wanted.get(block, block)]) for block in range(len(whole)))


def test_after_a_restart_the_prefix_comes_from_disk(tiny, tmp_path):
    first = on_disk(tiny, tmp_path)
    served = restarted(tiny, tmp_path)
    assert served.ask("again", PROMPT, 8) == first
    assert served.reused("again") == 144 and served.reloaded() == [{"disk": 9}] and not served.faults()
    counts = served.story.record("again").sequences[0].counts
    assert counts.prefilled == len(PROMPT) - 144, "all that is left to compute before its first token"
    served.close()


def test_the_default_model_says_the_golden_tokens_from_host_memory_and_from_disk(smollm2, tmp_path):
    golden = max(json.loads(GOLDEN.read_text()), key=lambda entry: len(entry["prompt_ids"]))
    prompt = golden["prompt_ids"] + golden["greedy_ids"]
    whole = len(prompt[:-9]) // 16 * 16  # a prompt that goes on with the answer's beginning
    loaded = TextExecutor.load(
        smollm2, cache=Cache.at(None).converted, weights="fp32", threads=2, blocks=10, max_step_positions=256
    )
    for sizes in ({"host_tier_bytes": 64 << 20}, {"disk_tier": str(tmp_path), "disk_tier_bytes": 64 << 20}):
        served = Served(loaded, **sizes)
        served.ask("first", prompt[:-9], 1)
        served.ask("filler", [7] * 150, 1)
        assert served.ask("again", prompt[:-9], 9) == golden["greedy_ids"][-9:]
        assert served.reused("again") == whole - 16 * (whole == len(prompt[:-9])) > 0
        assert sum(sum(blocks.values()) for blocks in served.reloaded()) * 16 == served.reused("again")
        served.close()


# -- what may happen to the file ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "fault", "left"), [("block", "checksum", 2), ("header", "header", 2), ("key", "header", 2)]
)
def test_a_slot_whose_bytes_changed_is_not_used_and_is_counted(tiny, tmp_path, place, fault, left):
    first = on_disk(tiny, tmp_path)
    file = the_file(tmp_path)
    stride = stride_of(tiny, tmp_path)
    at = 2 * stride + {"block": 500, "header": 3, "key": 30}[place]
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    served = restarted(tiny, tmp_path)
    assert served.ask("again", PROMPT, 8) == first
    assert served.reused("again") == left * 16
    assert served.faults() == [{"disk": {fault: 1}}]
    assert served.ask("third", PROMPT, 8) == first, "what was computed again is there again"
    served.close()
    again = restarted(tiny, tmp_path)
    assert again.ask("fourth", PROMPT, 8) == first and again.reused("fourth") == 144 and not again.faults()
    again.close()


def stride_of(tiny, folder: Path) -> int:
    return slot_bytes(executor(tiny, folder).facts.block_bytes)


def test_a_truncated_file_serves_what_is_left_of_it(tiny, tmp_path):
    first = on_disk(tiny, tmp_path)
    os.truncate(the_file(tmp_path), 4 * stride_of(tiny, tmp_path) + 1000)
    served = restarted(tiny, tmp_path)
    assert served.ask("again", PROMPT, 8) == first and served.reused("again") == 64
    assert served.faults() == [{"disk": {"checksum": 1}}]
    served.close()


def test_a_file_that_is_nonsense_is_of_no_use_and_no_harm(tiny, tmp_path):
    first = on_disk(tiny, tmp_path)
    file = the_file(tmp_path)
    file.write_bytes(os.urandom(file.stat().st_size))
    served = restarted(tiny, tmp_path)
    assert served.ask("again", PROMPT, 8) == first and served.reused("again") == 0
    (faults,) = served.faults()
    assert set(faults["disk"]) == {"header"}
    served.close()


def test_another_revision_has_a_folder_of_its_own_and_the_others_file_is_of_no_use_there(tiny, tmp_path):
    on_disk(tiny, tmp_path)
    files = dataclasses.replace(files_of(tiny), revision="ba9876543210")
    first = the_file(tmp_path)

    def other() -> Served:
        loaded = TextExecutor.load(
            files, cache=tmp_path / "cache", weights="fp32", blocks=12, threads=1, max_step_positions=256
        )
        return Served(loaded, disk_tier=str(tmp_path / "tier"), disk_tier_bytes=1 << 20)

    served = other()
    served.ask("foreign", PROMPT, 8, cache_salt="another")
    assert served.miss("foreign") == Miss("none", 0), "only within the salt is it told"
    served.ask("again", PROMPT, 8)
    assert served.reused("again") == 0 and not served.faults()
    assert served.miss("again") == Miss("other", 0, what="revision")
    told = tell(request_view(served.story, served.story.record("again"), 0))
    assert "Reused 0 of 150 prompt positions: what follows is known with another revision only." in told
    served.ask("never sent", FILLER, 1)
    assert served.miss("never sent") == Miss("none", 0)
    served.close()
    (mine,) = {*(tmp_path / "tier").glob("*/blocks")} - {first}
    mine.write_bytes(first.read_bytes())
    served = other()
    served.ask("again", PROMPT, 8)
    assert served.reused("again") == 0 and served.faults() == [{"disk": {"foreign": 9}}]
    served.close()


def test_state_of_another_format_has_a_folder_of_its_own_and_the_others_file_is_of_no_use_there(tiny, tmp_path):
    on_disk(tiny, tmp_path)
    first = the_file(tmp_path)

    def other() -> Served:
        loaded = TextExecutor.load(
            files_of(tiny), cache=tmp_path / "cache", weights="fp32", state="int8", blocks=12, threads=1,
            max_step_positions=256,
        )  # fmt: skip
        return Served(loaded, disk_tier=str(tmp_path / "tier"), disk_tier_bytes=1 << 20)

    served = other()
    said = served.ask("again", PROMPT, 8)
    assert served.reused("again") == 0 and not served.faults()
    assert served.miss("again") == Miss("other", 0, what="format")
    served.close()
    (mine,) = {*(tmp_path / "tier").glob("*/blocks")} - {first}
    served = other()
    assert served.ask("again", PROMPT, 8) == said and served.reused("again") == 144, "its own it reads"
    served.close()
    mine.write_bytes(first.read_bytes())
    served = other()
    assert served.ask("again", PROMPT, 8) == said and served.reused("again") == 0
    (faults,) = served.faults()
    assert sum(faults["disk"].values()) > 0
    served.close()


def test_a_smaller_tier_keeps_what_fits(tiny, tmp_path):
    first = on_disk(tiny, tmp_path)
    served = restarted(tiny, tmp_path, 4 * stride_of(tiny, tmp_path))
    assert served.ask("again", PROMPT, 8) == first and served.reused("again") == 64
    served.close()


WRITES = """
import sys
from pathlib import Path
from headway.replica.diskslab import DiskSlab
slab = DiskSlab.open(Path(sys.argv[1]), b"i" * 16, 1 << 20, 8 << 21)
for number in range(1 << 30):
    slab.write(number % 8, number.to_bytes(16, "big"), memoryview(bytes([number % 251]) * (1 << 20)))
    if number == 8:
        print("writing", flush=True)
"""


def test_killed_while_it_writes_it_leaves_only_whole_blocks(tmp_path):
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITES, str(tmp_path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None and writer.stdout.readline() == b"writing\n"
        time.sleep(0.02)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        slab = DiskSlab.open(tmp_path, b"i" * 16, 1 << 20, 8 << 21)
        assert len(slab.found.keys) >= 7 and not slab.found.damaged
        for slot, key in slab.found.keys.items():
            block = bytearray(1 << 20)
            slab.read(slot, key, memoryview(block))
            assert block == bytes([int.from_bytes(key, "big") % 251]) * (1 << 20)
        assert list(slab.found.keys.values()) == sorted(slab.found.keys.values()), "the oldest first"
        slab.close()


def test_a_write_that_was_cut_off_anywhere_leaves_the_old_block_or_none(tmp_path):
    """Every state of the file in which a crash can leave it, the writes being in order."""
    size, old, new = 3000, b"o" * 16, b"n" * 16
    slab = DiskSlab.open(tmp_path, b"i" * 16, size, slot_bytes(size))
    slab.write(0, old, memoryview(b"1" * size))
    file = tmp_path / "blocks"
    before = file.read_bytes()
    slab.write(0, new, memoryview(b"2" * size))
    after = file.read_bytes()
    slab.close()
    emptied = bytes(128) + before[128:]
    states = [before, emptied, *(emptied[:128] + after[128:cut] + emptied[cut:] for cut in (129, 1500, 3127))]
    states += [after[:cut] + bytes(128 - cut) + after[128:] for cut in (8, 40, 79)]
    for state in states:
        file.write_bytes(state)
        slab = DiskSlab.open(tmp_path, b"i" * 16, size, slot_bytes(size))
        for slot, key in slab.found.keys.items():
            block = bytearray(size)
            slab.read(slot, key, memoryview(block))
            assert (key, bytes(block)) in ((old, b"1" * size), (new, b"2" * size))
        slab.close()


def test_whatever_part_of_a_write_a_power_cut_leaves_a_block_is_read_whole_or_not_at_all(tmp_path):
    """The pages of a write reach the disk in any order, and any of them may be missing."""
    size, old, new = 4 * 4096 - 128, b"o" * 16, b"n" * 16
    slab = DiskSlab.open(tmp_path, b"i" * 16, size, slot_bytes(size))
    slab.write(0, old, memoryview(b"1" * size))
    file = tmp_path / "blocks"
    before = file.read_bytes()
    slab.write(0, new, memoryview(b"2" * size))
    after = file.read_bytes()
    slab.close()
    read = 0
    for pages in itertools.product((before, after), repeat=4):
        file.write_bytes(b"".join(page[4096 * i : 4096 * (i + 1)] for i, page in enumerate(pages)))
        slab = DiskSlab.open(tmp_path, b"i" * 16, size, slot_bytes(size))
        for slot, key in slab.found.keys.items():
            block = bytearray(size)
            with contextlib.suppress(Unreadable):
                slab.read(slot, key, memoryview(block))
                assert (key, bytes(block)) in ((old, b"1" * size), (new, b"2" * size))
                read += 1
        slab.close()
    assert read == 2, "the file as it was before, and as it was to be"


@pytest.mark.parametrize("what", ["magic", "identity", "size"])
def test_a_slot_that_an_older_version_wrote_is_of_no_use(tmp_path, what):
    """It is well-formed, but by other rules."""
    old, magic = (1 << 12, b"HEADWAY0") if what == "magic" else (1 << 12, diskslab._MAGIC)
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(diskslab, "_MAGIC", magic)
        identity = b"j" * 16 if what == "identity" else b"i" * 16
        slab = DiskSlab.open(tmp_path, identity, old - (8 if what == "size" else 0), 1 << 14)
        slab.write(0, b"k" * 16, memoryview(b"1" * (old - (8 if what == "size" else 0))))
        slab.close()
    slab = DiskSlab.open(tmp_path, b"i" * 16, old, 1 << 14)
    assert not slab.found.keys and slab.found.damaged + slab.found.foreign == 1
    with pytest.raises(Unreadable):
        slab.read(0, b"k" * 16, memoryview(bytearray(old)))
    slab.write(0, b"k" * 16, memoryview(b"2" * old))
    slab.close()
    slab = DiskSlab.open(tmp_path, b"i" * 16, old, 1 << 14)
    assert slab.found.keys == {0: b"k" * 16}
    slab.close()


def test_of_one_key_in_two_slots_the_newer_is_found_and_the_older_never(tmp_path):
    slab = DiskSlab.open(tmp_path, b"i" * 16, 100, 1 << 14)
    for slot, content in ((2, b"1"), (0, b"2")):
        slab.write(slot, b"k" * 16, memoryview(content * 100))
    slab.close()
    for _ in range(2):  # what is written after a restart is newer than all before it
        slab = DiskSlab.open(tmp_path, b"i" * 16, 100, 1 << 14)
        (slot,) = slab.found.keys
        block = bytearray(100)
        slab.read(slot, b"k" * 16, memoryview(block))
        assert block == (b"3" if slot == 3 else b"2") * 100
        slab.write(3, b"k" * 16, memoryview(b"3" * 100))
        slab.close()
    assert slot == 3


def test_what_another_file_was_computed_with_is_only_told_while_it_can_be_read_and_is_of_blocks_as_large(tmp_path):
    """No start fails by it, whatever lies in the folder."""
    folders = [tmp_path / folder_name(facts, identity_of(facts, 16)) for facts in (FACTS, replaced(revision="s"))]
    mine, other = folders
    slab = DiskSlab.open(other, identity_of(replaced(revision="s"), 16), 64, 1 << 14)
    slab.write(1, b"k" * 16, memoryview(b"x" * 64))
    assert diskorigins.beside(mine, 16) == (), "nobody said what it is computed with"
    diskorigins.write(other, replaced(revision="s"), 16)
    elsewhere = Elsewhere(Origin("s", "bf16", "bf16"), frozenset({b"k" * 16}))
    assert diskorigins.beside(mine, 16) == (elsewhere,), "while another server has it"
    assert diskorigins.beside(mine, 8) == () and diskorigins.beside(other, 16) == ()
    assert diskorigins.beside(tmp_path / f"another-{'0' * 16}", 16) == ()
    shutil.copytree(other, tmp_path / f"m-more-{other.name[-16:]}")
    assert diskorigins.beside(mine, 16) == (elsewhere,), "m-more is another model"
    slab.close()
    (other / "origin.json").write_bytes(b'{"revision": 7}')
    assert diskorigins.beside(mine, 16) == ()
    diskorigins.write(other, replaced(revision="s"), 16)
    (other / "blocks").unlink()
    assert diskorigins.beside(mine, 16) == ()
    diskorigins.write(tmp_path / "not there", FACTS, 16)


FACTS = ModelFacts(
    name="m", revision="r", pattern="text", vocab=9, max_context=9, weights_format="bf16", weights_bytes=1,
    state_format="bf16", block_bytes=64, kernels={"products": "oneDNN", "attention": "native"},
)  # fmt: skip


def test_of_many_files_beside_its_own_those_that_were_written_to_last_are_looked_at(tmp_path):
    """So that a start takes no longer however many revisions a folder has seen."""
    mine = tmp_path / folder_name(FACTS, identity_of(FACTS, 16))
    for age, revision in enumerate("abcdef"):
        facts = replaced(revision=revision)
        folder = tmp_path / folder_name(facts, identity_of(facts, 16))
        DiskSlab.open(folder, identity_of(facts, 16), 64, 1 << 14).close()
        diskorigins.write(folder, facts, 16)
        os.utime(folder / "blocks", (1000 - age, 1000 - age))
    found = diskorigins.beside(mine, 16)
    assert [each.origin.revision for each in found] == ["a", "b", "c", "d"]


def replaced(**changes) -> ModelFacts:
    return dataclasses.replace(FACTS, **changes)


def test_bytes_that_another_version_or_another_format_wrote_lie_in_another_folder(monkeypatch):
    kernels = ({"products": "fp32", "attention": "native"}, {"products": "oneDNN", "attention": "torch"}, {})
    changes = [{"revision": "s"}, {"weights_format": "int8"}, {"state_format": "fp32"}, {"block_bytes": 65}]
    facts = [FACTS, *(dataclasses.replace(FACTS, **change) for change in changes)]
    facts += [dataclasses.replace(FACTS, kernels=each) for each in kernels]
    identities = [identity_of(each, 16) for each in facts] + [identity_of(FACTS, 8)]
    monkeypatch.setattr(tiers, "_LAYOUT", "0")
    identities.append(identity_of(FACTS, 16))
    assert len({folder_name(FACTS, identity) for identity in identities}) == len(identities)
    assert identity_of(dataclasses.replace(FACTS, name="another", weights_bytes=2), 16) == identities[-1]


def test_a_block_is_read_only_by_its_own_key(tmp_path):
    slab = DiskSlab.open(tmp_path, b"i" * 16, 100, 1 << 14)
    slab.write(1, b"a" * 16, memoryview(b"x" * 100))
    with pytest.raises(Unreadable) as caught:
        slab.read(1, b"b" * 16, memoryview(bytearray(100)))
    assert caught.value.fault == "checksum"
    slab.close()


# -- what cannot work is said at the start ------------------------------------------------------------------------


def test_what_cannot_work_is_an_error_that_names_the_option(tmp_path):
    cases = [
        (tmp_path, 1000, "--disk-tier-bytes", "1000 bytes are less than one slot, which takes 4096"),
        (tmp_path, 2 * shutil.disk_usage(tmp_path).free, "--disk-tier-bytes", "MiB are more than the "),
        (tmp_path / "file" / "under", 1 << 20, "--disk-tier", "cannot be written: Not a directory"),
    ]
    (tmp_path / "file").write_text("")
    for folder, size, option, words in cases:
        with pytest.raises(ConfigError) as caught:
            DiskSlab.open(folder, b"i" * 16, 100, size)
        assert option in str(caught.value) and words in str(caught.value)


def test_two_servers_do_not_share_a_file(tmp_path):
    slab = DiskSlab.open(tmp_path, b"i" * 16, 100, 1 << 20)
    with pytest.raises(ConfigError, match="in use by another server"):
        DiskSlab.open(tmp_path, b"i" * 16, 100, 1 << 20)
    slab.close()
    DiskSlab.open(tmp_path, b"i" * 16, 100, 1 << 20).close()


def test_a_host_tier_below_one_block_is_an_error(tiny, tmp_path):
    with pytest.raises(ConfigError, match="less than one block of tiny"):
        Served(executor(tiny, tmp_path), host_tier_bytes=100)
