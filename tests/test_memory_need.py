"""How many blocks a request needs: the contract's formulas, against the verdict and against what is taken."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.events import Admitted
from headway.core.request import Request
from headway.memory.keys import KeyChain
from headway.memory.pool import BlockPool
from headway.memory.reserve import Shortfall, StateMemory
from headway.patterns.text.sequence import Sequence
from world import SAMPLED, World


def up(positions: int, size: int) -> int:
    """⌈positions / size⌉"""
    return -(-positions // size)


def admitted(world: World, id: str) -> Admitted:
    return [event for event in world.events if isinstance(event, Admitted) and event.id == id][-1]


def distinct(event: Admitted) -> int:
    return len({block for table in event.tables for block in table})


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 8), st.data())
def test_at_admission_need_have_and_what_is_taken_are_the_contracts(p, n, size, data):
    """The pool is one block too small while another request runs, and large enough once it has gone."""
    cached = data.draw(st.integers(0, p - 1), label="cached positions")
    matched = cached // size
    need = p // size + n * (up(p + 1, size) - p // size) - matched
    if n == 1:
        assert need == up(p + 1, size) - matched
    world = World(blocks=matched + 3 + need - 1, block_tokens=size, seats=5, step_tokens=1000)
    prompt = list(range(p))
    if cached:
        world.add("before", prompt[:cached], max_tokens=1)
        world.run()
    tail = int(cached % size > 0)  # a block that is computed in part: to be copied, so it is not matched
    assert (world.pool.reusable, world.pool.live) == (matched + tail, 0)
    world.add("runs", list(range(500, 500 + max(2, 3 * size - 2))), max_tokens=2)
    world.step()
    assert world.pool.live == 3
    world.add("asks", prompt, n=n, max_tokens=1, sampling=SAMPLED)
    world.step()
    wait = world.wait("asks")
    assert (wait.rule, wait.need, wait.have, wait.short) == ("blocks", need, need - 1, 1)
    assert (wait.free + wait.reusable, wait.have) == (need - 1 + matched, need - 1)  # the matched: not counted twice
    assert world.wait("asks").holders[0].id == "runs" and wait.holders[0].blocks == 3
    world.run()
    event = admitted(world, "asks")
    assert distinct(event) == need + matched
    assert event.inherited[0] in {matched * size, cached}  # the tail may have been evicted meanwhile
    assert all(world.said["asks", index] == world.expected("asks", index, 1) for index in range(n))


def test_blocks_that_are_matched_but_live_are_not_taken_from_what_is_available():
    world = World(blocks=8, block_tokens=4, seats=5)
    prompt = list(range(12))
    world.add("runs", prompt, max_tokens=3)  # four blocks
    world.step()
    world.add("asks", [*prompt, *range(20, 36)], max_tokens=1)  # 28 positions: eight blocks, of which three are live
    world.step()
    wait = world.wait("asks")
    assert (wait.need, wait.have, wait.free, wait.reusable) == (8 - 3, 4, 4, 0)
    assert wait.holders[0].blocks == 4  # nobody else holds them yet


ASKS = st.lists(
    st.tuples(st.integers(1, 12), st.integers(1, 3), st.integers(1, 10), st.integers(0, 2)), min_size=2, max_size=7
)


@settings(max_examples=120, deadline=None)
@given(st.integers(1, 4), st.integers(6, 24), st.booleans(), ASKS)
def test_at_every_admission_and_resumption_the_formula_holds_for_what_is_known_then(size, blocks, cache, asks):
    """With a prefix cache the matched blocks are part of the tables; without one the verdict's need is the whole."""
    world = World(blocks=blocks, block_tokens=size, seats=4, step_tokens=20, prefix_cache=cache)
    requests: dict[str, Request] = {}

    def whole(request: Request) -> int:
        p, ones = request.progress.sequences[0].prompt, request.progress.open_sequences
        return p // size + sum(up(sequence.known + 1, size) - p // size for sequence in ones)

    def step() -> None:
        before = {id: whole(request) for id, request in requests.items()}
        told = len(world.events)
        world.step()
        for event in world.events[told:]:
            if isinstance(event, Admitted):
                tables = sum(len(table) for table in event.tables)
                shared = requests[event.id].progress.sequences[0].prompt // size
                assert tables - (len(event.tables) - 1) * shared == before[event.id]
                assert distinct(event) <= before[event.id]  # equal siblings may find the same blocks
                if not cache:
                    assert distinct(event) == before[event.id]
        for id, wait in world.steps()[-1].waits.items():
            if wait.rule == "blocks":
                assert wait.need == before[id] if not cache else wait.need <= before[id]

    for i, (prompt, n, emits, gap) in enumerate(asks):
        id = f"r{i}"
        request = world.add(id, list(range(prompt)), n=n, max_tokens=emits, sampling=SAMPLED)
        if not request.ended:
            requests[id] = request
        for _ in range(gap):
            if world.engine.requests:
                step()
    while world.engine.requests:
        step()


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 5), st.integers(1, 20), st.integers(1, 20), st.integers(0, 4))
def test_while_running_a_sequence_owns_blocks_for_known_and_its_drafts_and_no_more(size, prompt, emits, guesses):
    world = World(block_tokens=size, drafter=lambda tokens: [1] * guesses)
    request = world.add("a", prompt, max_tokens=emits)
    sequence = request.progress.sequences[0]
    while not request.ended:
        known, emitted = sequence.known, sequence.emitted
        plan = world.engine.plan()
        (span,) = plan.items
        drafts = min(guesses, emits - emitted - 1) if emitted else 0
        assert span.drafts == drafts
        assert len(span.blocks) == max(up(prompt + 1, size), up(known + drafts, size))
        world.note(world.engine.commit(world.executor.run(plan)))
        if sequence.state:
            assert len(sequence.state.blocks) <= max(up(prompt + 1, size), up(sequence.known, size))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.integers(1, 3), st.integers(1, 4), st.integers(1, 20))
def test_what_fits_alone_is_exactly_what_the_pool_holds(prompt, n, size, blocks):
    """`longest` and `worst_case` are each other's inverse: one more token would not fit."""
    memory = World(blocks=blocks, block_tokens=size).model.pattern.memory
    longest = memory.longest(prompt, n)
    if longest >= 1:
        assert memory.worst_case(prompt, n, longest) <= blocks
    assert memory.worst_case(prompt, n, max(longest, 0) + 1) > blocks


# -- quoting and reserving ------------------------------------------------------------------------------------


def sequences_of(memory: StateMemory, prompt: list[int], *answers: list[int]) -> list[Sequence]:
    """Sequences that were preempted: their tokens are known, none has state."""
    size = memory.pool.block_tokens
    return [
        Sequence(index, [*prompt, *answer], len(prompt), KeyChain(b"root", size))
        for index, answer in enumerate(answers)
    ]


def leave_behind(memory: StateMemory, tokens: list[int]) -> None:
    """The whole blocks of `tokens` become reusable."""
    (sequence,) = sequences_of(memory, tokens, [])
    (table,) = memory.reserve(memory.quote([sequence]))
    sequence.state, sequence.computed = table, len(tokens)
    memory.publish(sequence)
    table.release()


def test_a_reservation_that_cannot_be_made_is_a_shortfall_and_takes_nothing():
    memory = StateMemory(BlockPool(6, 4), prefix_cache=True)
    leave_behind(memory, list(range(8)))
    quote = memory.quote(sequences_of(memory, list(range(30)), []))
    assert (quote.sizes, quote.fresh, quote.revived, quote.matched) == ((8,), 6, 2, ((0, 1),))
    assert memory.reserve(quote) == Shortfall(need=6, have=4)
    assert (memory.pool.live, memory.pool.reusable, memory.pool.free) == (0, 2, 4)


def test_a_quote_changes_nothing_and_a_reservation_takes_exactly_what_was_quoted():
    memory = StateMemory(BlockPool(12, 4), prefix_cache=True)
    leave_behind(memory, list(range(8)))
    sequences = sequences_of(memory, list(range(18)), [], [])
    quote = memory.quote(sequences)
    assert memory.quote(sequences) == quote and memory.pool.live == 0
    assert quote.fresh == 4 // 2 + 2 * (5 - 4) and quote.shared == 4
    tables = memory.reserve(quote)
    assert memory.pool.live == quote.fresh + quote.revived
    assert [len(table.blocks) for table in tables] == [5, 5] and tables[0].blocks[:4] == tables[1].blocks[:4]


def test_a_sibling_may_find_more_of_its_own_than_the_leading_sequence():
    memory = StateMemory(BlockPool(20, 4), prefix_cache=True)
    prompt, answers = list(range(8)), ([50] * 8, [60] * 8)
    leave_behind(memory, [*prompt, *answers[1]])
    quote = memory.quote(sequences_of(memory, prompt, *answers))
    assert [len(found) for found in quote.matched] == [2, 3]
    assert (quote.shared, quote.sizes) == (2, (5, 5))
    assert quote.fresh == (5 - 2) + (5 - 3) and quote.revived == 3


def test_while_the_leading_sequence_lacks_shared_blocks_a_sibling_finds_none_of_its_own():
    """What it found could not be reached: the blocks before are yet to be computed, and will be the leading one's."""
    memory = StateMemory(BlockPool(20, 4), prefix_cache=True)
    prompt, answers = list(range(8)), ([50] * 8, [60] * 8)
    leave_behind(memory, prompt[:4])
    quote = memory.quote(sequences_of(memory, prompt, *answers))
    assert quote.matched == ((0,), (0,)) and quote.fresh == 1 + 2 * 3
