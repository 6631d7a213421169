"""Earlier calls whose form a chat template refuses are shown in another form, if it takes that.

Each template does what a model's own does: the corpus of public templates has 55 that refuse arguments that are no
JSON, two that want call ids of nine characters, and five that have another name for reasoning.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from app.openai.schemas import ChatRequest
from tests.refusals import refused
from tests.unit.test_prompt import prompt
from tests.unit.test_tools import WEATHER, chat

_CALLS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}%s{% endfor %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
TOOLS = "{% if tools %}{% endif %}"
PAIRS = TOOLS + _CALLS.replace(
    "%s", "{% for name, value in c.function.arguments.items() %}{{ name }}={{ value }}{% endfor %}"
)
SHOWN = TOOLS + _CALLS.replace("%s", "{{ c.function.arguments }}")
TEXT = TOOLS + _CALLS.replace("%s", "{{ 'args: ' + c.function.arguments }}")
NINE = (
    TOOLS
    + """{% for m in messages %}{% for c in m.tool_calls or [] %}
{%- if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}[{{ c.id }}]{% endfor %}
{%- if m.tool_call_id is defined %}({{ m.tool_call_id }}){% endif %}{% endfor %}"""
)
THINKS = (
    TOOLS
    + """{% for m in messages %}{% set thought = m.thinking is defined %}
{%- if thought and m.content %}{{ raise_exception('either content or thinking') }}{% endif %}
{%- if thought %}<t>{{ m.thinking }}</t>{% endif %}{{ m.content }}{% endfor %}"""
)
CLOSED = TOOLS + "{{ raise_exception('not today') }}"


def loop(arguments: str, name: str = "call_123456789abc", **said: Any) -> ChatRequest:
    call = {"id": name, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call], **said}
    result = {"role": "tool", "tool_call_id": name, "content": "rainy"}
    return chat(messages=[{"role": "user", "content": "Well?"}, answer, result], tools=[WEATHER])


def test_arguments_that_are_no_json_are_none_where_a_template_wants_an_object(tmp_path: Path) -> None:
    """A model wrote them: no later turn of the conversation would be possible."""
    assert "city=Oslo" in prompt(tmp_path, PAIRS, loop('{"city": "Oslo"}'))
    assert prompt(tmp_path, PAIRS, loop('{"city": "Os')).startswith("<user>Well?<assistant>")


def test_arguments_that_are_no_json_are_shown_as_they_are_where_a_template_takes_text(tmp_path: Path) -> None:
    for template in (SHOWN, TEXT):
        assert '{"city": "Os<' in prompt(tmp_path, template, loop('{"city": "Os'))
    assert json.dumps({"city": "Oslo"}, separators=(",", ":")) in prompt(tmp_path, TEXT, loop('{"city": "Oslo"}'))


def test_call_ids_are_as_long_as_a_template_wants_them(tmp_path: Path) -> None:
    """A call and its result have the same; one that fits stays."""
    text = prompt(tmp_path, NINE, loop("{}"))
    call_id, answer_id = text[text.index("[") + 1 : text.index("]")], text[text.index("(") + 1 : text.index(")")]
    assert (len(call_id), call_id) == (9, answer_id)
    assert "[abcdefgh1]" in prompt(tmp_path, NINE, loop("{}", "abcdefgh1"))
    assert "[call_1]" not in prompt(tmp_path, NINE, loop("{}", "call_1"))


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_has_the_name_that_the_template_gives_it(tmp_path: Path, field: str) -> None:
    assert "<t>I look.</t>" in prompt(tmp_path, THINKS, loop("{}", **{field: "I look."}))
    for name in ("reasoning_content", "reasoning", "thought"):
        assert "I look." in prompt(tmp_path, THINKS.replace("thinking", name), loop("{}", **{field: "I look."}))


def test_reasoning_has_its_name_also_where_a_variable_turns_it_on(tmp_path: Path) -> None:
    """`add_thoughts` of Apriel 1.5, which nobody sets by default."""
    switch_template = (
        TOOLS + "{% for m in messages %}{% if add_thoughts %}{{ m.thought }}{% endif %}{{ m.content }}{% endfor %}"
    )
    request = loop("{}", reasoning="I look.")
    assert "I look." not in prompt(tmp_path, switch_template, request)
    on = request.model_copy(update={"chat_template_kwargs": {"add_thoughts": True}})
    assert "I look." in prompt(tmp_path, switch_template, on)


def test_reasoning_is_a_part_of_the_content_where_a_template_takes_it_so(tmp_path: Path) -> None:
    """Ministral 3's."""
    parts = TOOLS + "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    parts += (
        "{% for p in m.content or [] %}{% if p.type == 'thinking' %}[{{ p.thinking }}]{% else %}{{ p.text }}{% endif %}"
    )
    parts += "{% endfor %}{% endif %}{% endfor %}"
    assert "<assistant>[I look.]<tool>" in prompt(tmp_path, parts, loop("{}", reasoning="I look."))
    text_request = loop("{}", reasoning="I look.", content="Let me see.")
    assert "<assistant>[I look.]Let me see.<tool>" in prompt(tmp_path, parts, text_request)
    list_request = loop(
        "{}", reasoning="I look.", content=[{"type": "text", "text": "Let"}, {"type": "text", "text": "me"}]
    )
    assert "<assistant>[I look.]Letme<tool>" in prompt(tmp_path, parts, list_request)
    base_template = TOOLS + "{% for m in messages %}{{ m.content }}{% endfor %}"
    for template in (base_template, base_template.replace("m.content", "m.content | tojson")):
        assert "I look." not in prompt(tmp_path, template, loop("{}", reasoning="I look."))


def test_a_template_that_wants_one_change_does_not_get_others(tmp_path: Path) -> None:
    """Mistral's wants short ids, and shows arguments that are no JSON as the model has written them."""
    both = NINE.replace("[{{ c.id }}]", "[{{ c.id }}]{{ c.function.arguments }}")
    assert '{"city": "Os' in prompt(tmp_path, both, loop('{"city": "Os'))
    pairs = NINE.replace("[{{ c.id }}]", "{{ c.function.arguments.items() }}")
    assert "dict_items([])" in prompt(tmp_path, pairs, loop('{"city": "Os', reasoning="I look."))


def test_reasoning_is_left_out_where_a_template_has_no_place_for_it(tmp_path: Path) -> None:
    """gpt-oss: not beside a text before a call."""
    text = prompt(tmp_path, THINKS, loop("{}", reasoning="I look.", content="Let me see."))
    assert "Let me see." in text
    assert "I look." not in text


def test_what_a_template_refuses_in_all_forms_has_its_own_first_error(tmp_path: Path) -> None:
    with refused("messages", "not today"):
        prompt(tmp_path, CLOSED, loop('{"city": "Os', reasoning="I look."))


def test_several_texts_are_shown_one_after_the_other_where_a_template_takes_lists(tmp_path: Path) -> None:
    """The model has learned them so; elsewhere they are lines of one text."""
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    request = chat(messages=[{"role": "system", "content": parts}, {"role": "user", "content": parts}])
    lists = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    lists += "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
    assert prompt(tmp_path, lists, request) == "<system>onetwo<user>onetwo"
    only_users = lists.replace("if m.content is string", "if m.role != 'user'")
    assert prompt(tmp_path, only_users, request) == "<system>one\ntwo<user>onetwo"
    texts = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    assert prompt(tmp_path, texts, request) == "<system>one\ntwo<user>one\ntwo"


def test_a_single_part_is_shown_as_the_template_shows_lists(tmp_path: Path) -> None:
    """Gemma 4 writes a space behind each part of a system message, MiniMax M2 a line feed behind each of a result."""
    lists = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    lists += "{% for p in m.content %}{{ p.text }};{% endfor %}{% endif %}{% endfor %}"
    request = chat(messages=[{"role": "user", "content": [{"type": "text", "text": "one"}]}])
    assert prompt(tmp_path, lists, request) == "one;"
    assert prompt(tmp_path, "{{ messages[0].content }}", request) == "one"


def test_texts_are_lists_where_a_template_takes_nothing_else(tmp_path: Path) -> None:
    lists = "{% for m in messages %}<{{ m.role }}>{{ m.content[0].text.strip() }}{% endfor %}"
    messages = [{"role": "system", "content": "Be"}, {"role": "user", "content": "Hi"}]
    assert prompt(tmp_path, lists, chat(messages=messages)) == "<system>Be<user>Hi"


def test_texts_are_lists_where_a_template_would_show_nothing_of_them(tmp_path: Path) -> None:
    """Templates of Idefics 3 and SmolVLM want it for any role; others want only the user's texts in lists."""
    lists = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    messages = [
        {"role": "system", "content": "Be"},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None},
    ]
    assert prompt(tmp_path, lists, chat(messages=messages)) == "<system>Be<user>Hi<assistant>"
    users = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'user' %}{{ m.content[0].text }}"
    users += "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    assert prompt(tmp_path, users, chat(messages=messages)) == "<system>Be<user>Hi<assistant>"
    continuation = chat(messages=[*messages[:2], {"role": "assistant", "content": "So"}], continue_final_message=True)
    assert prompt(tmp_path, lists, continuation) == "<system>Be<user>Hi<assistant>So"


@pytest.mark.parametrize("asks", ["is none", "is  not none"])
def test_a_call_is_told_by_null_wherever_a_template_asks_for_it(tmp_path: Path, asks: str) -> None:
    """DeepSeek R1's and RWKV's show an answer without content as an empty turn otherwise."""
    shows = "{% for m in messages %}{% if m.content " + asks + " %}" + ("{% else %}" if "not" not in asks else "")
    shows += "<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
    request = loop("{}")
    assert prompt(tmp_path, TOOLS + shows, request) == "<user>Well?<tool>rainy"
