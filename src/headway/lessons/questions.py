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
        _loop(measured[2]),
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


def _loop(second: Measured) -> ClosingQuestion:
    text, image, embed = (second.counts[name] for name in ("text", "image", "embed"))
    fed = "evaluations_of_fed_back_input"
    return ClosingQuestion(
        Question(
            "Someone says that a model works in a loop. What would be evidence of it?",
            "",
            {
                "a": "the answer has many values",
                "b": "the answer arrives in pieces",
                "c": "later evaluations take the output of earlier ones as input",
                "d": "the model has many layers",
            },
        ),
        "c",
        f"In lesson 2, {text[fed]} of {text['evaluations']} evaluations of the text took the token chosen "
        f"before as input, and {image[fed]} of {image['evaluations']} of the image the latent updated before; of "
        f"the embedding {embed[fed]} of {embed['evaluations']} did. A large answer can leave one evaluation, a "
        "server can cut it into pieces, and layers follow each other within one evaluation.",
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
