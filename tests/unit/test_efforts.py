"""Efforts: which words a template tells apart, and what it gets for others."""

from pathlib import Path
from typing import Any

import pytest

from app.openai.efforts import EFFORTS, effort_variables, known_efforts, nearest
from app.tokenizing.tokenizer import Tokenizer
from tests.models import templated
from tests.unit.test_prompt import PLAIN

REFUSES = (
    "{% set effort = reasoning_effort | default('xhigh') %}{% if effort not in ('low', 'medium', 'xhigh') %}"
    "{{ raise_exception('Unexpected') }}{% endif %}{{ effort }}"
)
OWN_WORD = (
    "{% set effort = reasoning_effort | default('no_think') %}{% if effort not in ('no_think', 'low', 'high') %}"
    "{{ raise_exception('Unexpected') }}{% endif %}{{ effort }}"
)
SOME = "{% if reasoning_effort in ('low', 'high') %}{{ reasoning_effort }}{% endif %}"
WRITES = "{{ reasoning_effort | default('medium') }}"
OFF = "{% if reasoning_effort == 'none' %}<off>{% endif %}"
SWITCH = "{% if enable_thinking %}<think>{% endif %}"
BEHIND_SWITCH = "{% if thinking and reasoning_effort == 'max' %}<most>{% elif thinking %}<think>{% endif %}"
NAMED = REFUSES.replace("reasoning_effort", "thinking_effort")
LOW_FLAG = "{% if low_effort %}<low>{% endif %}" + SWITCH
MEDIUM_FLAG = "{% if medium_effort is defined and medium_effort %}<efficient>{% endif %}"
UNUSED = "{% set mentioned = enable_thinking %}"


def tokenizer(at: Path, template: str) -> Tokenizer:
    return templated(at, template + PLAIN)


def rendered(of: Tokenizer, effort: Any) -> str:
    return of.render_chat([{"role": "user", "content": "?"}], **effort_variables(of, effort))


@pytest.mark.parametrize(("template", "known"), [
    (REFUSES, ["low", "medium", "xhigh"]), (OWN_WORD, ["none", "low", "high"]), (SOME, ["low", "medium", "high"]),
    (WRITES, [*EFFORTS]), (OFF, ["none", "medium"]), (SWITCH, ["none", "medium"]),
    (BEHIND_SWITCH, ["none", "medium", "max"]), (UNUSED, []), ("", []), (NAMED, ["low", "medium", "xhigh"]),
    (LOW_FLAG, ["none", "low", "medium"]), (MEDIUM_FLAG, ["medium", "high"]),
])  # fmt: skip
def test_the_words_that_a_template_tells_apart_are_known(tmp_path: Path, template: str, known: list[str]) -> None:
    """`medium`, or what is next above, is what it does by itself, if it says nothing else about that word."""
    assert known_efforts(tokenizer(tmp_path, template)) == known


@pytest.mark.parametrize(("template", "asked", "heard"), [
    (REFUSES, "high", "medium"), (REFUSES, "max", "xhigh"), (REFUSES, "minimal", "low"), (REFUSES, "none", "low"),
    (OWN_WORD, "medium", "low"), (OWN_WORD, "max", "high"), (SOME, "xhigh", "high"), (SOME, "minimal", "low"),
    (SWITCH, "minimal", "none"), (SWITCH, "low", "medium"), (SWITCH, "max", "medium"), (BEHIND_SWITCH, "xhigh", "max"),
    (NAMED, "high", "medium"), (LOW_FLAG, "high", "medium"), (MEDIUM_FLAG, "max", "high"),
    (MEDIUM_FLAG, "low", "medium"), (UNUSED, "high", "ignored"), ("", "none", "ignored"), (WRITES, "xhigh", "xhigh"),
])  # fmt: skip
def test_an_unknown_word_is_the_nearest_known_one(tmp_path: Path, template: str, asked: Any, heard: str) -> None:
    """The lower one is taken of two that are equally near."""
    model_tokenizer = tokenizer(tmp_path, template)
    assert nearest(model_tokenizer, asked) == heard
    text = rendered(model_tokenizer, asked)
    if heard != "ignored":
        assert text == rendered(model_tokenizer, heard)
    else:
        assert effort_variables(model_tokenizer, asked) == {}


@pytest.mark.parametrize("asked", EFFORTS)
@pytest.mark.parametrize("template", [
    REFUSES, OWN_WORD, SOME, WRITES, OFF, SWITCH, BEHIND_SWITCH, UNUSED, "", NAMED, LOW_FLAG, MEDIUM_FLAG,
])  # fmt: skip
def test_no_effort_is_refused_by_a_template(tmp_path: Path, template: str, asked: Any) -> None:
    rendered(tokenizer(tmp_path, template), asked)


def test_no_effort_is_a_templates_own_word_for_it(tmp_path: Path) -> None:
    assert effort_variables(tokenizer(tmp_path, OWN_WORD), "none") == {}
    assert effort_variables(tokenizer(tmp_path, SWITCH), "none") == {"enable_thinking": False}
    assert effort_variables(tokenizer(tmp_path, SWITCH), "high") == {"enable_thinking": True}


def test_a_templates_efforts_are_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_tokenizer = tokenizer(tmp_path, SOME)
    efforts = known_efforts(model_tokenizer)
    monkeypatch.setattr(Tokenizer, "render_chat", lambda *_, **__: pytest.fail("tried again"))
    assert known_efforts(model_tokenizer) == efforts
    assert nearest(model_tokenizer, "max") == "high"


def test_a_requests_own_template_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trial would take up to 2 s of a process."""
    own = tokenizer(tmp_path, "").with_template(SOME)
    monkeypatch.setattr(Tokenizer, "render_chat", lambda *_, **__: pytest.fail("tried"))
    assert nearest(own, "max") == "max"
    assert effort_variables(own, "max") == {"reasoning_effort": "max"}
    assert nearest(tokenizer(tmp_path, "").with_template(PLAIN), "max") == "ignored"
