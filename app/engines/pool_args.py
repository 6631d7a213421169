"""Reading the `args` of a pool, as the adapters of all engines do."""

import os
from collections.abc import Container, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from app.errors import SettingsError

M = TypeVar("M", bound=BaseModel)


def take_environment(arguments: dict[str, Any]) -> dict[str, str]:
    """Takes `env` out of the arguments. Raises: SettingsError."""
    environment = arguments.pop("env", {})
    if not isinstance(environment, dict) or not all(isinstance(v, str) for v in (*environment, *environment.values())):
        raise SettingsError(f"args.env={environment!r}: must map names to strings")
    return environment


def set_environment(environment: Mapping[str, str]) -> None:
    """Sets the variables that are not set already."""
    for name, value in environment.items():
        os.environ.setdefault(name, value)


def check_names(arguments: Mapping[str, Any], names: Container[str], own: Container[str], engine: str) -> None:
    """`names`: of the engine's arguments. `own`: those that the pool's other keys say. Raises: SettingsError."""
    for key, value in arguments.items():
        if key not in names:
            raise SettingsError(f"args.{key}={value!r}: {engine} has no such argument")
        if key in own:
            raise SettingsError(f"args.{key}={value!r}: the pool's own settings say this")


def parsed_args(model: type[M], args: Mapping[str, Any]) -> M:
    """The arguments of an engine of our own. Raises: SettingsError naming each bad key and its value."""
    try:
        return model.model_validate(args)
    except ValidationError as exc:
        problems = (f"args.{'.'.join(map(str, e['loc']))}={e['input']!r}: {e['msg']}" for e in exc.errors())
        raise SettingsError("; ".join(problems)) from exc
