"""Options as an engine's own command line has them (`--max-model-len 8192`), as settings of a pool. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import yaml

from app.errors import SettingsError
from app.pools.engine_args import merged
from app.pools.yaml_loader import read_yaml

# Names of vLLM's and SGLang's options for what a pool has as a setting of its own.
_POOL_SETTINGS: Mapping[str, str] = {
    "served_model_name": "model",
    "max_model_len": "max_model_len",
    "context_length": "max_model_len",
    "max_num_seqs": "max_running",
    "max_running_requests": "max_running",
    "block_size": "block_size",
    "page_size": "block_size",
    "tensor_parallel_size": "tensor_parallel_size",
    "tp_size": "tensor_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "dp_size": "data_parallel_size",
    "chat_template": "chat_template",
}


def pool_settings(options: Sequence[str]) -> dict[str, Any]:
    """A pool's settings for an engine's options, among them `args`. Raises: SettingsError."""
    settings: dict[str, Any] = {}
    for name, value, _ in named_options(options):
        if own := _POOL_SETTINGS.get(name):
            settings[own] = value
        else:
            *above, last = name.split(".")
            below: dict[str, Any] = {last: value}
            for key in reversed(above):
                below = {key: below}
            settings["args"] = merged(settings.get("args", {}), below)
    return settings


def named_options(options: Sequence[str]) -> Iterator[tuple[str, Any, Sequence[str]]]:
    """Names, values, and the texts that say them. An option alone is true, `--no-name` false; several are a list."""
    starts = [number for number, text in enumerate(options) if text.startswith("--")]
    if options and starts[:1] != [0]:
        raise SettingsError(f"{options[0]!r} is no option: write engine options as --name value")
    for start, end in pairwise([*starts, len(options)]):
        name, equals, first = options[start].removeprefix("--").partition("=")
        values = [_value(name, text) for text in ([first] if equals else []) + [*options[start + 1 : end]]]
        name = name.replace("-", "_")
        if not all(name.split(".")):
            raise SettingsError(f"{options[start]!r} is no option: write engine options as --name value")
        if values:
            yield name, values[0] if len(values) == 1 else values, options[start:end]
        else:
            yield name.removeprefix("no_"), not name.startswith("no_"), options[start:end]


def _value(name: str, text: str) -> Any:
    try:
        value = read_yaml(text)
    except yaml.YAMLError as exc:
        raise SettingsError(f"--{name} {text}: the value is not YAML: {exc}") from exc
    if isinstance(value, dict) and any(below is None and ":" in str(key) for key, below in value.items()):
        raise SettingsError(f"--{name} {text}: no JSON; its quotes are lost, unless it is in quotes of its own")
    return value
