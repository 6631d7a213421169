"""Merging deltas, for readers that are behind, or that want the answer whole."""

from collections.abc import Hashable, Iterable
from typing import TypeVar

from app.messages.events import Delta, Event

K = TypeVar("K", bound=Hashable)


def merge(deltas: Iterable[tuple[K, Delta]]) -> list[tuple[K, Delta]]:
    """One delta per choice."""
    by_choice: dict[K, list[Delta]] = {}
    for choice, d in deltas:
        by_choice.setdefault(choice, []).append(d)
    return [(choice, _join(ds)) for choice, ds in by_choice.items()]


def merge_events(events: list[Event]) -> list[Event]:
    """One delta per choice and version of the weights; all else stays behind the deltas."""
    deltas = merge([((e.request, e.attempt, e.index, e.weights), e) for e in events if type(e) is Delta])
    return [*[d for _, d in deltas], *[e for e in events if type(e) is not Delta]]


def _join(deltas: list[Delta]) -> Delta:
    first, last = deltas[0], deltas[-1]
    logprobs = None if all(d.logprobs is None for d in deltas) else [lp for d in deltas for lp in d.logprobs or ()]
    return Delta(
        first.request,
        first.attempt,
        text="".join(d.text for d in deltas),
        tokens=[t for d in deltas for t in d.tokens],
        index=first.index,
        finish=last.finish,
        stop=last.stop,
        logprobs=logprobs,
        prompt_logprobs=first.prompt_logprobs,
        weights=last.weights,
    )
