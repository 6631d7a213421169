"""Chat templates: programs in a sandbox, as Hugging Face's are written for."""

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment


def compile_template(source: str | None) -> tuple[jinja2.Template | None, frozenset[str]]:
    """The compiled template, and the names of its variables. Raises: jinja2.TemplateError."""
    if source is None:
        return None, frozenset()
    # Templates come with models, so they are not trusted: they run in a sandbox, and can change nothing.
    # Options and globals are those that Hugging Face templates are written for.
    env = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag], autoescape=False
    )
    env.filters["tojson"] = lambda value, **kw: json.dumps(value, **{"ensure_ascii": False, **kw})
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda fmt: datetime.now().astimezone().strftime(fmt)
    template = env.from_string(source)
    variables = frozenset(find_undeclared_variables(env.parse(source)) - env.globals.keys())
    # A plain dict instead of the chain of dicts that Jinja copies at every rendering.
    template.globals = dict(template.globals)
    return template, variables


class _Sandbox(ImmutableSandboxedEnvironment):
    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Answers as the base class, but sooner for `loop.first` and the like: most templates ask for each message."""
        if type(obj) is LoopContext:
            return not attr.startswith("_")
        return super().is_safe_attribute(obj, attr, value)


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's class attribute)

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
