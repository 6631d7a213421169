"""Finds where media are in a prompt, and what it is once these are expanded. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from app.messages.media import MediaKind

Target = tuple[int, ...]  # the tokens that stand for one medium before it is expanded
Join = tuple[int, int, int]  # two tokens, and the one that is written instead


class Place(NamedTuple):
    begin: int
    kind: MediaKind


def places(prompt: Sequence[int], targets: Mapping[MediaKind, Target]) -> Iterator[Place]:
    """The places of media, in their order.

    Of kinds whose targets begin with the same token, the one whose target is there.
    """
    firsts: dict[int, list[MediaKind]] = {}
    for kind, target in sorted(targets.items(), key=lambda one: -len(one[1])):
        firsts.setdefault(target[0], []).append(kind)
    behind = 0
    for begin, token in enumerate(prompt):
        if token in firsts and begin >= behind:
            for kind in firsts[token]:
                if tuple(prompt[begin : begin + len(targets[kind])]) == targets[kind]:
                    behind = begin + len(targets[kind])
                    yield Place(begin, kind)
                    break


def joined(tokens: Sequence[int], joins: Iterable[Join]) -> tuple[list[int], list[int]]:
    """The tokens with each pair as one, join after join; and of each token before, its place now."""
    out, where = list(tokens), list(range(len(tokens)))
    for left_token, right_token, instead in joins:
        out, new_places = _joined(out, left_token, right_token, instead)
        where = [new_places[place] for place in where]
    return out, where


def _joined(tokens: list[int], opening: int, right: int, instead: int) -> tuple[list[int], list[int]]:
    out: list[int] = []
    new_places: list[int] = []
    skips = False
    for place, token in enumerate(tokens):
        if skips:
            skips = False
            new_places.append(len(out) - 1)
            continue
        skips = token == opening and tokens[place + 1 : place + 2] == [right]
        new_places.append(len(out))
        out.append(instead if skips else token)
    return out, new_places
