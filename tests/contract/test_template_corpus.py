"""Verdicts of `make templates` on right and wrong prompts, with small templates instead of the packages'."""

from pathlib import Path
from typing import Any

import pytest

from app.tokenizing.tokenizer import Tokenizer
from ops.templates import check
from ops.templates.conversations import CONVERSATIONS

MODEL_DIR = check._MODEL_DIR
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<go>{% endif %}"
CALLS = (
    "{% if tools %}{% endif %}{% for m in messages %}"
    "{% for c in m.tool_calls or [] %}SHOWN{% endfor %}<{{ m.content }}>{% endfor %}"
)


def outcome(at: Path, template: str, conversation: str) -> tuple[str, str]:
    file = at / "template.jinja"
    file.write_text(template)
    return check.compared(Tokenizer(MODEL_DIR, file), CONVERSATIONS[conversation])


@pytest.mark.parametrize(("template", "conversation", "kind", "why"), [
    (PLAIN, "turns", "equal", ""),
    (PLAIN, "answer begun", "equal", ""),
    (PLAIN, "several texts", "repaired", "texts are lines of the system's, of the user's, of the assistant's"),
    (PLAIN, "high effort", "equal", ""),
    (PLAIN, "tools", "refused by choice", "'tools': this model's chat template does not know tools."),
    (CALLS.replace("SHOWN", "{{ c.id }}"), "call without content", "repaired", "no content is an empty text"),
    (CALLS.replace("SHOWN", "{{ c.function.arguments.items() }}"), "arguments that are no JSON", "repaired",
     "no content is an empty text, arguments that are no JSON are none"),
    ("{{ raise_exception('no') }}", "user", "refused by both", "The chat template refused these messages: no"),
    ("{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}" + PLAIN, "least effort", "repaired",
     "effort is none"),
])  # fmt: skip
def test_a_prompt_is_right_as_transformers_renders_it_or_a_named_repair_of_it(
    tmp_path: Path, template: str, conversation: str, kind: str, why: str
) -> None:
    verdict, because = outcome(tmp_path, template, conversation)
    assert (verdict, because.replace(", texts are lines", ",")) == (kind, why)


@pytest.mark.parametrize("conversation", ["turns", "answer begun", "reasoning before a call", "result as parts"])
def test_a_prompt_that_lacks_something_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conversation: str
) -> None:
    template = CALLS.replace("SHOWN", "{{ c.function.name }}{{ m.reasoning_content }}")
    assert outcome(tmp_path, template, conversation)[0] != "wrong"
    whole = check.chat_prompt
    monkeypatch.setattr(check, "chat_prompt", lambda *given: whole(*given)[1:])
    assert outcome(tmp_path, template, conversation)[0] == "wrong"


def test_a_refusal_of_what_transformers_renders_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> str:
        raise check.RequestError("no", param="messages")

    monkeypatch.setattr(check, "chat_prompt", refuse)
    assert outcome(tmp_path, PLAIN, "turns") == ("wrong", "refused: no")
