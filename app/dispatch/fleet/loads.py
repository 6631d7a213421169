"""Reads what is reserved at the places of a pool, as `loads:<pool>` tells it. No I/O."""

from collections.abc import Mapping
from struct import Struct as Layout

ENTRY = Layout("<7id")  # of a place: requests, blocks, tokens, waiting, pulls, aside, their blocks, since (ms)
NOTHING = ENTRY.pack(*[0] * 8)


def entries(group: bytes) -> dict[bytes, bytes]:
    """The entries of one field's value, by place.

    As `load.lua` writes it: a name's length, the name and its entry, and so on.
    """
    by_place, at = {}, 0
    while at < len(group):
        name = at + 1
        sums = name + group[at]
        at = sums + ENTRY.size
        by_place[group[name:sums]] = group[sums:at]
    return by_place


class Loads:
    """Takes whole reads of the hash, and looks only at those of its fields that have changed since the last one."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}  # by place
        self._groups: Mapping[bytes, bytes] = {}

    def take(self, groups: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """`groups`: all fields. The entries that may have changed; of a place that has none any more, `NOTHING`."""
        before, self._groups = self._groups, groups
        if before == groups:
            return {}
        old, new = dict[bytes, bytes](), dict[bytes, bytes]()
        for field in before.keys() | groups.keys():
            group, group_before = groups.get(field, b""), before.get(field, b"")
            if group != group_before:
                old |= entries(group_before)
                new |= entries(group)
        for name in old:
            self.entries.pop(name, None)
        self.entries |= new
        return dict.fromkeys(old, NOTHING) | new
