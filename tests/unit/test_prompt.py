"""A conversation's prompt: what of a request reaches the chat template, and what that has to know."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.dialects.names import find_dialect
from app.dispatch.models.writing import Writing
from app.errors import RequestError
from app.openai import chat as chat_endpoint
from app.openai.model_parser import check_dialect
from app.openai.prompt import chat_prompt
from app.openai.schemas import ChatRequest
from app.openai.template_habits import settable
from app.tokenizing.tokenizer import Tokenizer
from tests.models import asking, model, templated
from tests.refusals import refused
from tests.unit.test_tools import CALL, CALLED, MESSAGES, RESULT, TIME, WEATHER, allowed, chat

# Writes all that it is given.
SHOWING = """
{%- if tools %}{% for tool in tools %}{{ tool | tojson }};{% endfor %}{% endif %}
{%- for message in messages %}<{{ message.role }}>{{ message | tojson }}</>{% endfor %}
{%- if add_generation_prompt %}<assistant>{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}{% endif %}
{%- if reasoning_effort is defined %}{{ reasoning_effort }}{% endif %}"""
PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<go>{% endif %}"
)
TRIMS = PLAIN.replace("m.content", "m.content | trim")


def prompt(at: Path, template: str, body: ChatRequest) -> str:
    body.check()
    return chat_prompt(templated(at, template), body.messages, body)


def refusal(at: Path, template: str, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as error:
        prompt(at, template, chat(**fields))
    return error.value


def test_the_template_gets_the_tools_as_they_came(tmp_path: Path) -> None:
    """The field `strict` is the engine's and left out; parameters that weren't given are an empty object."""
    lax: Any = {"type": "function", "function": TIME["function"] | {"strict": False}}
    text = prompt(tmp_path, SHOWING, chat(tools=[WEATHER, lax]))
    tools = [json.loads(tool) for tool in text.split("<")[0].split(";")[:-1]]
    assert tools[0] == WEATHER
    none = {"type": "object", "properties": {}}
    assert tools[1] == {"type": "function", "function": {"name": "get_time", "parameters": none}}
    assert list(tools[0]["function"]) == ["name", "description", "parameters"]


@pytest.mark.parametrize(("choice", "names"), [
    ("none", []), ("auto", ["get_weather", "get_time"]), (None, ["get_weather", "get_time"]),
    (allowed("get_time"), ["get_time"]),
])  # fmt: skip
def test_a_choice_says_which_tools_the_model_sees(tmp_path: Path, choice: Any, names: list[str]) -> None:
    text = prompt(tmp_path, SHOWING, chat(tools=[WEATHER, TIME], tool_choice=choice))
    assert [json.loads(tool)["function"]["name"] for tool in text.split("<")[0].split(";")[:-1]] == names


def test_earlier_calls_and_their_results_are_shown_as_templates_have_them(tmp_path: Path) -> None:
    """Arguments as an object, a result with the name of what was called, and no content as an empty text."""
    no_arguments = CALL | {"id": "b", "function": {"name": "f", "arguments": ""}}
    parts = [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]
    history = [
        CALLED | {"reasoning": "hm"},
        RESULT,
        {"role": "assistant", "content": "a", "tool_calls": [no_arguments]},
        {"role": "tool", "tool_call_id": "b", "content": parts},
        {"role": "function", "name": "g", "content": "z"},
    ]
    text = prompt(tmp_path, SHOWING, chat(messages=history))
    entries = [json.loads(part.partition(">")[2]) for part in text.split("</>")[:-1]]
    function = {"name": "get_weather", "arguments": {"city": "Kraków"}}
    assert entries == [
        {"role": "assistant", "content": "", "reasoning_content": "hm",
         "tool_calls": [{"id": "call_1", "type": "function", "function": function}]},
        {"role": "tool", "content": "7°C", "tool_call_id": "call_1", "name": "get_weather"},
        {"role": "assistant", "content": "a",
         "tool_calls": [{"id": "b", "type": "function", "function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "content": "x\ny", "tool_call_id": "b", "name": "f"},
        {"role": "tool", "content": "z", "name": "g"},
    ]  # fmt: skip


def test_a_template_that_does_not_know_tools_gets_none(tmp_path: Path) -> None:
    """The model would never hear of them."""
    assert refusal(tmp_path, PLAIN, tools=[TIME]).param == "tools"
    assert prompt(tmp_path, PLAIN, chat(tools=[TIME], tool_choice="none")) == "<user>?</><go>"


def test_tools_reach_a_template_under_its_own_name(tmp_path: Path) -> None:
    """SmolLM3's has another."""
    template = "{% for tool in xml_tools or [] %}{{ tool.function.name }};{% endfor %}" + PLAIN
    assert prompt(tmp_path, template, chat(tools=[TIME])).startswith(TIME["function"]["name"] + ";")
    description_template = template.replace("tool.function.name", "tool.function.description + 'none'")
    assert prompt(tmp_path, description_template, chat(tools=[TIME])).startswith("none;")


@pytest.mark.parametrize(("template", "knows"), [
    (SHOWING, True), (PLAIN, False), ("{# tools #}{{ 'tools' }}", False), ("{{ message.tools }}", False),
    ("{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools }}", True),
    ("{% macro f(x) %}{{ tools }}{% endmacro %}{{ f(1) }}", True),
    ("{% generation %}{% if tools %}x{% endif %}{% endgeneration %}", True),
])  # fmt: skip
def test_what_a_template_knows_is_read_from_its_source(tmp_path: Path, template: str, knows: bool) -> None:
    assert ("tools" in templated(tmp_path, template).template_variables) == knows


def test_variables_of_the_client_reach_the_template(tmp_path: Path) -> None:
    """Variables that the template doesn't know are refused, unless they are off."""
    variables = {"enable_thinking": False, "another": False, "one_more": None}
    assert prompt(tmp_path, SHOWING, chat(chat_template_kwargs=variables)).endswith("<assistant>False")
    assert refusal(tmp_path, SHOWING, chat_template_kwargs={"thinking": True}).param == "chat_template_kwargs.thinking"
    for ours in ("messages", "tools", "add_generation_prompt", "chat_template", "bos_token", "raise_exception"):
        template = SHOWING + "{% if x %}{{ bos_token + raise_exception() }}{% endif %}"
        exc = refusal(tmp_path, template, chat_template_kwargs={ours: "x"})
        assert exc.param == f"chat_template_kwargs.{ours}"
    with pytest.raises(RequestError, match="'chat_template_kwargs'"):
        chat(chat_template_kwargs={"x": "y" * 2**16})


def test_reasoning_effort_reaches_the_template(tmp_path: Path) -> None:
    """The field also turns reasoning on or off where the template has a switch, and is taken everywhere."""
    assert prompt(tmp_path, SHOWING, chat(reasoning_effort="low")).endswith("<assistant>Truelow")
    assert prompt(tmp_path, SHOWING, chat(reasoning_effort="none")).endswith("<assistant>Falsenone")
    on = chat(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})
    assert prompt(tmp_path, SHOWING, on).endswith("<assistant>Truenone")
    off = chat(reasoning_effort="low", chat_template_kwargs={"enable_thinking": False})
    assert prompt(tmp_path, SHOWING, off).endswith("<assistant>Falselow")
    for effort in ("none", "low"):
        assert prompt(tmp_path, PLAIN, chat(reasoning_effort=effort)) == "<user>?</><go>"


def test_a_special_token_that_a_tokenizer_lacks_is_not_written_out(tmp_path: Path) -> None:
    """Transformers does the same: Qwen's tokenizers have no `bos_token`, and many templates begin with it."""
    assert prompt(tmp_path, "{{ bos_token }}{{ mask_token }}<{{ eos_token }}>" + PLAIN, chat()).startswith("<<")


def test_the_variables_that_clients_may_set_are_the_templates_own(tmp_path: Path) -> None:
    template = SHOWING + "{{ bos_token }}{% set x = namespace(y=documents) %}{{ strftime_now('%Y') }}"
    assert settable(templated(tmp_path, template)) == ["documents", "enable_thinking", "reasoning_effort"]


def test_a_prompt_may_end_with_the_last_message(tmp_path: Path) -> None:
    assert prompt(tmp_path, PLAIN, chat(add_generation_prompt=False)) == "<user>?</>"


@pytest.mark.parametrize(("template", "content", "text"), [
    (PLAIN, "Well, ", "<user>?</><assistant>Well, "),
    (TRIMS, " Well, ", "<user>?</><assistant>Well,"),
    (PLAIN, "s", "<user>?</><assistant>s"),
    (PLAIN + "{{ messages[-1].role }} end", "end", "<user>?</><assistant>end"),
])  # fmt: skip
def test_an_answer_may_be_begun_by_the_client(tmp_path: Path, template: str, content: str, text: str) -> None:
    """The prompt ends with it, whatever the template writes behind it, or takes off it."""
    body = chat(messages=[*MESSAGES, {"role": "assistant", "content": content}], continue_final_message=True)
    assert prompt(tmp_path, template, body) == text


@pytest.mark.parametrize("fields", [
    {}, {"messages": [{"role": "assistant", "content": ""}]}, {"messages": [CALLED]}, {"messages": [CALLED, RESULT]},
    {"messages": [{"role": "assistant", "content": "x"}], "add_generation_prompt": True},
])  # fmt: skip
def test_only_content_of_the_assistants_can_be_gone_on_with(tmp_path: Path, fields: dict[str, Any]) -> None:
    assert refusal(tmp_path, PLAIN, continue_final_message=True, **fields).param == "continue_final_message"
    unseen = "{{ messages[0].role }}"
    last = [{"role": "assistant", "content": "x"}]
    exc = refusal(tmp_path, unseen, messages=last, continue_final_message=True)
    assert exc.param == "continue_final_message"


@pytest.mark.parametrize("name", [None, "think", "hermes"])
def test_where_the_way_of_writing_calls_is_not_known_tools_are_refused(name: str | None) -> None:
    """Calls could not be told from text."""
    of = model(writing=Writing(find_dialect(name) if name else None))
    check_dialect(of, chat(tools=[TIME], tool_choice="none"))
    check_dialect(of, chat())
    if name == "hermes":
        check_dialect(of, chat(tools=[TIME]))
        return
    with refused("tools", "dialect"):
        check_dialect(of, chat(tools=[TIME]))


def test_templates_that_add_arguments_to_a_text_have_them_as_text(tmp_path: Path) -> None:
    """DeepSeek's own, which also tell a message that only calls tools by its content."""
    template = (
        "{% for m in messages %}{% if m['content'] is none %}"
        "{% for c in m.tool_calls %}{{ 'call ' + c['function']['name'] + c['function']['arguments'] }}{% endfor %}"
        "{% else %}{{ m.role + m['content'] }}{% endif %}{% endfor %}{{ tools }}"
    )
    text = prompt(tmp_path, template, chat(messages=[*MESSAGES, CALLED, RESULT]))
    arguments = json.dumps(json.loads(CALL["function"]["arguments"]), separators=(",", ":"), ensure_ascii=False)
    assert f"call {CALL['function']['name']}{arguments}tool" in text


@pytest.mark.parametrize("name", ["self", "messages_", "namespace", "strftime_now"])
def test_what_a_template_does_not_know_is_not_handed_to_it(tmp_path: Path, name: str) -> None:
    assert prompt(tmp_path, PLAIN, chat(chat_template_kwargs={name: False})) == prompt(tmp_path, PLAIN, chat())
    with pytest.raises(RequestError, match="does not know it"):
        prompt(tmp_path, PLAIN, chat(chat_template_kwargs={name: 0}))


async def test_a_request_may_bring_its_own_template_only_where_that_is_allowed() -> None:
    """Chats and /tokenize alike."""
    of = model()
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    raw = json.dumps(body | {"chat_template": "{{ messages[0].content }}!"}).encode()
    trusting, other = (asking({"m": of}, request_chat_templates=trusts) for trusts in (True, False))
    _, plan = await chat_endpoint.understand(trusting, raw)
    assert of.tokenizer.decode([*plan.prompts[0]]) == "hello!"
    with refused("chat_template"):
        await chat_endpoint.understand(other, raw)
    nothing = json.dumps(body | {"chat_template": "{{ '' }}"}).encode()
    with refused("chat_template"):
        await chat_endpoint.understand(trusting, nothing)


# What gpt-oss', Ministral's and DeepSeek's templates do with the content of a message that only calls.
IN_CONTENT = "{% if '<|channel|>' in m.content %}{{ raise_exception('a channel') }}{% endif %}{{ m.content }}"
LENGTH = "{% if m.content | length %}{{ m.content }}{% endif %}"
BY_NULL = "{% if m.content is none %}null{% else %}{{ m.content }}{% endif %}"
WRITTEN = "{{ m.content }}"
CALLS = (
    "{{% for m in messages %}}<{{{{ m.role }}}}>{0}"
    "{{% for c in m.tool_calls or [] %}}{{{{ c.function.name }}}}{{% endfor %}}</>{{% endfor %}}"
    "{{% if tools is none %}}no tools{{% endif %}}"
)


@pytest.mark.parametrize(("reads", "shown"), [(IN_CONTENT, ""), (LENGTH, ""), (BY_NULL, "null"), (WRITTEN, "")])
@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {}, {"content": []}])
def test_a_call_without_content_is_shown_as_the_template_takes_it(
    tmp_path: Path, reads: str, shown: str, content: dict[str, Any]
) -> None:
    """All of these ask somewhere whether something is none. Without this no tool loop has a second step."""
    call_message = {k: v for k, v in CALLED.items() if k != "content"} | content
    text = prompt(tmp_path, CALLS.format(reads), chat(messages=[*MESSAGES, call_message, RESULT]))
    assert f"<assistant>{shown}get_weather</>" in text


def test_a_tool_without_a_description_is_shown_to_a_template_that_wants_one(tmp_path: Path) -> None:
    """The template gets an empty one; to any other the tool is shown as it came."""
    wants = "{% for t in tools %}{{ t.function.name + ': ' + t.function.description + ';' }}{% endfor %}" + PLAIN
    assert "description" not in TIME["function"]
    assert prompt(tmp_path, wants, chat(tools=[TIME])).startswith("get_time: ;")
    described_tool = {"type": "function", "function": TIME["function"] | {"description": "Tells it."}}
    assert prompt(tmp_path, wants, chat(tools=[described_tool, WEATHER])).startswith("get_time: Tells it.;")
    assert "description" not in prompt(tmp_path, SHOWING, chat(tools=[TIME])).split("<")[0]


def test_what_a_template_takes_is_tried_once_and_only_for_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    render_count = 0
    render = Tokenizer.render_chat

    def counted(self: Tokenizer, messages: list[dict[str, Any]], **more: Any) -> str:
        nonlocal render_count
        render_count += 1
        return render(self, messages, **more)

    monkeypatch.setattr(Tokenizer, "render_chat", counted)
    tokenizer = templated(tmp_path, CALLS.format(IN_CONTENT))
    counts = []
    for messages in (MESSAGES, [*MESSAGES, CALLED | {"content": "x"}, RESULT], *[[*MESSAGES, CALLED, RESULT]] * 3):
        render_count = 0
        chat_prompt(tokenizer, chat(messages=messages, tools=[WEATHER]).messages, chat(tools=[WEATHER]))
        counts.append(render_count)
    assert counts == [2, 3, 4, 1, 1]  # whether it shows texts, for each role; then two about calls, one in two forms
