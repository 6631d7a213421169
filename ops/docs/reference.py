"""`make reference`: what is made from the code and from tables of data.

The pages of docs/reference, the keys in ops/acl/redis-acl.conf, llms.txt, and the table in README.md.
"""

import ast
import inspect
import io
import json
import textwrap
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel

from ops.docs import features_page, nav, redis_keys

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
POOLS_SCHEMA = ROOT / "app" / "cli" / "pools" / "schema.json"
_MARK = "<!-- What follows is made from the code: `make reference` -->"


def settings() -> str:
    """The environment variables, from `app/settings.py`."""
    from app.settings import Settings

    schema, meanings = Settings.model_json_schema()["properties"], comments(Settings)
    rows = []
    for name in Settings.model_fields:
        field = Settings.model_fields[name]
        default = ",".join(sorted(field.default)) if isinstance(field.default, frozenset) else field.default
        default_text = "none" if default in (None, "") or field.default_factory else _code(default)
        rows.append((f"`XYLEM_{name.upper()}`", default_text, _kind(schema[name]), meanings.get(name, "")))
    return _table(("variable", "default", "value", "meaning"), rows)


def pools() -> str:
    """The keys of the pools file, from `app/pools/schema.py`: each part of it has a table."""
    from app.pools.schema import PoolsFile

    titles: dict[type[BaseModel], str] = {}
    _name_parts(PoolsFile, "", titles)
    text = "\n\n".join(f"## {title or 'The file'}\n\n{_model(model)}" for model, title in titles.items())
    for model, title in titles.items():
        anchor = "".join(letter for letter in title.lower() if letter.isalnum() or letter in "_-")
        text = text.replace(f"`{model.__name__}`", f"[{model.__name__}](#{anchor})")
    return text


def pools_schema() -> str:
    """The JSON schema of pools files, for editors, whose descriptions are the comments of `app/pools/schema.py`."""
    from app.pools import schema as parts

    document = parts.PoolsFile.model_json_schema()
    for name, part in [("PoolsFile", document), *document["$defs"].items()]:
        model = getattr(parts, name)
        part["description"] = inspect.cleandoc(model.__doc__ or "")
        for key, meaning in comments(model).items():
            own_part = getattr(parts, part["properties"][key].get("$ref", "").rpartition("/")[2], None)
            part["properties"][key]["description"] = meaning or inspect.cleandoc(own_part.__doc__)
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **document, "title": "Xylem's pools file"}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _name_parts(model: type[BaseModel], title: str, titles: dict[type[BaseModel], str]) -> None:
    """Adds the part and those in it to `titles`, by the keys that lead to them; the first of several counts."""
    if model not in titles:
        titles[model] = f"`{title}`" if title else ""
        for name, field in model.model_fields.items():
            for part, suffix in _parts(field.annotation):
                _name_parts(part, f"{title}.{name}{suffix}".lstrip("."), titles)


def _parts(kind: Any, suffix: str = "") -> Iterator[tuple[type[BaseModel], str]]:
    """The models in a type, each with what stands behind the key: `.<name>` in a mapping, `[]` in a list."""
    if inspect.isclass(kind) and issubclass(kind, BaseModel):
        yield kind, suffix
    step = {dict: ".<name>", list: "[]"}.get(get_origin(kind), "")
    for inner in get_args(kind):
        yield from _parts(inner, suffix + step)


def _model(model: type[BaseModel]) -> str:
    schema, meanings, rows = model.model_json_schema(), comments(model), []
    for name, field in model.model_fields.items():
        is_part = isinstance(field.default, BaseModel)
        default = "needed" if field.is_required() else "below" if is_part else _code(field.default)
        meaning = meanings.get(name) or " ".join(inspect.getdoc(part) or "" for part, _ in _parts(field.annotation))
        rows.append((f"`{name}`", default, _kind(schema["properties"][name]), meaning))
    return f"{inspect.cleandoc(model.__doc__ or '')}\n\n{_table(('key', 'default', 'value', 'meaning'), rows)}"


class MetricDeclared(NamedTuple):
    name: str  # with `_total`, of a counter
    kind: str
    labels: tuple[str, ...]
    meaning: str


def metrics() -> str:
    rows = [
        (f"`{one.name}`", one.kind, ", ".join(f"`{label}`" for label in one.labels), one.meaning)
        for one in declared_metrics()
    ]
    return _table(("metric", "type", "labels", "meaning"), rows)


def declared_metrics() -> list[MetricDeclared]:
    """The metrics of the replica, of batches, and of workers."""
    from app import telemetry
    from app.api.operations.batch_metrics import batch_metrics
    from app.api.operations.budget_metrics import budget_metrics
    from app.api.operations.deployment_metrics import workers_by_state
    from app.api.operations.planner_metrics import planner_metrics
    from app.api.operations.usage_metrics import usage_metrics
    from app.engines.base import EngineStats
    from app.messages.lease import WorkerMetric
    from workers.engine.worker_metrics import DEFINITIONS, Definition, of_some

    declarations = []
    for metric in vars(telemetry).values():
        if isinstance(metric, MetricWrapperBase):
            (family,) = metric.describe()
            labels = metric._labelnames  # noqa: SLF001 (it tells no one else)
            declarations.append(_metric(family.name, family.type, family.documentation, labels))
    declarations += [
        _metric(of_all.name, of_all.type, of_all.documentation, getattr(of_all, "_labelnames", ()))
        for of_all in (
            *batch_metrics([], {}, [], 0.0),
            workers_by_state([], []),
            *planner_metrics({}),
            *usage_metrics(0),
            *budget_metrics(b"\x90"),
        )
    ]
    own: list[Definition | WorkerMetric] = [
        *DEFINITIONS,
        *of_some(EngineStats(paint_steps=1, drafts=1, accepted_tokens=(1,))),
    ]
    return declarations + [_metric(of_one.name, of_one.kind, of_one.meaning, ("pool", "worker")) for of_one in own]


def _metric(name: str, kind: str, meaning: str, labels: Iterable[str]) -> MetricDeclared:
    return MetricDeclared(f"{name}_total" if kind == "counter" else name, kind, tuple(labels), meaning)


def openapi() -> dict[str, Any]:
    """The API's OpenAPI document."""
    from app.api.main import create_app
    from app.settings import Settings

    api: Any = create_app(Settings(pools_file=ROOT / "app/cli/pools/mock.yaml", home=ROOT / ".xylem"))
    document: dict[str, Any] = api._app.openapi()  # noqa: SLF001 (the app behind what guards it)
    return document


def http() -> str:
    """Every endpoint and every schema, from the API's OpenAPI document."""
    document = openapi()
    families: dict[str, list[str]] = {
        tag["name"]: [f"## {tag['name'].title()}", tag["description"]] for tag in document["tags"]
    }
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            families[operation["tags"][0]] += _operation(f"{method.upper()} {path}", operation)
    parts = [part for family in families.values() for part in family] + ["## Schemas"]
    for name, schema in document["components"]["schemas"].items():
        parts.append(f"### {name}\n\n{inspect.cleandoc(schema.get('description', ''))}".rstrip())
        parts.append(_fields(schema) or _kind(schema))
    return "\n\n".join(parts)


def _operation(route: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"### {route}\n\n`{operation['operationId']}`: {operation.get('description', '')}".rstrip()
    yield from _inputs(operation)
    for status, answer in operation["responses"].items():
        kinds = "; ".join(f"{kind}: {_kind(content.get('schema', {}))}" for kind, content in _contents(answer))
        which = "An error" if status == "default" else status
        yield f"**{which}**: {answer['description']}" + (f" ({kinds})" if kinds else "")


def _inputs(operation: dict[str, Any]) -> Iterator[str]:
    parameters = operation.get("parameters", [])
    if parameters:
        rows = [(f"`{p['name']}`", p["in"], _kind(p["schema"]), p.get("description", "")) for p in parameters]
        yield _table(("parameter", "in", "value", "meaning"), rows)
    for kind, content in _contents(operation.get("requestBody", {})):
        yield f"The body, {kind}:\n\n{_fields(content['schema']) or _kind(content['schema'])}"


def _contents(part: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(f"`{kind}`", content) for kind, content in part.get("content", {}).items()]


def _fields(schema: dict[str, Any]) -> str:
    """The properties of an object; empty if it is no object."""
    required_names = schema.get("required", [])
    rows = [
        (f"`{name}`", "needed" if name in required_names else _default(field), _kind(field), _text(field))
        for name, field in schema.get("properties", {}).items()
    ]
    return _table(("field", "default", "value", "meaning"), rows) if rows else ""


def _default(schema: dict[str, Any]) -> str:
    return _code(schema["default"]) if "default" in schema else ""


def _text(schema: dict[str, Any]) -> str:
    return inspect.cleandoc(schema.get("description", "")).replace("\n", " ")


_BOUNDS = {
    "minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<",
    "minLength": "characters ≥", "maxLength": "characters ≤", "minItems": "items ≥", "maxItems": "items ≤",
}  # fmt: skip


def _kind(schema: dict[str, Any]) -> str:
    """The values that a JSON schema allows, in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})" if "/components/" in schema["$ref"] else f"`{name}`"
    if "enum" in schema or "const" in schema:
        return " \\| ".join(_code(value) for value in schema.get("enum", [schema.get("const")]))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return ", or ".join(dict.fromkeys(_kind(part) for part in schema[key]))
    if schema.get("type") == "array":
        kind = f"list of {_kind(schema.get('items', {}))}"
    elif value := next(iter(schema.get("patternProperties", {}).values()), schema.get("additionalProperties")):
        kind = "object" if value is True else f"mapping to {_kind(value)}"
    elif "properties" in schema:
        kind = "object with " + ", ".join(f"`{name}`" for name in schema["properties"])
    else:
        kind = str(schema.get("type", "anything"))
    return " ".join([kind, *(f"{sign} {_number(schema[bound])}" for bound, sign in _BOUNDS.items() if bound in schema)])


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def comments(model: type[BaseModel]) -> dict[str, str]:
    """The comments above or beside fields, by field."""
    source = textwrap.dedent(inspect.getsource(model))
    comment_by_line: dict[int, tuple[str, bool]] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comment_by_line[token.start[0]] = token.string.lstrip("# "), not token.line[: token.start[1]].strip()
    (class_node,) = ast.parse(source).body
    assert isinstance(class_node, ast.ClassDef)
    meanings = {}
    for field in class_node.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            first = field.lineno
            while comment_by_line.get(first - 1, ("", False))[1]:
                first -= 1
            text = " ".join(
                comment_by_line[n][0] for n in range(first, (field.end_lineno or first) + 1) if n in comment_by_line
            )
            meanings[field.target.id] = text[:1].upper() + text[1:]
    return meanings


def _code(value: object) -> str:
    if value is None:
        return "null"
    return f"`{value}`" if isinstance(value, str | Path) else f"`{json.dumps(value, default=str)}`"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(' '.join(cell.split()) for cell in line)} |" for line in lines)


def commands() -> str:
    """Every command of `xylem` with all its options, in typer's own words."""
    import typer
    from typer.cli import get_docs_for_click

    from app.cli.main import cli

    group = typer.main.get_command(cli)
    for one in [group, *group.commands.values()]:
        for command in getattr(one, "commands", {}).values():
            command.short_help = " ".join(command.help.partition("\n\n")[0].split())  # typer's own is cut short
    return get_docs_for_click(obj=group, ctx=typer.Context(group, info_name="xylem"), name="xylem", indent=1).strip()


def redis() -> str:
    return _table(("key", "type", "users", "meaning"), redis_keys.rows())


PAGES = {
    "settings": settings,
    "pools": pools,
    "metrics": metrics,
    "commands": commands,
    "http": http,
    "redis": redis,
    "features": features_page.page,
}


def page(name: str) -> str:
    """The whole page: its own introduction, and what is made from the code behind a mark."""
    text, mark, _ = (FOLDER / f"{name}.md").read_text().partition(_MARK)
    assert mark, f"{name}.md has no mark"
    return f"{text}{mark}\n\n{PAGES[name]()}\n"


if __name__ == "__main__":
    for name in PAGES:
        (FOLDER / f"{name}.md").write_text(page(name))
    POOLS_SCHEMA.write_text(pools_schema())
    redis_keys.ACL.write_text(redis_keys.acl())
    features_page.README.write_text(features_page.readme())
    nav.LLMS.write_text(nav.llms_text())
