"""The conversations that are rendered with each template: bodies of chat requests, by name."""

import json
from collections.abc import Mapping
from typing import Any

_LONG, _OTHER, _NINE = "call_7d1e90ab44c2", "call_c3f6a8815b07", "w4Kq81zTd"
_ASKED = {"role": "user", "content": "Will it rain in Bergen?"}
_SYSTEM = {"role": "system", "content": "Answer in one sentence."}
_THOUGHT = {"reasoning_content": "The forecast will say it."}
_CITY = {"city": "Bergen", "days": 2}


def _texts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def _tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def _schema(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


_TOOLS = [
    _tool(
        "forecast",
        description="Tells the weather of the next days.",
        parameters=_schema(
            ["city"],
            city={"type": "string", "description": "a town"},
            days={"type": "integer"},
            units={"type": "string", "enum": ["metric", "imperial"], "description": "of the answer"},
        ),
    ),
    _tool(
        "find",
        description="Finds notes.",
        parameters=_schema(
            [],
            text={"type": ["string", "null"]},
            within={"anyOf": [_schema([], year={"type": "integer"}), {"type": "null"}]},
            labels={"type": "array", "items": {"type": "string"}},
        ),
    ),
]
_BARE = [_tool("forecast", parameters=_schema(["city"], city={"type": "string"})), _tool("clock")]


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _answer(content: Any = None, *calls: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **({"tool_calls": [*calls]} if calls else {}), **more}


def _call(arguments: Any = _CITY, name: str = "forecast", at: str = _LONG) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": at, "type": "function", "function": {"name": name, "arguments": text}}


def _result(content: Any = "Heavy showers.", at: str = _LONG) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": at, "content": content}


def _loop(answer: Mapping[str, Any], *results: Mapping[str, Any], tools: Any = _TOOLS) -> dict[str, Any]:
    return {"messages": [_SYSTEM, _ASKED, answer, *(results or [_result()])], "tools": tools}


_TURNS = [_SYSTEM, _ASKED, _answer("It may."), _user("And on Sunday?")]

CONVERSATIONS: Mapping[str, dict[str, Any]] = {
    "user": {"messages": [_ASKED]},
    "system": {"messages": [_SYSTEM, _ASKED]},
    "developer": {"messages": [_SYSTEM | {"role": "developer"}, _ASKED]},
    "turns": {"messages": _TURNS},
    "answer begun": {"messages": [_ASKED, _answer("As far as I know")], "continue_final_message": True},
    "no generation prompt": {"messages": _TURNS[:3], "add_generation_prompt": False},
    "assistant first": {"messages": [_answer("Good morning."), _ASKED]},
    "users in a row": {"messages": [_ASKED, _user("Or snow?")]},
    "later system message": {"messages": [*_TURNS[:3], {"role": "system", "content": "Speak French."}, _TURNS[3]]},
    "texts as parts": {"messages": [_SYSTEM | {"content": _texts("Be polite.")}, _user(_texts("Good evening."))]},
    "several texts": {
        "messages": [
            _SYSTEM | {"content": _texts("Be polite.", "Be quick.")},
            _user(_texts("Here is a list.", "Sort it, please.")),
            _answer(_texts("It has one line.", "It is sorted.")),
            _ASKED,
        ]
    },
    "tools": {"messages": [_SYSTEM, _ASKED], "tools": _TOOLS},
    "tools without system message": {"messages": [_ASKED], "tools": _TOOLS},
    "tools without description": {"messages": [_ASKED], "tools": _BARE},
    "call without content": _loop(_answer(None, _call())),
    "call with empty content": _loop(_answer("", _call())),
    "call with text": _loop(_answer("I will look it up.", _call())),
    "call, answered": {
        "messages": [_ASKED, _answer(None, _call()), _result(), _answer("Yes, it will."), _user("Thank you.")],
        "tools": _TOOLS,
    },
    "two calls at once": _loop(
        _answer(None, _call(), _call({"text": "rain", "within": {"year": 1999}, "labels": ["a"]}, "find", _OTHER)),
        _result(),
        _result("Nothing found.", _OTHER),
    ),
    "one call after the other": _loop(
        _answer(None, _call()), _result(), _answer("And notes.", _call({"text": "snow"}, "find", _OTHER)),
        _result('{"found": []}', _OTHER),
    ),
    "call without arguments": _loop(_answer(None, _call("", "clock")), _result("12:30"), tools=_BARE),
    "arguments that are no JSON": _loop(_answer(None, _call('{"city": "Ber')), _result("That is no JSON.")),
    "call, without tools now": {"messages": [_ASKED, _answer(None, _call()), _result()]},
    "result as a part": _loop(_answer(None, _call()), _result(_texts("Some rain."))),
    "result as parts": _loop(_answer(None, _call()), _result(_texts("Some rain.", "Later snow."))),
    "id of nine characters": _loop(_answer(None, _call(at=_NINE)), _result(at=_NINE)),
    "reasoning, then a turn": {"messages": [_ASKED, _answer("It may.", **_THOUGHT), _user("And on Sunday?")]},
    "reasoning before a call": _loop(_answer(None, _call(), **_THOUGHT)),
    "reasoning before text and a call": _loop(_answer("I will look it up.", _call(), **_THOUGHT)),
    "reasoning before a call, with effort": _loop(_answer(None, _call(), **_THOUGHT)) | {"reasoning_effort": "high"},
    "no effort": {"messages": [_ASKED], "reasoning_effort": "none"},
    "high effort": {"messages": [_ASKED], "reasoning_effort": "high"},
    "least effort": {"messages": [_SYSTEM, _ASKED], "reasoning_effort": "minimal"},
    "most effort": {"messages": [_ASKED], "reasoning_effort": "max"},
    "thinking": {"messages": [_ASKED], "chat_template_kwargs": {"enable_thinking": True}},
}  # fmt: skip
