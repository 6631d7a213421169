"""Cells of the matrix of architectures, and the reasons that engines' processes leave in their log."""

from pathlib import Path

from ops.models.cell import right, untried, wrong
from ops.models.log import Log
from ops.models.page import page
from ops.models.pictures import Seen

BEFORE = "ValueError: of the model before\n"
DIED = """(EngineCore pid=7) ERROR 11-28 21:06:00 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-28 21:06:00 [core.py:1510] AttributeError: 'Config' object has no attribute 'scoring'
Traceback (most recent call last):
  File "process.py", line 314, in _bootstrap
RuntimeError: Engine core initialization failed. See root cause above.
"""
RAISED = """(EngineCore pid=7) ERROR 11-28 21:06:00 [core.py:1512]   File "/a/router/cpu_router.py", line 239, in route
(EngineCore pid=7) ERROR 11-28 21:06:00 [core.py:1512]     assert bias == 3
(EngineCore pid=7) ERROR 11-28 21:06:00 [core.py:1512]            ^^^^^^^^^
(EngineCore pid=7) ERROR 11-28 21:06:00 [core.py:1512] AssertionError
"""


def test_a_reason_is_the_first_error_that_an_engines_process_raised(tmp_path: Path) -> None:
    """The error is this model's; a reason that already names its error is left as it is."""
    path = tmp_path / "log"
    log = Log(path)
    path.write_text(BEFORE)
    log.begin()
    with path.open("a") as file:
        file.write(DIED)
    assert (
        log.reason("It did not start. See root cause above.")
        == "AttributeError: 'Config' object has no attribute 'scoring'"
    )
    assert log.reason("vLLM refuses dtype=int3") == "vLLM refuses dtype=int3"


def test_a_reason_without_words_has_the_line_that_raised_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(path)
    path.write_text(RAISED)
    assert log.reason("It died.") == "AssertionError: assert bias == 3 (cpu_router.py)"


def test_without_an_error_in_the_log_the_engines_own_words_stay(tmp_path: Path) -> None:
    message = "The process died. See stack trace (above) for the root cause."
    assert Log(tmp_path / "log").reason(message) == message


def test_a_cell_that_needs_a_gpu_says_so() -> None:
    assert str(wrong("NotImplementedError: Sparse Attention is not supported on CPU")).startswith("✗ needs a GPU: ")
    assert str(wrong("a\nValueError: too wide")) == "✗ ValueError: too wide"
    assert (str(right()), str(right("60")), str(untried("nothing is cached"))) == ("✓", "✓ 60", "– nothing is cached")


def test_the_page_says_of_each_type_whether_prompts_with_its_pictures_are_the_engines() -> None:
    rows = [
        Seen(name="llava", counted=9, answered=9),
        Seen(name="idefics3", starts="NotImplementedError: CUDA only", counted=8),
        Seen(name="mistral3", refused="(20, 20): too small", counted=3, wrong=1),
    ]
    assert page([], rows).splitlines()[-3:] == [
        "| llava | image | ✓ 9 | ✓ |",
        "| idefics3 | image | ✗ needs a GPU: NotImplementedError: CUDA only | ✓ |",
        "| mistral3 | image | ✗ (20, 20): too small | ✗ 1 of 3 not |",
    ]
