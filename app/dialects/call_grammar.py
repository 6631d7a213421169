"""Grammars of calls, as parts of a structural tag.

The parts are xgrammar's formats as JSON, of the kinds that every engine has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Format = dict[str, Any]
Schemas = Mapping[str, Any]  # the JSON schema of each callable tool's parameters, by the tool's name


@dataclass(frozen=True)
class CallGrammar:
    """`before`, tags with `separator` between them, `after`. Each tag is a call."""

    tags: list[Format]
    triggers: tuple[str, ...]  # `before` and all tags begin with one of these: in free text, it begins calls
    before: str = ""
    separator: str = ""
    after: str = ""
    single: bool = False  # an answer has no place for a second call
    # `before` is no sign of calls without the beginning of a tag, and the triggers are both.
    unmarked: bool = False
    unheld: Mapping[str, str] = field(default_factory=dict)  # what of a tool's schema the tags don't see to

    def calls(self, *, one: bool) -> Format:
        """A format of at least one call and nothing else; `one`: of exactly one."""
        calls = {
            "type": "tags_with_separator",
            "tags": self.tags,
            "separator": self.separator,
            "at_least_one": True,
            "stop_after_first": one or self.single,
        }
        return tag(self.before, calls, self.after) if self.before else calls

    def in_text(self, *, one: bool) -> Format:
        """Any text, and calls behind a trigger."""
        tags = [self.calls(one=one)] if self.before else self.tags
        if self.unmarked:
            tags = [self._begun(call, one=one) for call in self.tags]
        return {
            "type": "triggered_tags",
            "triggers": list(self.triggers),
            "tags": tags,
            "at_least_one": False,
            "stop_after_first": one or self.single,
        }

    def _begun(self, call: Format, *, one: bool) -> Format:
        """Calls of which this is the first."""
        more = {"type": "tags_with_separator", "tags": self.tags, "separator": self.separator}
        behind = optional(sequence(const(self.separator), more | {"at_least_one": True, "stop_after_first": False}))
        parts = [call["content"], const(call["end"]), *([] if one else [behind])]
        return tag(self.before + call["begin"], sequence(*parts), self.after)


def channel_calls(schemas: Schemas) -> CallGrammar:
    """gpt-oss's calls."""
    begin = "<|channel|>commentary to=functions."
    tags = [tag(f"{begin}{name} <|constrain|>json<|message|>", schema(of), "<|call|>") for name, of in schemas.items()]
    return CallGrammar(tags, (begin,), single=True)


def tag(begin: str, content: Format, end: str) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def schema(of: Any) -> Format:
    return {"type": "json_schema", "json_schema": of}


def sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


def const(text: str) -> Format:
    return {"type": "const_string", "value": text}


def optional(content: Format) -> Format:
    return {"type": "optional", "content": content}


TEXT: Format = {"type": "any_text"}
