"""`headway lesson`: what the lessons measure, and that a prediction is asked for, judged, or left out."""

from __future__ import annotations

import ast
import io
import json
from pathlib import Path

import pytest

import headway
from headway.cli import main
from headway.lessons import bigger_batch, fed_back, lost_state
from headway.lessons.course import LESSONS
from headway.lessons.lesson import Question
from headway.lessons.model import Model
from headway.lessons.pages import ONCE, QUESTIONS, page_name
from headway.memory.reserve import blocks_for
from serving import headway as command

ROOT = Path(headway.__file__).parent
PAGES = Path(__file__).parent.parent / "docs" / "lessons"
FAKE = [each.number for each in LESSONS if each.modelled]


class Terminal(io.StringIO):
    """A keyboard on which somebody has typed all lines already."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """All lessons run once, real ones included, with their pages written. One thread, so that other work on the
    machine does not make the threads wait for each other."""
    folder = tmp_path_factory.mktemp("pages")
    done = command("lesson", "--all", "--json", "--pages", str(folder), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) | {"pages": folder}


def counts(course: dict, number: int) -> dict:
    return course["lessons"][number - 1]["measured"]["counts"]


def at_terminal(monkeypatch: pytest.MonkeyPatch, typed: str, *words: str) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    assert main(["lesson", *words]) == 0


# -- what the lessons measure ---------------------------------------------------------------------------------


def test_1_a_second_request_adds_its_own_blocks_and_no_second_copy_of_the_weights(course):
    rows = counts(course, 1)
    block_bytes = 2 * 30 * 3 * 64 * 16 * 4  # keys and values, layers, heads, values, positions, fp32
    for id, prompt in {"A": 40, "B": 90}.items():
        blocks = blocks_for(prompt + 15, 16)
        assert rows[f"state_of_{id}"] == {
            "blocks": blocks, "bytes": blocks * block_bytes, "prefilled_positions": prompt
        }  # fmt: skip
    assert rows["weights"]["bytes"] == 134_515_008 * 4  # parameters, fp32
    assert course["lessons"][0]["answer"] == "b"
    resident = {row: cells["resident_mib"] for row, cells in course["lessons"][0]["measured"]["observed"].items()}
    weights_mib = rows["weights"]["bytes"] / 2**20
    assert resident["after_the_load"] - resident["before_the_load"] > weights_mib / 2
    assert resident["after_A_and_B"] - resident["after_A"] < weights_mib / 4


def test_2_a_token_or_a_latent_is_fed_back_and_from_an_embedding_nothing(course):
    columns = ("evaluations", "evaluations_of_fed_back_input", "values_fed_back_each_time")
    rows = {name: tuple(row[column] for column in columns) for name, row in counts(course, 2).items()}
    assert rows == {"text": (5, 4, 1), "image": (10, 7, 1024), "embed": (1, 0, 0)}


def test_2_what_did_not_come_out_of_the_evaluation_before_is_not_counted_as_fed_back():
    turns = fed_back.Evaluations()
    for part, inputs, outputs in (("m", [1, 2], [3]), ("m", [3], [4]), ("m", [5], [6]), ("other", [6], [7])):
        turns.note(part, inputs, outputs)
    assert turns.fed_back == [0, 1, 0, 0]


def test_3_512_less_32_leaves_480_so_1500_take_4_steps_and_with_256_they_take_7(course):
    rows = counts(course, 3)
    assert rows["steps_of_512"]["chunks"] == [480, 480, 480, 60]
    assert rows["steps_of_256"]["chunks"] == [224] * 6 + [156]
    assert {row["decode_positions_in_each"] for row in rows.values()} == {32}
    modelled = course["lessons"][2]["measured"]["observed"]
    large, small = modelled["steps_of_512"], modelled["steps_of_256"]
    assert large["longest_gap_between_tokens_ms"] == 5 + 512 * 0.1
    assert small["longest_gap_between_tokens_ms"] < large["longest_gap_between_tokens_ms"]
    assert small["first_token_ms"] > large["first_token_ms"]


def test_4_reuse_spares_all_but_the_last_position_and_eviction_costs_only_whoever_misses_them(course):
    rows = {row: (cells["reused"], cells["prefilled"]) for row, cells in counts(course, 4).items()}
    assert rows["second_without_reuse"] == (0, 200)
    assert rows["second_with_reuse"] == (199, 1)
    assert rows["other_with_evictions"] == (0, 170)
    evicted = counts(course, 4)["other_with_evictions"]["blocks_evicted"]
    assert evicted == 4  # 11 blocks of 20, where 12 whole ones and the one behind them stay reusable
    assert rows["second_with_evictions"] == (192 - 16 * 3, 8 + 16 * 3)


def test_5_b_waits_once_for_a_turn_and_once_for_space(course):
    rows = {row: tuple(cells.values()) for row, cells in counts(course, 5).items()}
    assert rows == {"one_seat": ("turn", "seats", 1, 0, 1, 8), "few_blocks": ("space", "blocks", 7, 5, 2, 8)}


def test_6_all_lost_positions_are_recomputed_less_what_the_prefix_cache_still_has(course):
    off, on = counts(course, 6).values()
    assert lost_state.B_PROMPT + lost_state.EMITTED - 1 == 62
    assert (off["preemptions"], off["lost"], off["regained"], off["recomputed"]) == (1, 62, 0, 62)
    assert (on["preemptions"], on["lost"], on["regained"] + on["recomputed"]) == (1, 62, 62)
    assert on["regained"] == 40 and on["blocks_evicted_meanwhile"] == -(-62 // 8) - 40 // 8


def test_7_the_bigger_batch_makes_more_images_per_second_and_fewer_in_time(course):
    assert {row: cells["in_time"] for row, cells in counts(course, 7).items()} == {
        "batch_of_1": 2, "batch_of_2": 2, "batch_of_8": 0, "deadline_rule": 5
    }  # fmt: skip
    assert counts(course, 7)["deadline_rule"]["refused"] == 3
    modelled = course["lessons"][6]["measured"]["observed"]
    rates = [modelled[f"batch_of_{batch}"]["images_per_second"] for batch in (1, 2, 8)]
    assert rates == sorted(rates) and rates[-1] == round(8 / 0.2374, 1)
    assert modelled["batch_of_8"]["first_complete_ms"] == round(3 + 20 * 10.5 + 24.4, 1)


def test_where_diffusers_is_missing_a_stand_in_takes_the_same_steps_and_is_named():
    class WithoutDiffusers(Model):
        images = None

    two, seven = fed_back.measure(WithoutDiffusers()), bigger_batch.measure(WithoutDiffusers())
    for found in (two, seven):
        assert found.story[0].startswith("A fake diffusion model stands in for emoji-64, because diffusers is not")
    assert two.counts["image"]["evaluations"] == 10
    assert [row["in_time"] for row in seven.counts.values()] == [2, 2, 0, 5]


def test_8_ten_preemptions_a_second_compute_1920_positions_again_until_admission_is_cut_or_there_is_a_block_more(
    course,
):
    rows = counts(course, 8)
    loop = rows["in_the_loop"]
    assert (loop["preempted_per_second"], loop["recomputed_per_second"]) == (10, 10 * 192)
    assert loop["prompt_work_per_second"] == 2 * 10 * 192 + 10 * 15
    assert loop["tokens_per_second"] == 10 * (10 + 4) < 0.8 * rows["before"]["tokens_per_second"]
    for row in ("admission_cut", "one_block_more"):
        assert (rows[row]["preempted_per_second"], rows[row]["recomputed_per_second"]) == (0, 0)
        assert rows[row]["tokens_per_second"] > rows["before"]["tokens_per_second"]
    told = course["lessons"][7]["measured"]["story"]
    assert "Admission is cut until 2 windows of 10 s had no preemption." in told[0] and "no longer cut" in told[2]
    assert "Admission is cut until 4 windows" in told[3], "the load is the same, so the loop comes back: longer then"


def test_9_evicting_is_paid_later_or_never_preempting_at_once_and_offloading_in_bytes(course):
    rows = {row: tuple(cells.values()) for row, cells in counts(course, 9).items()}
    lost = counts(course, 6)["reuse_off"]["lost"]
    assert rows["preempt"][1:] == (lost, 0, 0)
    assert rows["offload"][1:] == (0, 0, 2 * lost * 2 * 30 * 3 * 64 * 2) and rows["offload"][0] == rows["preempt"][0]
    blocks, now, later, moved = rows["evict"]
    assert blocks > 0 and (now, moved) == (0, 0) and later > 0


def test_the_five_questions_are_answered_from_what_was_measured(course):
    asked = course["questions"]
    assert [each["answer"] for each in asked] == ["a", 480, "c", "b", "a"]
    for each, words in zip(
        asked,
        ("199 positions", "480, 480, 480, 60", "cost 1,920 of 3,990", "170 positions", "It took 1"),
        strict=True,
    ):
        assert words in each["why"] and each["prediction"] is None


# -- predictions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("4\n", "You predicted: 4 steps: right."),
        ("1,500\n", "You predicted: 1,500 steps: wrong."),
        ("four\n4\n", "'four' is not a whole number of steps."),
    ],
)
def test_at_a_terminal_a_prediction_is_asked_for_until_it_means_something(monkeypatch, capsys, typed, told):
    at_terminal(monkeypatch, typed, "3")
    out = capsys.readouterr().out
    assert "Your prediction (a whole number of steps; Enter skips)" in out
    assert told in out and "Measured: 4 steps." in out
    assert out.index("Your prediction") < out.index("Measured:")


@pytest.mark.parametrize("typed", ["\n", ""])
def test_enter_or_the_end_of_the_input_skips(monkeypatch, capsys, typed):
    at_terminal(monkeypatch, typed, "3")
    out = capsys.readouterr().out
    assert "Measured: 4 steps." in out and "You predicted" not in out


def test_without_a_terminal_nothing_is_asked_and_all_is_revealed(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("4\n"))
    assert main(["lesson", "3"]) == 0
    out = capsys.readouterr().out
    assert "Your prediction" not in out and "You predicted" not in out and "Measured: 4 steps." in out
    assert "src/headway/policy/budget.py  granted" in out


@pytest.mark.parametrize(("answer", "right"), [("4", True), ("3", False)])
def test_an_answer_for_scripts_is_judged_and_never_asked_for(monkeypatch, capsys, answer, right):
    at_terminal(monkeypatch, "", "3", "--answer", answer, "--json")
    view = json.loads(capsys.readouterr().out)
    assert (view["prediction"], view["right"], view["answer"]) == (int(answer), right, 4)
    assert {"lesson", "question", "measured", "why", "code"} <= set(view)


def test_a_choice_is_a_letter_in_any_case():
    question = Question("?", options={"a": "one", "b": "other"})
    assert question.read(" B ") == "b" and question.words("b") == "b, other"
    for text in ("c", "1", "ab"):
        with pytest.raises(ValueError, match="one of a, b"):
            question.read(text)


@pytest.mark.parametrize("text", ["-1", "2.5", "many", "a"])
def test_a_number_is_whole_and_not_negative(text):
    with pytest.raises(ValueError, match="a whole number of steps"):
        Question("?", "steps").read(text)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["10"], "there are lessons 1 to 9, none has the number 10"),
        (["0"], "there are lessons 1 to 9"),
        (["3", "--answer", "four"], "--answer: 'four' is not a whole number of steps"),
        (["1", "--answer", "d"], "--answer: 'd' is not one of a, b, c"),
        (["--answer", "4"], "--answer: requires a lesson"),
        (["--all", "--answer", "4"], "--answer: requires a lesson"),
        (["--pages", "somewhere"], "--pages: requires"),
        (["3", "--all"], "--all: runs every lesson"),
    ],
)
def test_what_means_nothing_is_refused(capsys, words, told):
    assert main(["lesson", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and told in err


def test_a_number_that_is_none_is_wrong_usage(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["lesson", "three"])
    assert caught.value.code == 2 and "'three'" in capsys.readouterr().err


def test_without_a_number_the_lessons_are_listed(capsys):
    assert main(["lesson"]) == 0
    out = capsys.readouterr().out
    assert all(f"{each.number}  {each.title}" in out for each in LESSONS)
    assert main(["lesson", "--json"]) == 0
    assert [row["lesson"] for row in json.loads(capsys.readouterr().out)["lessons"]] == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_lessons_of_the_fake_executor_load_no_model():
    assert FAKE == [2, 3, 5, 6, 7, 8, 9]
    for number in set(FAKE) - {2, 7}:  # those two draw with the real image model
        LESSONS[number - 1].measure(None)  # there is no model that could be touched


# -- code and pages -------------------------------------------------------------------------------------------


def functions(path: Path) -> set[str]:
    """Dotted names of all functions of a file, outside of functions."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.slug)
def test_the_code_that_a_lesson_names_exists(lesson):
    assert lesson.code
    for code in lesson.code:
        assert code.function in functions(ROOT / code.file), code


@pytest.mark.parametrize("name", [*map(page_name, LESSONS), QUESTIONS])
def test_a_page_says_what_a_run_says_now_and_machine_made_numbers_are_set_apart(course, name):
    """`headway lesson --all --pages docs/lessons` writes them anew."""
    (kept, *measured_once), (now, *_) = (
        (folder / name).read_text(encoding="utf-8").split(ONCE) for folder in (PAGES, course["pages"])
    )
    assert kept == now
    assert all("Measured once, on " in part for part in measured_once)


def test_there_is_no_page_that_no_lesson_writes():
    assert {path.name for path in PAGES.iterdir()} == {*map(page_name, LESSONS), QUESTIONS}
