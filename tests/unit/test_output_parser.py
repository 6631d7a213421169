"""Reasoning, content and calls are told apart, wherever the text is cut."""

import dataclasses
import json
import random
import re
import time
import timeit
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.dialects import json_value, reader
from app.dialects.dialect import Dialect
from app.dialects.families import DIALECTS, reasoning_only
from app.dialects.output_parser import OutputParser
from app.dialects.parameter_value import ANY, types_of
from app.dialects.parts import Arguments, CallBegun, Content, Part, Reasoning
from tests.dialect_parts import calls, parts_of, texts

THINK = reasoning_only("<think>", "</think>")
REPEATED = reasoning_only("aab", "aaab")  # whose beginnings are within themselves
TOOLS: dict[str, Any] = {
    "f": {
        "type": "object",
        "properties": {
            "s": {"type": "string"},
            "n": {"type": "integer"},
            "o": {"type": ["string", "null"]},
            "l": {"type": "array"},
        },
    },
    "g": {"type": "object", "properties": {}},
}


def parsed(dialect: Dialect, *pieces: str, tools: dict[str, Any] = TOOLS, begun: bool = False) -> list[Part]:
    """Neighbours of one kind as one."""
    parts: list[Part] = []
    for part in parts_of(dialect, tools, pieces, begun=begun):
        last = parts[-1] if parts else None
        if isinstance(part, Reasoning | Content) and type(last) is type(part):
            parts[-1] = type(part)(last.text + part.text)
        elif isinstance(part, Arguments) and isinstance(last, Arguments) and last.index == part.index:
            parts[-1] = Arguments(part.index, last.text + part.text)
        else:
            parts.append(part)
    return parts


@pytest.mark.parametrize(
    ("markers", "begun", "text", "parts"),
    [
        (THINK, False, "Paris.", ("", "Paris.")),
        (THINK, False, "<think>Capital?</think>Paris.", ("Capital?", "Paris.")),
        (THINK, False, "So: <think>a</think>b<think>c</think>d", ("a", "So: b<think>c</think>d")),
        (THINK, False, "<think>cut off", ("cut off", "")),
        (THINK, False, "<think></think>", ("", "")),
        (THINK, False, "1 </think> 2 <thin", ("", "1 </think> 2 <thin")),
        (THINK, True, "Capital?</think>Paris.", ("Capital?", "Paris.")),
        (THINK, True, "never over</thi", ("never over</thi", "")),
        (REPEATED, False, "aaabxaaaaabyaab", ("xaa", "ayaab")),
    ],
)
def test_the_reasoning_of_a_text(markers: Dialect, begun: bool, text: str, parts: tuple[str, str]) -> None:
    assert texts(parsed(markers, text, begun=begun)) == parts


def test_no_more_than_a_marker_is_held_back() -> None:
    """A client that reads along sees each character once the next ones can't make a marker of it."""
    parser = OutputParser(THINK, {})
    assert parser.feed("a <thin") == [Content("a ")]
    assert parser.feed("g") == [Content("<thing")]
    assert parser.feed(" <think>b</") == [Content(" "), Reasoning("b")]


def test_arguments_come_as_they_are_written() -> None:
    """JSON arguments come as they are, string parameters as pieces of a JSON string."""
    parser = OutputParser(DIALECTS["qwen3"], TOOLS)
    assert parser.feed('<tool_call>\n{"name": "f", "argum') == []
    assert parser.feed('ents": {"s": "a') == [CallBegun(0, "f"), Arguments(0, '{"s": "a')]
    assert parser.feed("b") == [Arguments(0, "b")]
    assert parser.feed('"}}\n</tool_call>') == [Arguments(0, '"}')]
    parser = OutputParser(DIALECTS["qwen3_coder"], TOOLS)
    assert parser.feed("<tool_call>\n<function=f>\n<parameter=s>\n") == []
    assert parser.feed('a"') == [CallBegun(0, "f"), Arguments(0, '{"s": "a\\"')]
    assert parser.feed("b\n</par") == [Arguments(0, "b")]
    assert parser.feed("ameter>\n<parameter=n>\n1") == [Arguments(0, '"')]
    assert parser.feed("2\n</parameter>\n</function>") == [Arguments(0, ', "n": 12}')]


# What each family writes for f(s="x") after some text, without and with reasoning.
WRITTEN = {
    "qwen3": 'T\n<tool_call>\n{"name": "f", "arguments": {"s": "x"}}\n</tool_call>',
    "qwen3_coder": "T\n<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>",
    "glm": "T<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
    "deepseek_v3": "T<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
    '{"s": "x"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_v31": 'T<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"s": "x"}'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v32": 'T\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
    '<｜DSML｜parameter name="s" string="true">x'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "kimi_k2": "T<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
    '{"s": "x"}<|tool_call_end|><|tool_calls_section_end|>',
    "kimi_k3": '<|open|>response<|sep|>T<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="f" index="1"'
    '<|sep|><|open|>argument key="s" type="string"<|sep|>x<|close|>argument<|sep|><|close|>call<|sep|>'
    "<|close|>tools<|sep|><|close|>message<|sep|>",
    "mistral": 'T[TOOL_CALLS][{"name": "f", "arguments": {"s": "x"}}]',
    "mistral_v11": 'T[TOOL_CALLS]f[ARGS]{"s": "x"}',
    "llama3": 'T<|python_tag|>{"name": "f", "parameters": {"s": "x"}}',
    "llama4": 'T<|python_start|>[f(s="x")]<|python_end|>',
    "gemma4": 'T<|tool_call>call:f{s:<|"|>x<|"|>}<tool_call|>',
    "gpt_oss": "<|channel|>commentary<|message|>T<|end|><|start|>assistant<|channel|>commentary to=functions.f "
    '<|constrain|>json<|message|>{"s": "x"}<|call|>',
    "granite": 'T<|tool_call|>[{"name": "f", "arguments": {"s": "x"}}]',
    "granite4": 'T<tool_call>\n{"name": "f", "arguments": {"s": "x"}}\n</tool_call>',
    "phi4": 'Tfunctools[{"name": "f", "arguments": {"s": "x"}}]',
    "nemotron": 'T<TOOLCALL>[{"name": "f", "arguments": {"s": "x"}}]</TOOLCALL>',
    "minimax_m2": 'T\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="s">x</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
    "seed_oss": "T<seed:tool_call>\n<function=f>\n<parameter=s>x</parameter>\n</function>\n</seed:tool_call>",
}
WRITTEN |= {
    "lfm2": "T<|tool_call_start|>[f(s='x')]<|tool_call_end|>",
    "olmo3": 'T<function_calls>f(s="x")</function_calls>',
    "cohere": '<|START_RESPONSE|>T<|END_RESPONSE|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "f", '
    '"parameters": {"s": "x"}}\n]<|END_ACTION|>',
    "apertus": 'T<|tools_prefix|>[{"f": {"s": "x"}}]<|tools_suffix|>',
    "hunyuan": "T<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n"
    "<arg_key:opensource>s</arg_key:opensource>\n<arg_value:opensource>x</arg_value:opensource>\n"
    "</tool_call:opensource>\n</tool_calls:opensource>",
    "hunyuan_a13b": '<answer>\nT\n<tool_calls>[{"name": "f", "arguments": {"s": "x"}}]</tool_calls>\n</answer>',
    "jamba": 'T<tool_calls>[\n    {"name": "f", "arguments": {"s": "x"}}\n]</tool_calls>',
    "minimax_m1": 'T<tool_calls>\n{"name": "f", "arguments": {"s": "x"}}\n</tool_calls>',
    "apriel": 'T\n<tool_calls>[{"name": "f", "arguments": {"s": "x"}, "id": "1"}]</tool_calls>\n<|end|>',
    "solar": "<|content|>T<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>f"
    '<|tool_call:args|>{"s": "x"}<|tool_call:end|><|calls|>',
    "gigachat3": 'T<|function_call|>{"name": "f", "arguments": {"s": "x"}}<|message_sep|>',
    "minicpm5": 'T<function name="f"><param name="s">x</param></function>',
    "step3": "T<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
    '<steptml:invoke name="f">\n<steptml:parameter name="s">x</steptml:parameter>\n'
    "</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>",
    "dots": 'T\n<dots_function_call>\n<invoke name="f">\n<parameter name="s">x</parameter>\n</invoke>\n'
    "</dots_function_call>",
    "longcat": 'T<longcat_tool_call>\n{"name": "f", "arguments": {"s": "x"}}\n</longcat_tool_call>',
    "functiongemma": "T<start_function_call>call:f{s:<escape>x<escape>}<end_function_call>",
    "internlm": 'T<|action_start|><|plugin|>\n{"name": "f", "parameters": {"s": "x"}}<|action_end|>',
    "granite_20b_fc": 'T<function_call> {"name": "f", "arguments": {"s": "x"}}',
    "xlam": 'T[TOOL_CALLS][{"name": "f", "arguments": {"s": "x"}}]',
    "ernie45": '<response>\nT\n</response>\n<tool_call>\n{"name": "f", "arguments": {"s": "x"}}\n</tool_call>\n',
    "trinity": 'T<tool_call>\n{"name": "f", "arguments": {"s": "x"}}\n</tool_call>',
    "plamo3": "T<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>f"
    "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>"
    '{"s": "x"}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>',
    "minimax_m3": "T]<]minimax[>[<tool_call>\n"
    ']<]minimax[>[<invoke name="f">]<]minimax[>[<s>x]<]minimax[>[</s>]<]minimax[>[</invoke>\n'
    "]<]minimax[>[</tool_call>",
    "k2_horizon": "T<ifm|tool_calls>\n<ifm|tool_call>f\n<ifm|arg_key>s</ifm|arg_key>\n"
    "<ifm|arg_value>x</ifm|arg_value>\n</ifm|tool_call>\n</ifm|tool_calls>",
    "iquest_q1": "T<iquest_tool_call>f\n<arg_key>s</arg_key>\n<arg_value>x</arg_value>\n</iquest_tool_call>",
    "functionary_v32": 'all\nT>>>f\n{"s": "x"}<|eot_id|>',
    "command_r": 'T\nAction:\n```json\n[\n    {\n        "tool_name": "f",\n        "parameters": '
    '{\n            "s": "x"\n        }\n    }\n]```',
    "functionary": 'T<function=f>{"s": "x"}</function><|eom_id|>',
    "muse_glimmer": " to=user<|message|>T<|eom|><|start|>assistant to=f<|message|><atem:function_calls>\n"
    '<atem:invoke name="f">\n<atem:parameter name="s">x</atem:parameter>\n</atem:invoke>\n'
    "</atem:function_calls><|eot|>",
}
WRITTEN["gigachat35"] = WRITTEN["deepseek_v32"].replace("function_calls", "tool_calls").replace("DSML", "GCML")
WRITTEN["deepseek_v4"] = WRITTEN["deepseek_v32"].replace("function_calls", "tool_calls")
WRITTEN["deepseek_v41"] = WRITTEN["deepseek_v32"].replace("function_calls", "calls").replace("｜DSML｜", "｜DSML｜ ")


def test_every_family_is_written_here() -> None:
    assert WRITTEN.keys() | {"think"} == DIALECTS.keys()


@pytest.mark.parametrize("name", WRITTEN)
def test_a_call_of_each_family(name: str) -> None:
    parts = parsed(DIALECTS[name], WRITTEN[name])
    assert texts(parts) == ("", "T")
    ((function_name, arguments),) = calls(parts)
    assert (function_name, json.loads(arguments)) == ("f", {"s": "x"})


@pytest.mark.parametrize("name", WRITTEN)
def test_without_tools_nothing_is_a_call(name: str) -> None:
    parts = parsed(DIALECTS[name], WRITTEN[name], tools={})
    assert not calls(parts)
    assert texts(parts)[1].removeprefix("all\n").startswith("T")
    if not (DIALECTS[name].hidden or DIALECTS[name].wrappers or DIALECTS[name].channels):
        assert texts(parts)[1] == WRITTEN[name]


@pytest.mark.parametrize("name", WRITTEN)
@settings(max_examples=25)  # of each family
@given(data=st.data())
def test_however_a_text_is_cut_its_parts_are_the_same(name: str, data: st.DataObject) -> None:
    """The text is well-formed or any mixture of its markers."""
    dialect, text = DIALECTS[name], WRITTEN[name]
    words = [*_words(text), "<think>", "</think>", "\n", " ", "{", "}", '"', "\\", ",", "T", "</", "<", "é", "[", "]"]
    text = data.draw(st.just(text) | st.lists(st.sampled_from(words), max_size=40).map("".join))
    has_begun = bool(dialect.thoughts) and data.draw(st.booleans())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    cut = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parsed(dialect, text, begun=has_begun)
    assert parsed(dialect, *cut, begun=has_begun) == whole
    assert parsed(dialect, *text, begun=has_begun) == whole
    assert all(arguments for _, arguments in calls(whole))


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_too_long_for_a_name_is_read_in_the_same_way_however_it_is_cut(name: str) -> None:
    dialect, text = DIALECTS[name], WRITTEN[name]
    for at in range(0, len(text), 5):
        for much in ("9", "\\n"):
            long = text[:at] + much * reader.HEAD + text[at:] + text
            whole = parsed(dialect, long)
            assert parsed(dialect, *(long[i : i + 7] for i in range(0, len(long), 7))) == whole


@pytest.mark.parametrize(("name", "begin", "text"), [
    ("gemma4", "<|tool_call>call:f{l:", '<|"|>x'), ("functiongemma", "<start_function_call>call:f{l:", "<escape>x"),
])  # fmt: skip
def test_a_call_may_be_nested_deep(name: str, begin: str, text: str) -> None:
    ((function_name, arguments),) = calls(parsed(DIALECTS[name], begin + "[" * 5000 + text))
    assert (function_name, arguments[:10]) == ("f", '{"l": [[[[')


def cpu_s(work: Callable[[], object]) -> float:
    """The least of three times."""
    return min(timeit.repeat(work, timer=time.thread_time, number=1, repeat=3))


@pytest.mark.parametrize("name", ["llama4", "muse_glimmer"])
def test_thousands_of_tools_take_little_time(name: str) -> None:
    """Their names are a part of markers there. The parser is made on the event loop."""
    tools = {f"{i}_".ljust(64, "x"): {} for i in range(4096)}
    assert cpu_s(lambda: (reader.marker_set.cache_clear(), parsed(DIALECTS[name], "a", tools=tools))) < 0.3


@pytest.mark.parametrize(("name", "text"), [
    ("gemma4", "<|tool_call>call:f{l:%s}"), ("lfm2", "<|tool_call_start|>[%s g()]<|tool_call_end|>"),
])  # fmt: skip
def test_many_small_parts_take_time_in_proportion(name: str, text: str) -> None:
    part = "," if name == "gemma4" else "g(), "

    def took(parts: int) -> float:
        return cpu_s(lambda: parsed(DIALECTS[name], text % (part * parts)))

    assert took(8000) < 10 * took(2000)


def test_hidden_markers_are_neither_content_nor_reasoning_however_the_text_is_cut() -> None:
    """A text that merely begins like a marker is text."""
    dialect = dataclasses.replace(DIALECTS["qwen3"], hidden=("<|im_end|>",))
    text = '<think>a<|im_end|>b</think>c<|im_end|>d <|im_e <tool_call>{"name": "g", "arguments": {}}</tool_call>'
    whole = parsed(dialect, text)
    assert (texts(whole), calls(whole)) == (("ab", "cd <|im_e"), [("g", "{}")])
    for size in range(1, 12):
        assert parsed(dialect, *(text[i : i + size] for i in range(0, len(text), size))) == whole


def _words(text: str) -> Iterator[str]:
    """Pieces of it that are about as long as its markers' parts."""
    rng = random.Random(text)
    at = 0
    while at < len(text):
        size = rng.randint(1, 24)
        yield text[at : at + size]
        at += size


@given(
    st.sampled_from([THINK, REPEATED]),
    st.booleans(),
    st.lists(st.sampled_from(["<think>", "</think>", "<", "</", "th", "ink>", "a", "aa", "b", "word ", "é"])),
)
def test_only_markers_are_lost(markers: Dialect, begun: bool, pieces: list[str]) -> None:
    text = "".join(pieces)
    parts = parsed(markers, *pieces, begun=begun)
    assert parts == parsed(markers, text, begun=begun)
    if markers is THINK:
        rest = "".join(texts(parts))
        assert sorted(c for c in rest if c in "abé") == sorted(c for c in text if c in "abé")  # they are in no marker
        assert rest == text or "<think>" in text or "</think>" in text


@pytest.mark.parametrize(
    ("name", "text", "shown", "called"),
    [
        ("qwen3", "Say <tool_call> twice", "Say <tool_call> twice", []),
        ("qwen3", '<tool_call>{"nome": 1}</tool_call>', '<tool_call>{"nome": 1}</tool_call>', []),
        ("qwen3", 'a <tool_call>{"name": "f"}</tool_call>', "a", [("f", "{}")]),
        ("qwen3", '<tool_call>{"name": "f", "arguments": null}</tool_call>b', "b", [("f", "{}")]),
        ("qwen3", '<tool_call>{"arguments": {"s": 1}, "name": "h"}</tool_call>', "", [("h", '{"s": 1}')]),
        ("qwen3", '<tool_call>{"name": "f", "arguments": {"s": 1', "", [("f", '{"s": 1')]),
        ("qwen3", 'a <tool_call>{"name": "f", "argu', "a", []),
        ("qwen3", '<tool_call>{"name": "f", "arguments": {s: </tool_call> b', " b", [("f", "{s: ")]),
        ("qwen3_coder", "Use <function=name>.", "Use <function=name>.", []),
        ("qwen3_coder", '<tool_call>{"name": "f", "arguments": {}}</tool_call>', "", [("f", "{}")]),
        ("qwen3_coder", "<tool_call><function=f><parameter=s>a</parameter><function=g></function></tool_call>", "",
         [("f", '{"s": "a"}'), ("g", "{}")]),
        ("glm", "<tool_call>g<tool_call>f</tool_call>", "", [("g", "{}"), ("f", "{}")]),
        ("mistral", '[TOOL_CALLS]f{"s": "]"}', "", [("f", '{"s": "]"}')]),
        ("mistral", "[TOOL_CALLS] no call at all{", "[TOOL_CALLS] no call at all{", []),
        ("llama3", '{"name": "f", "parameters": {"s": "x"}}; {"name": "g", "parameters": {}}', "",
         [("f", '{"s": "x"}'), ("g", "{}")]),
        ("llama3", '{"name": "Bob", "parameters": {}}', '{"name": "Bob", "parameters": {}}', []),
        ("llama4", "[1, 2, 3]", "[1, 2, 3]", []),
        ("llama4", "[f(x) for x in y]", "[f(x) for x in y]", []),
        ("llama4", "[f(s='(]'), g()] and", "and", [("f", '{"s": "(]"}'), ("g", "{}")]),
        ("llama4", "[f(s='a', n=1e999), g()]", "", [("f", '{"s":"a","n":null}'), ("g", "{}")]),
        ("gpt_oss", '{"held": "to a grammar"}', '{"held": "to a grammar"}', []),
        ("gpt_oss", "<|channel|>commentary to=python<|message|>print(1)<|end|><|start|>assistant<|message|>b", "b", []),
        ("glm", "<tool_call>f<arg_key>n</arg_key><arg_value>x</arg_value></tool_call>", "", [("f", '{"n": "x"}')]),
        ("glm", "<tool_call>f<arg_key>o</arg_key><arg_value>null</arg_value></tool_call>", "", [("f", '{"o": null}')]),
        ("glm", "<tool_call>f<arg_key>o</arg_key><arg_value>nu</arg_value></tool_call>", "", [("f", '{"o": "nu"}')]),
        ("glm", "<tool_call>f<arg_key>l</arg_key><arg_value>[1, 2</arg_value></tool_call>", "",
         [("f", '{"l": "[1, 2"}')]),
        ("glm", "<tool_call>f<arg_key>z</arg_key><arg_value>NaN</arg_value></tool_call>", "", [("f", '{"z": "NaN"}')]),
    ],
)  # fmt: skip
def test_what_is_no_call_is_content(name: str, text: str, shown: str, called: list[tuple[str, str]]) -> None:
    """Nothing is repaired: what was begun stays as it was written."""
    parts = parsed(DIALECTS[name], text)
    assert (texts(parts)[1], calls(parts)) == (shown, called)


@given(st.lists(st.text("<ab|", min_size=1, max_size=5), min_size=1, max_size=8, unique=True), st.text("<ab|"))
def test_the_first_of_many_markers_is_found(markers: list[str], text: str) -> None:
    """The result is that of a separate search for each marker."""
    if any(a != b and a in b[:-1] for a in markers for b in markers):
        with pytest.raises(ValueError, match="one is in another"):
            reader.MarkerSet(tuple(markers))
        return
    match = reader.MarkerSet(tuple(markers)).find(text, 0)
    places = [(text.find(marker), marker) for marker in markers if marker in text]
    first = min(places, key=lambda place: (place[0], -len(place[1])), default=None)
    assert match == first


def test_a_text_takes_no_longer_for_a_thousand_markers() -> None:
    """Some models have so many special tokens; a search for each in turn took 40 µs at each "<"."""
    tokens = [f"<|reserved_token_{i}|>" for i in range(1000)]
    few, many = (reader.MarkerSet(("<think>", *tokens[:count])) for count in (4, 1000))
    text = "<|reserved_token_" * 3000

    assert cpu_s(lambda: many.find(text, 0)) < 20 * cpu_s(lambda: few.find(text, 0))


@pytest.mark.parametrize("name", WRITTEN)
def test_a_long_call_takes_time_in_proportion(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in characters that are looked at, since clocks depend on what else runs."""
    scanned_chars = 0

    def counted(search: Any) -> Any:
        def count(text: str, at: int = 0) -> Any:
            nonlocal scanned_chars
            match = search(text, at)
            scanned_chars += (match.end() if match else len(text)) - at
            return match

        return count

    init = reader.MarkerSet.__init__

    def counting(self: reader.MarkerSet, markers: tuple[str, ...]) -> None:
        init(self, markers)
        self._first = counted(self._first)

    monkeypatch.setattr(reader.MarkerSet, "__init__", counting)
    for where, names in ((reader, ("_FILLED", "_STRING_ENDS")), (json_value, ("_JSON", "_PYTHON"))):
        for n in names:
            monkeypatch.setattr(where, n, counted(getattr(where, n)))
    monkeypatch.setattr(json_value, "_IN_STRING", {q: counted(s) for q, s in json_value._IN_STRING.items()})
    took = []
    for size in (500, 1000):
        reader.marker_set.cache_clear()
        scanned_chars = 0
        text = re.sub(r"\bx\b", "word " * size + "x", WRITTEN[name])
        ((_, arguments),) = calls(parsed(DIALECTS[name], *(text[i : i + 4] for i in range(0, len(text), 4))))
        assert len(arguments) > 5 * size
        took.append(scanned_chars)
    reader.marker_set.cache_clear()
    assert took[1] < 2.5 * took[0]
    assert took[1] < 12 * 5000 + 5000


@pytest.mark.parametrize(("name", "text"), [
    ("llama4", '[get(a="\\ud800")]'),
    ("qwen3", '<tool_call>{"name":"g\\ud800","arguments":{}}</tool_call>'),
    ("qwen3_coder", '<tool_call><function=get><parameter=a>"\\ud800"</parameter></function></tool_call>'),
    ("gemma4", '<|tool_call>call:get{a:"\\ud800"}<tool_call|>'),
])  # fmt: skip
def test_half_a_character_in_a_models_text_is_none_in_its_parts(name: str, text: str) -> None:
    """No client could be told of it."""
    parts = parts_of(DIALECTS[name], {"get": {"properties": {"a": {}}}}, [text])
    assert parts
    for part in parts:
        (part.name if isinstance(part, CallBegun) else part.text).encode()


def test_a_schema_that_refers_to_itself_many_times_costs_no_more_than_another() -> None:
    """The schema is the client's."""
    loop = {"properties": {"x": {"anyOf": [{"$ref": "#/properties/x"}] * 2000}}}
    lookups = 0

    class Counted(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            nonlocal lookups
            lookups += 1
            return super().get(key, default)

    loop["properties"]["x"] = Counted(loop["properties"]["x"])
    assert types_of(loop, "x", None) == ANY
    assert lookups < 1000
