"""What the benchmark of media counts."""

from pathlib import Path

import pytest

from ops.bench.media import report
from ops.bench.media.second_question import Answer, Turn, figures

TURNS = [
    Turn(first=Answer(first, 1200, 0), again=Answer(again, 1200, cached), text=Answer(0.1, 30, 0))
    for first, again, cached in ((2.0, 0.2, 900), (4.0, 1.0, 1080), (1.0, 0.5, 1104))
]


def test_the_ratio_is_that_of_both_questions_about_one_picture() -> None:
    """Of the pairs' ratios, not of the medians: those may be of pictures that met another load of the machine."""
    found = figures(TURNS)
    assert found["second_question_ttft_ratio"] == 0.25
    assert (found["first_question_ttft_ms"], found["second_question_ttft_ms"]) == (2000, 500)
    assert found["second_question_cached_share"] == 0.9


def test_what_got_through_or_was_wrong_is_named_in_a_table(tmp_path: Path) -> None:
    wrong = {"question": "How many?", "wanted": "two", "got": "three"}
    results = figures(TURNS) | {
        "hostile_through": ["a bomb: 200"],
        "images_pairs": [(1.0, 2.0)],
        "seen_wrong": [wrong],
        "seen_seed": 7,
    }
    through, answers, questions, images = report.tables(results)
    assert list(through.columns[0].cells) == ["a bomb: 200"]
    assert list(answers.columns[2].cells) == ["three"]
    assert list(questions.columns[2].cells) == ["0.100", "0.250", "0.500"]
    assert list(images.columns[2].cells) == ["0.500"]
    report.plot(results, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 0


@pytest.mark.parametrize("results", [{}, {"hostile_through": []}])
def test_what_was_not_measured_has_no_table(results: dict[str, object], tmp_path: Path) -> None:
    assert list(report.tables(results)) == []
    report.plot(results, tmp_path / "plot.png")
