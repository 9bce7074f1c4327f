"""Five questions at the end. Their explanations use the numbers that the lessons measured."""

from __future__ import annotations

from collections.abc import Mapping

from headway.lessons import fed_back, same_prompt, step_budget
from headway.lessons.lesson import ClosingQuestion, Measured, Question

NO_YES = {"a": "no", "b": "yes"}


def questions(measured: Mapping[int, Measured]) -> list[ClosingQuestion]:
    """`measured` are all lessons by number. Raises KeyError when one is missing."""
    return [
        _shared_model(measured[1], measured[4]),
        _left_over(measured[3]),
        _loop(measured[8]),
        _evicting(measured[4]),
        _values(measured[2]),
    ]


def _shared_model(first: Measured, fourth: Measured) -> ClosingQuestion:
    a, b = (first.counts[f"state_of_{id}"]["prefilled_positions"] for id in "AB")
    reused, prefilled = (fourth.counts["second_with_reuse"][kind] for kind in ("reused", "prefilled"))
    return ClosingQuestion(
        Question("Two requests share one loaded model. Does the second skip the prefill of its prompt?", "", NO_YES),
        "a",
        f"In lesson 1 both used the same weights, and each prefilled its own prompt: {a} positions and {b}. What "
        f"saves prefill is state, not weights: in lesson 4 the second request reused {reused} positions of an "
        f"equal prefix, and still prefilled {prefilled}.",
    )


def _left_over(third: Measured) -> ClosingQuestion:
    row = third.counts[f"steps_of_{step_budget.LARGE}"]
    return ClosingQuestion(
        Question(
            f"A step has {step_budget.LARGE} positions, and {step_budget.DECODING} sequences are decoding. How many "
            "are left for prompts?",
            "positions",
        ),
        row["left_for_the_prompt"],
        f"Each decoding sequence takes one position, and they come first: {step_budget.LARGE} − "
        f"{row['decode_positions_in_each']} = {row['left_for_the_prompt']}. The prompt of lesson 3 went in as "
        f"{', '.join(map(str, row['chunks']))}: {row['steps']} steps.",
    )


def _loop(eighth: Measured) -> ClosingQuestion:
    before, loop, cut, more = (
        eighth.counts[name] for name in ("before", "in_the_loop", "admission_cut", "one_block_more")
    )
    again, tokens = "recomputed_per_second", "tokens_per_second"
    return ClosingQuestion(
        Question(
            "Goodput drops while ten preemptions a second each cause 2,000 positions of recomputation. What evidence "
            "supports a recovery loop?",
            "",
            {
                "a": "preemptions: there are ten a second",
                "b": "goodput fell: fewer tokens a second reach callers",
                "c": "recomputed positions rose with the fall of goodput: 20,000 a second of prompt work are work "
                "that was done before",
                "d": "memory is full",
            },
        ),
        "c",
        "Ten a second that lose 2,000 each are 20,000 positions computed again; beside 20,000 of prompts, prompt "
        f"work doubles. In lesson 8, a tenth of that, {loop['preempted_per_second']} preemptions a second cost "
        f"{loop[again]:,} of {loop['prompt_work_per_second']:,} positions, and goodput fell from {before[tokens]} to "
        f"{loop[tokens]} tokens a second. Preemptions alone may be cheap (a prefix cache finds the state again), "
        "goodput also falls where nobody asks, and a full pool is a used one: lost work that rises while goodput "
        f"falls is the evidence, and what ends it the proof. With admission cut {cut[again]} were computed again and "
        f"goodput was {cut[tokens]}, with one block more {more[tokens]}.",
    )


def _evicting(fourth: Measured) -> ClosingQuestion:
    other, second = (fourth.counts[f"{id}_with_evictions"] for id in ("other", "second"))
    kept = fourth.counts["second_with_reuse"]["prefilled"]
    return ClosingQuestion(
        Question("A reusable prefix is evicted. Does that add prefill?", "",
                 {"a": "yes, at once", "b": "no, not by itself", "c": "yes, for every running request"}),
        "b",
        f"In lesson 4 a request evicted {other['blocks_evicted']} reusable blocks and prefilled {other['prefilled']} "
        f"positions, its own prompt and no more. Only a later request that misses the prefix pays: "
        f"{second['prefilled']} positions of {same_prompt.PROMPT} instead of {kept}. If it never comes, nobody does.",
    )  # fmt: skip


def _values(second: Measured) -> ClosingQuestion:
    evaluations = second.counts["embed"]["evaluations"]
    return ClosingQuestion(
        Question(
            f"An embedding has {fed_back.VALUES} values. Did it take {fed_back.VALUES} evaluations?", "", NO_YES
        ),
        "a",
        f"It took {evaluations}: all values leave one evaluation, and none is fed back (lesson 2). The text took "
        f"{second.counts['text']['evaluations']} for {fed_back.TOKENS} tokens, because each token had to be chosen "
        "before the next could be.",
    )
