"""Commands in `commands:<worker>` or `commands:<api>`, which can't wait behind requests, and their replies."""

from collections.abc import Callable

from msgspec import Struct

from app.ids import KeyId, RequestId, RunId, WorkerId
from app.messages.kinds import ExpertAction, PauseMode
from app.messages.media import MediaKind
from app.messages.wanted import WeightsSource
from app.messages.wire import decoder


class Cancel(Struct, frozen=True, array_like=True, tag="c"):
    """Stop this run: nobody awaits it any more."""

    run: RunId


class ClearCache(Struct, frozen=True, array_like=True, tag="k"):
    """Forget all cached prefixes, and report in `reply:<id>`."""

    id: str


class LoadAdapter(Struct, frozen=True, array_like=True, tag="a"):
    """The adapters that are wanted have changed; or requests wait for one of them."""

    adapter: str = ""  # `Adapter.versioned` of that one


class ExpandMedia(Struct, frozen=True, array_like=True, tag="e"):
    """Tell in `reply:<id>` what stands in a prompt for a medium of this shape."""

    id: str
    kind: MediaKind
    shape: tuple[int, ...]  # as in `Media`
    number: int = 0  # how many of the kind are before it
    of: int = 1  # how many of the kind the prompt has, if that matters


class LookAtPrefixes(Struct, frozen=True, array_like=True, tag="l"):
    """The pool's prefixes have changed."""


class Sleep(Struct, frozen=True, array_like=True, tag="s"):
    """Leave routing and sleep. Reported in `reply:<id>`, as all that follow."""

    id: str
    level: int
    mode: PauseMode


class Wake(Struct, frozen=True, array_like=True, tag="w"):
    """Wake up, and come back to routing after one token."""

    id: str
    tags: list[str] = []  # what to wake only; empty: all


class Pause(Struct, frozen=True, array_like=True, tag="p"):
    """Leave routing and stop computing."""

    id: str
    mode: PauseMode


class Resume(Struct, frozen=True, array_like=True, tag="r"):
    """Go on computing, and come back to routing."""

    id: str


class SetWeights(Struct, frozen=True, array_like=True, tag="u"):
    """Leave routing, take other weights, and come back."""

    id: str
    version: str
    source: WeightsSource | None  # None: the pool's own
    mode: PauseMode  # for running requests; one that is paused stays as it is


class Profile(Struct, frozen=True, array_like=True, tag="f"):
    """Start or stop the engine's profiler."""

    id: str
    on: bool
    name: str = ""


class RecordExperts(Struct, frozen=True, array_like=True, tag="x"):
    """Start or stop the record of how tokens are spread over the model's experts, or write it down."""

    id: str
    action: ExpertAction


class Scale(Struct, frozen=True, array_like=True, tag="n"):
    """Leave routing, have another number of data-parallel ranks, and come back."""

    id: str
    ranks: int


StateCommand = Sleep | Wake | Pause | Resume | SetWeights | Profile | RecordExperts | Scale
WorkerCommand = Cancel | ClearCache | ExpandMedia | LoadAdapter | LookAtPrefixes | StateCommand


class Look(Struct, frozen=True, array_like=True):
    """Asks an API replica about a request. It answers in `reply:<id>`, as JSON; empty: it doesn't know the request."""

    id: str
    request: RequestId
    key: KeyId | None  # only if the request came with that API key; None: with any or none


class Reply(Struct, frozen=True, array_like=True):
    worker: WorkerId
    done: bool
    reason: str = ""
    expansion: list[int] = []  # token ids: what `ExpandMedia` asks for
    refused: bool = False  # what was asked for can't be, by any worker


decode_worker_command: Callable[[bytes], WorkerCommand] = decoder(WorkerCommand)  # type: ignore[arg-type]  # a union is no type to mypy
decode_reply = decoder(Reply)
decode_runs = decoder(list[int])
decode_look = decoder(Look)
