"""Whether the call that a chat template writes is read back by the dialect that is guessed for the template.

A conversation with a call is rendered as the API renders it. What the template adds for the assistant is what its model
has learned to write: the dialect has to make the same call of it, whole and cut in two at each place.
`python -m ops.templates.readback [FOLDER…]` reads the templates (`*.jinja`) of folders, or of the packages. It prints a
line for each, with `-v` what is read wrong, and one line of JSON.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.dialects.dialect import Dialect
from app.dialects.families import DIALECTS
from app.dialects.names import guess_dialect
from app.dialects.output_parser import OutputParser
from app.dialects.parts import Arguments, CallBegun
from app.errors import RequestError, SettingsError
from app.openai.prompt import chat_prompt
from app.openai.schemas import ChatRequest
from app.pools.schema import Pool
from app.tokenizing.tokenizer import Tokenizer
from ops.templates.packages import MORE, REQUIREMENTS, templates

# Templates that write what is no call, whatever reads it.
BROKEN = {
    "tool_chat_template_gemma3_pythonic": "no comma between arguments",
    "tool_chat_template_llama3.2_pythonic": "texts without quotation marks",
    "tool_chat_template_phi4_mini": "arguments as Python shows a dictionary",
    "tool_chat_template_toolace": "texts without quotation marks",
}
_MODEL_DIR = Pool(model="mock", engine="mock").model_dir
_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_RESULT = "the-result"
_ASKED = {"role": "user", "content": "How is the weather?"}
_IDS = {"call": "call_abcdefg{1}", "nine": "abcdefgh{1}", "numbered": "functions.{0}:{1}"}
_OPEN_MARKER = re.compile(r"[<\[][^<>\[\]\s]*$")  # the beginning of a marker, which others have, too
_PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where."},
        "days": {"type": "integer", "description": "How many."},
        "exact": {"type": "boolean", "description": "Whether."},
        "place": {
            "type": "object",
            "description": "Where.",
            "properties": {"lat": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}},
            "additionalProperties": False,
        },
    },
}
_OFFERED = dict.fromkeys(("weather", "forecast"), _PARAMETERS)
_TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Tells it.", "parameters": of}}
    for name, of in _OFFERED.items()
]
Call = tuple[str, dict[str, Any]]
_WEATHER: Call = ("weather", {"city": "Oslo", "days": 2})
_TYPES = {"city": "São Paulo, SP: (a) [b]", "exact": True, "place": {"lat": 59.9, "tags": ["a b", "c"]}}
# By title, fields of the assistant's message, and its calls. A template that writes calls at all writes the first.
CASES: dict[str, tuple[dict[str, Any], list[Call]]] = {
    "one": ({}, [_WEATHER]),
    "behind text": ({"content": "I look."}, [_WEATHER]),
    "behind reasoning": ({"reasoning_content": "Hm, where?"}, [_WEATHER]),
    "two": ({}, [_WEATHER, ("forecast", {"city": "Bergen"})]),
    "types": ({}, [("weather", _TYPES)]),
    "no arguments": ({}, [("weather", {})]),
}


@dataclass
class ReadBack:
    """The result of reading back one template."""

    name: str
    dialect: str | None
    written: dict[str, str] = field(default_factory=dict)  # what it writes, by a case's title; none: no calls
    wrong: list[str] = field(default_factory=list)  # titles of cases that are read as something else

    @property
    def right(self) -> bool:
        return bool(self.written) and not self.wrong

    def __str__(self) -> str:
        verdict = "right" if self.right else f"wrong: {', '.join(self.wrong)}" if self.wrong else "writes no calls"
        return f"{self.name:50} {self.dialect or '-':16} {BROKEN.get(self.name, verdict)}"


def read_back(path: Path) -> ReadBack:
    """Reads back the calls of the template `path`. Raises: SettingsError for one that is no template."""
    tokenizer = Tokenizer(_MODEL_DIR, path)
    tokenizer.special = _SPECIAL
    name = guess_dialect(tokenizer.template or "")
    result = ReadBack(path.stem, name)
    dialect = DIALECTS[name] if name else Dialect()
    for title, (fields, calls) in CASES.items():
        try:
            prompt, output = _said(tokenizer, _message(fields, calls, dialect))
        except RequestError:
            continue
        if not all(text in output for name, arguments in calls for text in (name, *_texts(arguments))):
            continue  # it leaves something out
        result.written[title] = output
        cuts: Iterator[tuple[str, ...]] = iter(
            ((output,), *((output[:at], output[at:]) for at in range(1, len(output))))
        )
        if any(_read(dialect, dialect.begun(prompt), cut) != calls for cut in cuts):
            result.wrong.append(title)
    return result if "one" in result.written else ReadBack(path.stem, name)


def figures(found: Iterable[ReadBack]) -> dict[str, int]:
    """Numbers of templates that are read wrong, and of families with one that is read right and none that isn't."""
    writing = [each for each in found if each.written and each.name not in BROKEN]
    wrong = {each.dialect for each in writing if each.wrong}
    families = {each.dialect for each in writing if each.right} - wrong
    return {
        "readback_wrong": sum(bool(each.wrong) for each in writing),
        "families_with_tools": len(families),
        "templates_with_calls": len(writing),
    }


def packages_read_back() -> list[ReadBack]:
    """Results for all templates of the packages. Raises: Unavailable."""
    return [read_back(path) for path in (*templates(REQUIREMENTS), *templates(MORE))]


def _message(fields: dict[str, Any], calls: Sequence[Call], dialect: Dialect) -> dict[str, Any]:
    tool_calls = [
        {
            "id": _IDS[dialect.ids].format(name, number),
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
        }
        for number, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": None, "tool_calls": tool_calls, **fields}


def _said(tokenizer: Tokenizer, message: dict[str, Any]) -> tuple[str, str]:
    """The prompt, as far as it is before the assistant's text, and this text. Raises: RequestError."""
    results = [
        {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": _RESULT}
        for call in message["tool_calls"]
    ]
    before = _rendered(tokenizer, [_ASKED])
    whole = _rendered(tokenizer, [_ASKED, message, *results])
    same = next((at for at, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), len(before))
    same -= len(match[0]) if (match := _OPEN_MARKER.search(before[:same])) else 0
    return before[:same], whole[same : whole.find(_RESULT, same)]


def _rendered(tokenizer: Tokenizer, messages: list[dict[str, Any]]) -> str:
    tools = _TOOLS if tokenizer.tools_variable else None
    request = ChatRequest.model_validate({"model": "m", "messages": messages, "tools": tools})
    return chat_prompt(tokenizer, request.messages, request)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _texts(inner)
    elif isinstance(value, str) and value.isascii():
        yield value


def _read(dialect: Dialect, begun: bool, pieces: Iterable[str]) -> list[tuple[str, Any]]:
    parser = OutputParser(dialect, _OFFERED, begun=begun)
    parts = [part for piece in pieces for part in parser.feed(piece)] + parser.close()
    calls = [[part.name, ""] for part in parts if isinstance(part, CallBegun)]
    for part in parts:
        if isinstance(part, Arguments):
            calls[part.index][1] += part.text
    return [(name, _value(arguments)) for name, arguments in calls]


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def main() -> int:
    is_verbose, folders = "-v" in sys.argv, [Path(name) for name in sys.argv[1:] if name != "-v"]
    if folders:
        paths = sorted(path for folder in folders for path in folder.rglob("*.jinja"))
    else:
        paths = [*templates(REQUIREMENTS), *templates(MORE)]
    results = []
    for path in paths:
        try:
            results.append(read_back(path))
        except SettingsError as exc:
            print(f"{path.stem}: {exc}")
            continue
        print(results[-1])
        if is_verbose and results[-1].wrong:
            print(f"    {results[-1].written[results[-1].wrong[0]]!r}")
    summary = figures(results)
    print(json.dumps(summary))
    return 1 if summary["readback_wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
