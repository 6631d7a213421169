"""Texts of our own, drawn by seed, are understood in each family: the public corpus may have taught models and parsers.

What writes them follows the families' own documentation and chat templates, and shares nothing with the dialects.
"""

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from app.dialects.names import find_dialect
from tests.dialect_parts import calls, parts_of, texts
from tests.present import present

CASES = 120  # of each family
Call = tuple[str, dict[str, Any]]


class Family(NamedTuple):
    """A model family's way of writing."""

    calls: Callable[[list[Call]], str]
    think: tuple[str, str] = ("<think>\n", "\n</think>\n\n")
    before: bool = True  # text may stand before calls
    after: str | None = ""  # what stands before text behind calls; None: there is none
    names: str = "_-"  # signs of a name that are no letters
    keys: bool = False  # of arguments are names of Python's
    answer: str = ""  # what stands before content
    lines: bool = True  # a text that begins and ends with a line's end is told from one on lines of its own


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def plain(value: Any) -> str:
    return value if isinstance(value, str) else compact(value)


def each(shape: Callable[[str, dict[str, Any]], str], between: str = "") -> Callable[[list[Call]], str]:
    return lambda calls: between.join(shape(name, arguments) for name, arguments in calls)


def section(begin: str, shape: Callable[[str, dict[str, Any]], str], end: str, between: str = "") -> Any:
    return lambda calls: begin + each(shape, between)(calls) + end


def objects(begin: str, end: str) -> Any:
    return section(begin, lambda name, given: compact({"name": name, "arguments": given}), end, ", ")


def tagged(head: str, pair: str, tail: str) -> Callable[[str, dict[str, Any]], str]:
    """`pair` with `{k}`, `{v}`; `{s}`: whether it is a text."""

    def shape(name: str, given: dict[str, Any]) -> str:
        pairs = [
            pair.replace("{s}", compact(isinstance(v, str))).replace("{k}", k).replace("{v}", plain(v))
            for k, v in given.items()
        ]
        return head.replace("{name}", name) + "".join(pairs) + tail

    return shape


def kimi(calls: list[Call]) -> str:
    parts = [
        f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{compact(arguments)}<|tool_call_end|>"
        for i, (name, arguments) in enumerate(calls)
    ]
    return f"<|tool_calls_section_begin|>{''.join(parts)}<|tool_calls_section_end|>"


def harmony(calls: list[Call]) -> str:
    heads = ("<|channel|>commentary to=functions.{} <|constrain|>json", " to=functions.{}<|channel|>commentary json")
    return "<|start|>assistant".join(
        f"{heads[i % 2].format(name)}<|message|>{compact(arguments)}<|call|>"
        for i, (name, arguments) in enumerate(calls)
    )


def gemma(name: str, given: dict[str, Any]) -> str:
    def value(of: Any) -> str:
        if isinstance(of, dict):
            return "{" + ",".join(f"{key}:{value(inner)}" for key, inner in sorted(of.items())) + "}"
        if isinstance(of, list):
            return f"[{','.join(map(value, of))}]"
        return f'<|"|>{of}<|"|>' if isinstance(of, str) else json.dumps(of)

    return f"<|tool_call>call:{name}{value(given)}<tool_call|>"


def pythonic(calls: list[Call]) -> str:
    call_texts = [f"{name}({', '.join(f'{key}={of!r}' for key, of in arguments.items())})" for name, arguments in calls]
    return f"[{', '.join(call_texts)}]"


def deepseek_v3(name: str, given: dict[str, Any]) -> str:
    head = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n"
    return f"{head}{compact(given)}\n```<｜tool▁call▁end｜>"


def dsml(word: str, pad: str = "") -> Any:
    mark = f"｜DSML｜{pad}"
    shape = tagged(
        f'<{mark}invoke name="{{name}}">\n',
        f'<{mark}parameter name="{{k}}" string="{{s}}">{{v}}</{mark}parameter>\n',
        f"</{mark}invoke>",
    )
    return section(f"<{mark}{word}>\n", shape, f"\n</{mark}{word}>", "\n")


HERMES = each(lambda name, given: f"<tool_call>\n{compact({'name': name, 'arguments': given})}\n</tool_call>", "\n")
SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
QWEN = each(
    tagged("<tool_call>\n<function={name}>\n", "<parameter={k}>\n{v}\n</parameter>\n", "</function>\n</tool_call>"),
    "\n",
)
GLM = each(tagged("<tool_call>{name}\n", "<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n", "</tool_call>"), "\n")
MINIMAX = section(
    "<minimax:tool_call>\n",
    tagged('<invoke name="{name}">\n', '<parameter name="{k}">{v}</parameter>\n', "</invoke>"),
    "\n</minimax:tool_call>",
    "\n",
)
SEED = each(
    tagged(
        "<seed:tool_call>\n<function={name}>\n",
        "<parameter={k}>{v}</parameter>\n",
        "</function>\n</seed:tool_call>",
    ),
    "\n",
)
FAMILIES: dict[str, Family] = {
    "hermes": Family(HERMES),
    "granite4": Family(HERMES),
    "qwen3_coder": Family(QWEN),
    "seed_oss": Family(SEED, ("<seed:think>\n", "\n</seed:think>\n"), lines=False),
    "glm45": Family(GLM),
    "minimax_m2": Family(MINIMAX, lines=False),
    "kimi_k2": Family(kimi, ("<think>", "</think>")),
    "deepseek_v3": Family(section(SECTION[0], deepseek_v3, SECTION[1], "\n")),
    "deepseek_v31": Family(
        section(
            SECTION[0],
            lambda name, given: f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{compact(given)}<｜tool▁call▁end｜>",
            SECTION[1],
        )
    ),
    "deepseek_v32": Family(dsml("function_calls"), ("<think>", "</think>")),
    "deepseek_v4": Family(dsml("tool_calls"), ("<think>", "</think>")),
    "deepseek_v41": Family(dsml("calls", " "), ("<think>", "</think>")),
    "mistral": Family(
        each(lambda name, given: f"[TOOL_CALLS]{name}[ARGS]{compact(given)}"), ("[THINK]", "[/THINK]"), after=None
    ),
    "llama3": Family(
        each(lambda name, given: compact({"name": name, "parameters": given}), "; "), ("", ""), before=False, after=None
    ),
    "pythonic": Family(pythonic, ("", ""), before=False, after=None, names="_", keys=True),
    "gemma4": Family(each(gemma), ("<|channel>thought\n", "\n<channel|>")),
    "gpt_oss": Family(
        harmony, ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"), before=False, after=None,
        answer="<|channel|>final<|message|>",
    ),
    "granite": Family(objects("<|tool_call|>[", "]"), after=None),
    "phi4": Family(objects("<|tool_call|>[", "]<|/tool_call|>")),
    "nemotron": Family(objects("<TOOLCALL>[", "]</TOOLCALL>")),
}  # fmt: skip
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXTS = [
    "", " ", "a", "  indented ", "\nin lines\n", "ends in a line\n", "<", "a<", "\\", '"', "'",
    "é ü ß", "日本語のテキスト", "👩‍💻🌸", 'say "yes"', "it's", "back\\slash \\n", "two\nlines\n\tindented",
    "{\"name\": \"x\"}", "[1, 2", "}]", "a, b; c: d", "<b>bold</b> & <i>", "null", "true", "007", "-1.50", "1e5",
    "https://example.org/?a=1&b=%20", "C:\\dir\\file.txt", "```json\n{}\n```", "a < b > c", "\u2028", "x" * 700,
    "</think", "call:f{}", "def f(x):\n    return {'a': [x]}\n", "#!/bin/sh\necho \"$HOME\"",
]  # fmt: skip
NUMBERS = [0, 1, -7, 2**53 + 1, 10**30, -(10**18), 0.5, -2.25, 1e-05, 1e21, 123456.789]


class Draw:
    def __init__(self, seed: str, family: Family) -> None:
        self.random, self.family = random.Random(seed), family

    def name(self, signs: str) -> str:
        letters = self.random.choices(LETTERS + LETTERS.upper(), k=self.random.randint(3, 12))
        return "f" + "".join(letters) + (self.random.choice(signs) + "x" if self.random.random() < 0.5 else "")

    def value(self, depth: int = 0) -> Any:
        kinds = ["text", "text", "number", "word", *(["list", "object"] if depth < 3 else [])]
        match self.random.choice(kinds):
            case "text":
                text = self.random.choice(TEXTS)
                return text if self.family.lines else text.strip("\n")
            case "number":
                return self.random.choice(NUMBERS)
            case "word":
                return self.random.choice([True, False, None])
            case "list":
                return [self.value(depth + 1) for _ in range(self.random.randint(0, 3))]
        return {self.name("_"): self.value(depth + 1) for _ in range(self.random.randint(0, 3))}

    def call(self) -> Call:
        key = "_" if self.family.keys else "_-"
        return self.name(self.family.names), {self.name(key): self.value() for _ in range(self.random.randint(0, 4))}

    def prose(self) -> str:
        words = ["Well", "so", "I", "will", "look", "it", "up.", "Über", "日本", "1 < 2", "{x}", "[a]", "“ok”"]
        return " ".join(self.random.choices(words, k=self.random.randint(2, 12))) + "."


def schema(value: Any) -> dict[str, Any]:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return {"type": "null" if value is None else kinds[type(value)]}


class Case(NamedTuple):
    text: str
    tools: dict[str, Any]
    content: str
    reasoning: str
    calls: list[Call]


def drawn(name: str, number: int) -> Case:
    family = FAMILIES[name]
    draw = Draw(f"{name} {number}", family)
    calls = [draw.call() for _ in range(draw.random.choice((0, 1, 1, 1, 2, 3)))]
    reasoning = draw.prose() if family.think[0] and draw.random.random() < 0.4 else ""
    before = draw.prose() if not calls or (family.before and draw.random.random() < 0.4) else ""
    after = draw.prose() if calls and family.after is not None and draw.random.random() < 0.2 else ""
    text = "".join([
        family.think[0] + reasoning + family.think[1] if reasoning else "",
        family.answer + before if before else "",
        "\n" if before and calls and not family.answer else "",
        family.calls(calls) if calls else "",
        f"\n{after}" if after else "",
    ])  # fmt: skip
    tools = {
        function: {"type": "object", "properties": {key: schema(value) for key, value in arguments.items()}}
        for function, arguments in calls
    }
    return Case(text, tools or {"f": {}}, before + after, reasoning, calls)


def understood(name: str, case: Case, pieces: list[str]) -> tuple[str, str, list[tuple[str, str]]]:
    parts = parts_of(present(find_dialect(name)), case.tools, pieces)
    reasoning, content = texts(parts)
    return content, reasoning, calls(parts)


def cut(text: str, draw: random.Random, most: int) -> list[str]:
    pieces = []
    while text:
        size = draw.randint(1, most)
        pieces, text = [*pieces, text[:size]], text[size:]
    return pieces


def same(value: Any, other: Any) -> bool:
    return json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)


def wrong(name: str, number: int) -> str:
    """The part of a case that is not understood; "": there is none."""
    case = drawn(name, number)
    whole = understood(name, case, [case.text])
    draw = random.Random(number)
    for most in (1, 3, 8, 40):
        if understood(name, case, cut(case.text, draw, most)) != whole:
            return f"in pieces of {most}: {case.text!r}"
    content, reasoning, calls = whole
    try:
        parsed_calls = [(function, json.loads(arguments)) for function, arguments in calls]
    except ValueError:
        return f"no JSON: {calls} of {case.text!r}"
    if not same(parsed_calls, case.calls):
        return f"{parsed_calls} instead of {case.calls} of {case.text!r}"
    if "".join(content.split()) != "".join(case.content.split()) or reasoning.strip() != case.reasoning:
        return f"{content!r} and {reasoning!r} instead of {case.content!r} and {case.reasoning!r} of {case.text!r}"
    return ""


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_drawn_is_understood_whole_and_in_pieces(name: str) -> None:
    assert [mistake for number in range(CASES) if (mistake := wrong(name, number))] == []
