"""Aliases: other names of models, with a fallback, and shares of the requests for other models."""

import hashlib
import secrets
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError

from app.keys import Keys
from app.messages.kinds import Task
from app.pools.schema import Alias, alias_problem
from app.running.loops import keep
from app.store import Wire
from app.telemetry import logger

log = logger(__name__)

_EVERY_S = 1.0


class Served(Protocol):
    """A model."""

    @property
    def task(self) -> Task: ...


class Named(Protocol):
    """A request's body."""

    @property
    def model(self) -> str: ...

    def renamed(self, model: str) -> Any: ...

    def model_copy(self, *, update: Mapping[str, Any]) -> Any: ...


B = TypeVar("B", bound=Named)


@dataclass(frozen=True)
class AliasTurn:
    """The circumstances of one request's choice among the models of an alias."""

    key: str = ""  # equal keys choose the same; empty: each request chooses anew
    fixed: bool = False  # whichever models have workers: the request may be a repeated one
    refused: str = ""  # the model that has just refused it


ANY = AliasTurn()


def choose(name: str, alias: Alias, key: str, rank: Callable[[str], int]) -> str:
    """The model of a request: of the highest rank. Its share comes first, then the primary model, then the fallback."""
    return max((shared(name, alias, key), *_in_line(alias)), key=rank)


def _in_line(alias: Alias) -> list[str]:
    return [model for model in (alias.primary, alias.fallback) if model]


def shared(name: str, alias: Alias, key: str) -> str:
    """The model that gets the share of which `key` is a part. With growing shares, a key changes its model once."""
    digest = hashlib.sha256(f"{name}\0{key}".encode()).digest()
    point = int.from_bytes(digest[:8]) / 2**64
    for model, share in alias.split.items():
        if point < share:
            return model
        point -= share
    return alias.primary


class Aliases:
    """The process's table of aliases. A request reads no Redis for it."""

    def __init__(
        self,
        file_aliases: Mapping[str, Alias],
        models: Mapping[str, Served],
        pipelines: Container[str] = (),
        usable: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`file_aliases`: those of the pools file. `models`: by name, of the file and the LoRA adapters of now.

        `pipelines`: the names of those. `usable`: whether a model may have room.
        """
        self._declared, self._models, self._pipelines, self._usable = dict(file_aliases), models, pipelines, usable
        self.table: Mapping[str, Alias] = self._declared

    def with_usable(self, usable: Callable[[str], bool]) -> "Aliases":
        """The declared aliases again, where it is known which models may have room."""
        return Aliases(self._declared, self._models, self._pipelines, usable)

    def problem(self, name: str, alias: Alias) -> str | None:
        if name in self._pipelines:
            return "there is a pipeline of that name"
        return alias_problem(name, alias, {model: served_model.task for model, served_model in self._models.items()})

    def primary(self, name: str) -> str:
        """The model for which an alias stands in the first place, or `name` itself."""
        alias = self.table.get(name)
        if alias is None:
            return name
        return next((model for model in _in_line(alias) if model in self._models), alias.primary)

    def model(self, name: str, session: str | None, turn: AliasTurn) -> str:
        """The model for which `name` stands in this request."""
        alias = self.table.get(name)
        if alias is None:
            return name

        def rank(model: str) -> int:
            """Whether it may have room is of a fraction of a second ago, so that no model is excluded by it."""
            if model == turn.refused:
                return -1
            return (model in self._models) + (not turn.fixed and self._usable(model))

        return choose(name, alias, session or turn.key or secrets.token_hex(8), rank)

    def has_other(self, name: str, model: str) -> bool:
        """Whether a request that `model` refuses may go to another one."""
        alias = self.table.get(name)
        return alias is not None and any(other != model and other in self._models for other in _in_line(alias))

    def changed(self, records: Mapping[bytes, bytes]) -> None:
        """`records`: the hash in Redis. A bad one counts for nothing; it is not written by our own endpoint."""
        table = dict(self._declared)
        for name, raw in records.items():
            try:
                table[name.decode()] = Alias.model_validate_json(raw)
            except (ValidationError, UnicodeDecodeError) as exc:
                log.error("alias_not_understood", error=str(exc))
        # Its models may be unknown here: an adapter that was removed, or one of a newer pools file than this replica's.
        self.table = {name: alias for name, alias in table.items() if name not in self._models}

    async def refresh(self, wire: Wire, keys: Keys) -> None:
        """Raises: StoreDown."""
        (fields,) = await wire.execute([("HGETALL", keys.aliases())])
        self.changed(dict(zip(fields[::2], fields[1::2], strict=True)))

    async def run(self, wire: Wire, keys: Keys) -> None:
        """Keeps up with Redis until cancelled. While Redis is away, what was known stays known."""
        await keep("aliases_not_read", partial(self.refresh, wire, keys), _EVERY_S)
