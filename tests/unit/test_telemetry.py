"""Content of a log line about an exception."""

import logging

import pytest

from app.running.log_lines import _frames, setup_logging


def shown(exc: BaseException) -> str:
    return _frames((type(exc), exc, exc.__traceback__))


def fails() -> None:
    raise KeyError("a prompt")


def raised(cause: BaseException | None = None) -> BaseException:
    try:
        try:
            fails()
        except KeyError as exc:
            raise RuntimeError("a prompt") from (cause or exc)
    except RuntimeError as exc:
        return exc


def test_the_cause_is_shown_with_its_frames_and_never_a_message() -> None:
    text = shown(raised())
    cause, _, effect = text.partition("\nthen\n")
    assert "in fails" in cause
    assert cause.endswith("KeyError")
    assert "in raised" in effect
    assert effect.endswith("RuntimeError")
    assert "a prompt" not in text.replace('KeyError("a prompt")', "").replace('RuntimeError("a prompt")', "")  # source


def test_the_parts_of_a_group_are_shown_with_their_causes() -> None:
    """A task group of a process that ended: one line named no place in our code."""
    text = shown(ExceptionGroup("two", [raised(), ExceptionGroup("inner", [raised(ValueError())])]))
    assert text.startswith("ExceptionGroup\nof which 1\n")
    assert text.count("in fails") == 1
    assert text.count("RuntimeError\nof which 2\nExceptionGroup\nof which 1\nValueError\nthen\n") == 1


@pytest.mark.timeout(20)
def test_causes_in_a_circle_and_thousands_of_parts_are_shown_in_part() -> None:
    one, other = raised(), raised()
    one.__cause__, other.__cause__ = other, one
    assert shown(one).count("\nthen\n") == 1
    assert len(shown(ExceptionGroup("many", [raised() for _ in range(5000)])).splitlines()) < 500


def test_no_level_shows_the_urls_of_calls() -> None:
    """The user and password of a webhook are in its URL."""
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    try:
        setup_logging("debug", json=False)
        assert not logging.getLogger("httpx").isEnabledFor(logging.INFO)
        assert not logging.getLogger("httpcore.http11").isEnabledFor(logging.INFO)
    finally:
        root.handlers[:] = before
        root.setLevel(logging.WARNING)
