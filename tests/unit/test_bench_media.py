"""Figures that the benchmark of media counts."""

from pathlib import Path

import pytest

from ops.bench.media import flood, report
from ops.bench.media.second_question import Answer, Turn, figures
from ops.bench.media.seeing import equal

TURNS = [
    Turn(first=Answer(first, 1200, 0), again=Answer(again, 1200, cached_tokens), text=Answer(0.1, 30, 0))
    for first, again, cached_tokens in ((2.0, 0.2, 900), (4.0, 1.0, 1080), (1.0, 0.5, 1104))
]


def test_the_ratio_is_that_of_both_questions_about_one_picture() -> None:
    """A ratio of the medians may be of pictures that met different loads of the machine, so the pairs' ratios count."""
    values = figures(TURNS)
    assert values["second_question_ttft_ratio"] == 0.25
    assert (values["first_question_ttft_ms"], values["second_question_ttft_ms"]) == (2000, 500)
    assert values["second_question_cached_share"] == 0.9


def test_time_between_tokens_is_compared_turn_by_turn() -> None:
    values = flood.figures([flood.Turn(10, 100), flood.Turn(40, 80), flood.Turn(30, 50)])
    assert (values["itl_p99_ratio"], values["itl_p99_apart_ms"], values["itl_p99_together_ms"]) == (0.5, 30, 80)


@pytest.mark.parametrize(("fetched", "share"), [(4, 0.75), (9, 0.75), (2, 0.5), (0, 0)])
def test_answers_are_equal_only_of_pictures_that_came_from_an_encoder(fetched: float, share: float) -> None:
    assert equal(["a", "b", "c", "d"], ["a", "b", "c", "x"], fetched) == share


def test_what_got_through_or_was_wrong_is_named_in_a_table(tmp_path: Path) -> None:
    wrong = {"question": "How many?", "wanted": "two", "got": "three"}
    results = figures(TURNS) | {
        "hostile_through": ["a bomb: 200"],
        "images_pairs": [(1.0, 2.0)],
        "flood_turns": [[20.0, 80.0]],
        "seen_wrong": [wrong],
        "seen_seed": 7,
    }
    through, answers, questions, flood_table, images = report.tables(results)
    assert list(through.columns[0].cells) == ["a bomb: 200"]
    assert list(answers.columns[2].cells) == ["three"]
    assert list(questions.columns[2].cells) == ["0.100", "0.250", "0.500"]
    assert list(flood_table.columns[2].cells) == ["0.250"]
    assert list(images.columns[2].cells) == ["0.500"]
    report.plot(results, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 0


@pytest.mark.parametrize("results", [{}, {"hostile_through": []}])
def test_what_was_not_measured_has_no_table(results: dict[str, object], tmp_path: Path) -> None:
    assert list(report.tables(results)) == []
    report.plot(results, tmp_path / "plot.png")
