"""Anthropic's requests: what is taken, the chat that it means, and a refusal that names the client's own field."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from anthropic.types import ErrorResponse, ModelInfo

from app.anthropic import error_body
from app.anthropic.conversation import fit_template
from app.anthropic.messages import fitted
from app.anthropic.model_cards import anthropics_list
from app.anthropic.names import openais_names
from app.anthropic.schemas import CountRequest, MessagesRequest
from app.api.http.error_shape import is_anthropics
from app.dispatch.models.models import Model
from app.errors import NoWorker, PromptTooLong, RequestError, Saturated, Unauthorized, XylemError
from app.openai.tools import NamedTool
from app.schemas.validation import parse
from tests import models
from tests.models import templated

ASK: dict[str, Any] = {"role": "user", "content": "?"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "get_time", "input": {"zone": None, "at": 12}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "noon"}
TOOL = {"name": "get_time", "description": "of day", "input_schema": {"type": "object", "properties": {}}}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
QWEN = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}{% if enable_thinking %}!{% endif %}{{ reasoning_effort }}"
)


def asked(*turns: dict[str, Any], **fields: Any) -> MessagesRequest:
    body = {"model": "m", "max_tokens": 9, "messages": list(turns) or [ASK]} | fields
    return parse(MessagesRequest, orjson.dumps(body))


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(said: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": said} | fields


def shown(body: MessagesRequest) -> list[dict[str, Any]]:
    """The messages as the chat template gets them."""
    return [message.for_template() for message in body.chat.messages]


def refusal(*turns: dict[str, Any], **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as error:
        asked(*turns, **fields).check()
    return error.value


def model(tmp_path: Path, template: str) -> Model:
    return models.model(tokenizer=templated(tmp_path, template))


@pytest.mark.parametrize("fields", [
    CACHED,
    {"betas": ["x"], "container": "c", "inference_geo": "eu", "speed": "fast", "diagnostics": {}, "mcp_servers": []},
    {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
    {"metadata": {"user_id": None}},
    {"tools": [TOOL | {"name": "n" * 128, "input_schema": {"type": "object", "properties": None, "required": None}}]},
    {"tools": [TOOL | {"name": f"f{i}"} for i in range(130)]},
    {"metadata": {"user_id": "u"}, "service_tier": "standard_only", "stop_sequences": ["a", "b"], "top_k": 0},
    {"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "summarized"}},
    {"thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}},
    {"tools": [TOOL | CACHED | {"type": "custom", "eager_input_streaming": True, "allowed_callers": ["direct"]}]},
    {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": False}},
    {"system": [text("be brief", **CACHED)]},
    {"foo": None, "messages": [user(text("?", citations=None)), assistant(USE), user(RESULT | {"is_error": False})]},
])  # fmt: skip
def test_what_is_meant_by_anthropic_is_taken(fields: dict[str, Any]) -> None:
    """The stored form of the body is as good as the original."""
    body = asked(**fields)
    body.check()
    again = parse(MessagesRequest, body.understood())
    assert again.understood() == body.understood()
    assert again.chat == body.chat


@pytest.mark.parametrize(("fields", "param", "says"), [
    ({"max_tokens": None}, "max_tokens", "missing"),
    ({"foo": 1}, "foo", "not supported"),
    ({"mcp_servers": [{}]}, "mcp_servers", "at most 0"),
    ({"tools": [{"type": "web_search_20260209", "name": "web_search"}]}, "tools.0.type", "'web_search_20260209'"),
    ({"tools": [{"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}]},
     "tools.0.type", "'tool_search_tool_regex_20251119'"),
    ({"tools": [TOOL | {"input_schema": {"type": "text"}}]}, "tools.0.input_schema", "'object'"),
    ({"tools": [TOOL, TOOL]}, "tools.1.name", "two tools"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name", "no tool of that name"),
    ({"tool_choice": {"type": "any"}}, "tool_choice", "only allowed when"),
    ({"messages": [user({"type": "image", "source": {}})]}, "messages.0.content.0.source.type", "missing"),
    ({"messages": [user({"type": "document"})]}, "messages.0.content.0.type", "'document'"),
    ({"messages": [user({"type": "document", "source": {}})]}, "messages.0.content.0.type", "'document'"),
    ({"messages": [user({"text": "?"})]}, "messages.0.content.0.type", "missing"),
    ({"messages": [user(text("?", x=1))]}, "messages.0.content.0.x", "not supported"),
    ({"messages": [user({"type": "text", "text": 1})]}, "messages.0.content.0.text", "string"),
    ({"messages": [{"role": "tool", "content": ""}]}, "messages.0.role", "'tool'"),
    ({"messages": [ASK, assistant(USE), user(RESULT | {"content": [{"type": "document"}]})]},
     "messages.2.content.0.content.0.type", "'document'"),
    ({"messages": [ASK, user(text("?"), RESULT)]}, "messages.1.content.1.tool_use_id", "'tool_use'"),
    ({"messages": [ASK, assistant(text("a"), USE)]}, "messages.1.content", "ends with text"),
    ({"messages": [ASK, assistant()]}, "messages.1.content", "ends with text"),
    ({"messages": [ASK, assistant(USE, text("a"))]}, "messages", "only allowed when"),
    ({"service_tier": "priority"}, "service_tier", "'standard_only'"),
])  # fmt: skip
def test_a_refusal_names_the_field_of_the_client(fields: dict[str, Any], param: str, says: str) -> None:
    error = refusal(**fields)
    assert error.param == param
    assert f"'{param}'" in error.message
    assert says in error.message


@pytest.mark.parametrize(("choice", "chats"), [
    ({"type": "auto"}, ("auto", None)),
    ({"type": "none"}, ("none", None)),
    ({"type": "any"}, ("required", None)),
    ({"type": "tool", "name": "get_time", "disable_parallel_tool_use": True},
     (NamedTool(type="function", function=NamedTool.Named(name="get_time")), False)),
])  # fmt: skip
def test_a_choice_of_tools_is_the_chats(choice: dict[str, Any], chats: Any) -> None:
    chat = asked(tools=[TOOL], tool_choice=choice).chat
    assert (chat.tool_choice, chat.parallel_tool_calls) == chats
    assert [tool.for_template() for tool in chat.tools or ()] == [
        {"type": "function",
         "function": {"name": "get_time", "description": "of day", "parameters": TOOL["input_schema"]}}
    ]  # fmt: skip


def test_a_deferred_tool_is_in_the_prompt_and_what_a_clients_own_search_finds_is_named() -> None:
    search = TOOL | {"name": "ToolSearch"}
    reference = {"type": "tool_reference", "tool_name": "get_time", **CACHED}
    body = asked(
        ASK, assistant(USE | {"name": "ToolSearch"}), user(RESULT | {"content": [text("Found:"), reference]}),
        tools=[search, TOOL | {"defer_loading": True}],
    )  # fmt: skip
    body.check()
    assert [tool.function.name for tool in body.chat.tools or ()] == ["ToolSearch", "get_time"]
    assert shown(body)[-1] == {"role": "tool", "content": "Found:\nget_time", "tool_call_id": "toolu_1"}


def test_what_a_grammar_has_to_promise_is_the_chats() -> None:
    once = {"type": "auto", "disable_parallel_tool_use": True}
    assert asked(tools=[TOOL | {"strict": True}]).chat.binds_calls
    assert asked(tools=[TOOL], tool_choice=once).chat.binds_calls
    assert not asked(tools=[TOOL]).chat.binds_calls
    schema = {"type": "object", "properties": {"zone": {"type": "string"}}}
    answer_format = asked(output_config={"format": {"type": "json_schema", "schema": schema}}).chat.asked_format()
    assert answer_format is not None
    assert (answer_format.kind, answer_format.value) == ("json", schema)


def test_a_conversation_is_the_chats() -> None:
    """Turns of one role behind each other are one; thinking is reasoning, unless nobody can read it."""
    body = asked(
        ASK, user(text("And?")),
        assistant({"type": "thinking", "thinking": "Let me", "signature": "x"}, text("One moment."), USE),
        user(RESULT, text("Well?")),
        assistant({"type": "redacted_thinking", "data": "x"}, text("Noon.")),
        {"role": "assistant", "content": "Or so."},
        {"role": "system", "content": "Be brief."}, ASK,
        system="You are a clock.",
    )  # fmt: skip
    function = {"name": "get_time", "arguments": {"zone": None, "at": 12}}
    assert shown(body) == [
        {"role": "system", "content": "You are a clock."},
        {"role": "user", "content": "?\nAnd?"},
        {"role": "assistant", "content": "One moment.", "reasoning_content": "Let me",
         "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}]},
        {"role": "tool", "content": "noon", "tool_call_id": "toolu_1"},
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "content": "Noon.\nOr so."},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "?"},
    ]  # fmt: skip
    assert body.chat.continue_final_message is None
    assert asked(ASK, {"role": "assistant", "content": "It is"}).chat.continue_final_message is True


def test_turns_may_be_longer_together_than_a_message_of_a_chat() -> None:
    """No chat could have messages as long as these."""
    many = [USE | {"id": f"toolu_{i}"} for i in range(200)]
    texts = user(*[text("x")] * 3000)
    turns = asked(texts, texts, assistant(*many[:100]), assistant(*many[100:]), texts).chat.messages
    assert [len(turns[0].content or ""), len(turns[2].content or "")] == [6000, 3000]
    assert len(getattr(turns[1], "tool_calls", ())) == 200


def test_nulls_in_a_calls_input_are_values_though_elsewhere_they_mean_nothing() -> None:
    for more in ({}, {"foo": None}):
        function = shown(asked(ASK, assistant(USE | more), user(RESULT)))[1]["tool_calls"][0]["function"]
        assert function["arguments"] == {"zone": None, "at": 12}


def test_what_claude_code_says_of_billing_is_not_in_the_prompt() -> None:
    """The text differs between requests, so no prefix would be found again."""
    billing_header = text("x-anthropic-billing-header: cc_version=2.1.197.d11;")
    system = [billing_header, text("a", **CACHED), text("b")]
    assert shown(asked(system=system))[0] == {"role": "system", "content": "a\nb"}
    assert shown(asked(system=[billing_header])) == shown(asked())


def test_sampling_is_the_chats() -> None:
    body = asked(stop_sequences=["a"], top_k=3, temperature=0.5, seed=7, service_tier="standard_only")
    chat = body.chat
    assert (chat.stop, chat.top_k, chat.temperature, chat.seed, chat.max_tokens) == (["a"], 3, 0.5, 7, None)
    assert body.tier == "default"


@pytest.mark.parametrize(("fields", "end"), [
    ({}, ""),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "!"),
    ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, "!high"),
    ({"thinking": {"type": "disabled"}}, ""),
])  # fmt: skip
def test_thinking_and_effort_reach_the_templates_that_know_them(
    tmp_path: Path, fields: dict[str, Any], end: str
) -> None:
    for template, prompt_end in ((QWEN, end), ("", "")):
        of = model(tmp_path, template)
        chat = fitted(asked(**fields), of)
        assert of.tokenizer.render_chat([], **chat.template_variables(of.tokenizer)).strip() == prompt_end


def test_a_late_system_message_is_the_users_where_a_template_would_not_show_it(tmp_path: Path) -> None:
    late = {"role": "system", "content": "Now be brief."}
    messages = asked(ASK, late, ASK, assistant(text("a")), late, ASK, system="s").chat.messages
    shows_all = model(tmp_path, "{% for m in messages %}{{ m.content }}{% endfor %}").tokenizer
    assert fit_template(messages, shows_all) is messages
    fitted_messages = fit_template(messages, model(tmp_path, QWEN).tokenizer)
    assert [(message.role, message.text) for message in fitted_messages] == [
        ("system", "s"), ("user", "?\nNow be brief.\n?"), ("assistant", "a"), ("user", "Now be brief.\n?"),
    ]  # fmt: skip


def test_a_count_is_of_the_same_prompt() -> None:
    body = {"model": "m", "messages": [ASK], "tools": [TOOL], "system": "s"}
    counted_chat = parse(CountRequest, orjson.dumps(body)).chat
    messages = asked(tools=[TOOL], system="s").chat
    assert (counted_chat.messages, counted_chat.tools) == (messages.messages, messages.tools)
    with pytest.raises(RequestError):
        parse(CountRequest, orjson.dumps(body | {"max_tokens": 9}))


@pytest.mark.parametrize(("exc", "kind"), [
    (RequestError("why"), "invalid_request_error"),
    (Unauthorized("why"), "authentication_error"),
    (Saturated("why"), "rate_limit_error"),
    (NoWorker("why"), "overloaded_error"),
    (XylemError("why"), "api_error"),
])  # fmt: skip
def test_an_error_has_anthropics_shape(exc: XylemError, kind: str) -> None:
    body = error_body.as_body(exc, "req_1")
    assert body == {"type": "error", "error": {"type": kind, "message": "why"}, "request_id": "req_1"}
    assert ErrorResponse.model_validate(body).error.type == kind


def test_a_thread_is_refused_so_that_anthropics_package_goes_on_without_one() -> None:
    body = error_body.as_body(refusal(thread={"type": "create"}))
    assert body["error"]["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert "details" not in error_body.as_body(refusal(foo=1))["error"]


def test_a_prompt_that_is_too_long_is_told_in_anthropics_words() -> None:
    """Claude Code shortens the conversation when it reads these words."""
    with pytest.raises(PromptTooLong, match=r"^prompt is too long: .*101 tokens"), openais_names():
        models.model().room([1] * 101, 99, "messages")


@pytest.mark.parametrize(("path", "version", "anthropics"), [
    ("/v1/messages", False, True), ("/v1/messages/count_tokens", False, True), ("/v1/messages_", False, False),
    ("/v1/models", False, False), ("/v1/models", True, True), ("/v1/models/m", True, True),
    ("/v1/chat/completions", True, False),
])  # fmt: skip
def test_whose_request_it_is_is_told_by_its_path_and_on_shared_ones_by_a_header(
    path: str, version: bool, anthropics: bool
) -> None:
    headers = [(b"anthropic-version", b"2023-06-01")] * version
    assert is_anthropics({"type": "http", "path": path, "headers": headers}) is anthropics


def test_models_are_listed_in_anthropics_shape() -> None:
    answer = anthropics_list([models.model("a"), models.model("b")], 0)
    cards = [ModelInfo.model_validate(card) for card in answer["data"]]
    assert [(card.id, card.max_input_tokens, card.created_at.year) for card in cards] == [
        ("a", 100, 1970), ("b", 100, 1970),
    ]  # fmt: skip
    assert (answer["has_more"], answer["first_id"], answer["last_id"]) == (False, "a", "b")
