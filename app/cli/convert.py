"""`xylem convert`: a command line of vLLM's as a pools file."""

import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from app.cli.report import refuse
from app.errors import SettingsError

_SHORT = re.compile(r"-[a-z]")
_STARTS = ("serve", "vllm.entrypoints.openai.api_server")
_VARIABLE = re.compile(r"([A-Z_][A-Z0-9_]*)=")
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG])")  # vLLM's: 32k is 32,000, and 32K is 32,768
_POWER = {"k": 1, "m": 2, "g": 3}
# Values of `--task`, `--runner` and `--convert`, by which vLLM knows a model that writes no text.
_TASKS = dict.fromkeys(("embed", "embedding", "pooling"), "embed") | dict.fromkeys(("classify", "score"), "classify")


class Conversion(NamedTuple):
    pools: str
    elsewhere: Mapping[str, str]  # what else was said, and what it is here
    unknown_options: Sequence[str]


def convert(
    command: Annotated[str, typer.Argument(help="In quotes, as it stands in your script: 'vllm serve MODEL --…'")],
) -> None:
    """Print the pools file for a `vllm serve` command. Names options that are elsewhere, or unknown (exit code 2)."""
    try:
        conversion = converted_from(shlex.split(command.replace("\\\n", " "), comments=True))
    except (SettingsError, ValueError) as exc:
        refuse(exc.message if isinstance(exc, SettingsError) else str(exc))
    for option, here in conversion.elsewhere.items():
        typer.echo(f"# {option}: {here}")
    typer.echo(conversion.pools, nl=False)
    if conversion.unknown_options:
        refuse(
            "this version of vLLM has no such option: " + ", ".join(f"--{name}" for name in conversion.unknown_options)
        )


def converted_from(words: Sequence[str]) -> Conversion:
    """Raises: SettingsError."""
    from app.pools.engine_options import named_options, pool_settings

    model, options = _parts(words)
    table = _table()
    engine_names = set(table["engine"]["options"].split())
    here: dict[str, Any] = {}
    own_options, unknown_options = list[str](), list[str]()
    variables = [match[1] for word in words if word not in options and (match := _VARIABLE.match(word))]
    elsewhere = dict.fromkeys(variables, "set it for the workers")
    for name, value, texts in named_options([_counted(_long(word)) for word in options]):
        first = name.partition(".")[0]
        if name == "model":
            model = str(value)
        elif name == "revision":
            here["revision"] = value
        elif name in ("task", "runner", "convert"):
            here |= {"task": _TASKS[value]} if value in _TASKS else {}
        elif name in table["pool"]:
            here.setdefault(table["pool"][name], value)
        elif name == "generation_config" and value in ("auto", "vllm"):
            here[name] = "none" if value == "vllm" else value
        elif first in table["elsewhere"]:
            elsewhere[f"--{first.replace('_', '-')}"] = table["elsewhere"][first]
        elif first in engine_names:
            own_options += texts
        else:
            unknown_options.append(name.replace("_", "-"))
    if not model:
        raise SettingsError("the command names no model: 'vllm serve MODEL …', with the model first, or --model MODEL")
    return Conversion(_pool(model, here, pool_settings(own_options)), elsewhere, unknown_options)


def _pool(model: str, here: dict[str, Any], settings: dict[str, Any]) -> str:
    import yaml

    from app.cli.model_pools import hub_address

    address, revision = hub_address(model), here.pop("revision", None)
    path = address or model
    if address and revision and "@" not in address:
        path = f"{address}@{revision}"
    names = settings.pop("model", model)  # several: the others become aliases
    name, *others = names if isinstance(names, list) else [names]
    pool = {"model": str(name), "engine": "vllm", "path": path} | here | settings
    document: dict[str, Any] = {"pools": {"decode-pool-a": pool}}
    if others:
        document["aliases"] = {str(other): {"primary": str(name)} for other in others}
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def _parts(words: Sequence[str]) -> tuple[str, list[str]]:
    """The model, if it stands before the options, and these. What stands before `serve` is passed over."""
    starts = [number for number, word in enumerate(words) if word in _STARTS]
    rest = [*words[starts[0] + 1 :]] if starts else []
    if not starts:
        raise SettingsError("no `vllm serve` in it; write the whole command in quotes")
    return (rest[0], rest[1:]) if rest and not rest[0].startswith("-") else ("", rest)


def _long(word: str) -> str:
    """The word with its long name, if it is a short option; one that vLLM doesn't have gets a second dash, too."""
    if not _SHORT.match(word):
        return word
    name = re.split(r"[.=]", word[1:], maxsplit=1)[0]
    return f"--{_table()['short'].get(name, name)}{word[1 + len(name) :]}"


def _counted(word: str) -> str:
    """The word with the number that it stands for, if it is one of thousands or more."""
    option, equals, value = word.rpartition("=")
    match = _COUNT.fullmatch(value)
    if match is None:
        return word
    base = 1000 if match[2].islower() else 1024
    return f"{option}{equals}{round(float(match[1]) * base ** _POWER[match[2].lower()])}"


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("vllm_serve.toml").read_text())
