"""Rich requests in each dialect, and what becomes of one when a single value in it is changed."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"]}
FUNCTION = {"name": "f", "description": "Does.", "parameters": SCHEMA, "strict": False}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
SAMPLING = {
    "temperature": 0.5, "top_p": 0.9, "seed": 1, "presence_penalty": 0.1, "frequency_penalty": 0.1, "user": "u",
    "metadata": {"k": "v"}, "priority": 1, "timeout": 30.0, "service_tier": "default", "prompt_cache_key": "p",
    "stop_token_ids": [5], "ignore_eos": False, "cache_salt": "s", "stream": False, "safety_identifier": "x",
}  # fmt: skip
COMPLETIONS = SAMPLING | {
    "max_tokens": 2, "min_tokens": 0, "top_k": 5, "min_p": 0.0, "repetition_penalty": 1.1, "stop": ["zz"], "n": 1,
    "logit_bias": {"5": 1.0}, "return_token_ids": True, "include_stop_str_in_output": False, "best_of": 1,
    "skip_special_tokens": True, "routing": {"temperature": 0.5}, "use_beam_search": False, "length_penalty": 1.0,
}  # fmt: skip
CACHED = {"cache_control": {"type": "ephemeral"}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": COMPLETIONS | {
        "model": "mock",
        "messages": [
            {"role": "system", "content": "Be kind.", "name": "n"},
            {"role": "user", "content": [{"type": "text", "text": "hello"} | CACHED, {"type": "text", "text": "you"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "Hm."},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        ],
        "tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": True, "logprobs": True, "top_logprobs": 1,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        "store": False, "include_reasoning": True, "verbosity": "medium",
    },
    "/v1/completions": COMPLETIONS | {
        "model": "mock", "prompt": [[5, 6], [7]], "logprobs": 1, "echo": False, "suffix": "",
        "structured_outputs": {"choice": ["a", "b"]},
    },
    "/v1/responses": SAMPLING | {
        "model": "mock",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "2"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
        ],
        "tools": [{"type": "function"} | FUNCTION, {"type": "custom", "name": "g", "format": {"type": "text"}}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        "text": {"format": {"type": "text"}, "verbosity": "medium"}, "max_output_tokens": 2, "max_tool_calls": 0,
        "instructions": "Be kind.", "include": ["message.output_text.logprobs"], "top_logprobs": 1,
        "truncation": "disabled", "store": False, "background": False, "reasoning": {"summary": "auto"},
    },
    "/v1/messages": {
        "model": "mock", "max_tokens": 2, "system": [{"type": "text", "text": "Be kind."} | CACHED],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "2"}]},
        ],
        "tools": [{"name": "f", "description": "Does.", "input_schema": SCHEMA} | CACHED],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": False}, "temperature": 0.5, "top_k": 5,
        "top_p": 0.9, "stop_sequences": ["zz"], "stream": False, "metadata": {"user_id": "u"},
        "service_tier": "auto", "thinking": {"type": "disabled"},
    },
    "/v2/embed": {
        "model": "embedder", "inputs": [{"content": [{"type": "text", "text": "hello"} | CACHED]}], "images": [],
        "input_type": "search_query", "embedding_types": ["float", "int8"], "output_dimension": 384, "truncate": "END",
        "max_tokens": 5, "priority": 1, "user": "u", "metadata": {"k": "v"}, "timeout": 30.0,
    },
    "/inference/v1/generate": {
        "model": "mock", "token_ids": [5, 6], "request_id": "r", "output_mode": "tokens", "return_token_ids": True,
        "sampling_params": {"max_tokens": 2, "temperature": 0.5, "logprobs": 1, "stop": ["z"], "detokenize": True},
        "stream": False, "priority": 1, "cache_salt": "s",
    },
    "/v2/models/mock/generate": {
        "id": "i", "text_input": "hello", "parameters": {"max_tokens": 2, "temperature": 0.5, "seed": 1, "stop": ["z"]},
    },
    "/v2/models/mock/infer": {
        "id": "i", "parameters": {"max_tokens": 2},
        "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["hello"]}],
        "outputs": [{"name": "text_output", "parameters": {"binary_data": False}}],
    },
}  # fmt: skip
# Objects of the client's own, whose fields are not ours: what is wrong within is named by the object.
FREE = (
    "arguments", "cache_control", "input", "input_schema", "json_schema.schema", "logit_bias", "metadata", "parameters",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None,
    2**64,
    -(2**64),
    1e300,
    "",
    "x" * 40,
    True,
    [],
    {},
    [None],
    [2**64],
    {"x": 1},
    {"type": "x"},
)


class Change(NamedTuple):
    """One value of a request is another one, or one more."""

    place: str  # as an error names it
    body: dict[str, Any]
    value: Any
    unknown: bool  # a field that no request has

    @property
    def is_free(self) -> bool:
        return any(f".{name}." in f".{self.place}" for name in FREE)


def changes(body: dict[str, Any]) -> Iterator[Change]:
    """All, of each value in it at any depth."""
    for path in _places(body):
        name = ".".join(map(str, path))
        for value in VALUES:
            yield Change(name, _with(body, path, value), value, unknown=False)
    for path in [(), *_places(body)]:
        if isinstance(_at(body, path), dict):
            for value in (None, 5):
                name = ".".join(map(str, (*path, "unheard_of")))
                yield Change(name, _with(body, (*path, "unheard_of"), value), value, unknown=True)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*path, key)
        yield from _places(one, (*path, key))


def _at(body: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        body = body[key]
    return body


def _with(body: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    new_body = json.loads(json.dumps(body))
    _at(new_body, path[:-1])[path[-1]] = value
    return new_body
