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
        changed_fields = [field for field, group in groups.items() if before.get(field) != group]
        gone_groups = [before[field] for field in before.keys() - groups.keys()]
        old = [
            name for group in (*gone_groups, *(before.get(f, b"") for f in changed_fields)) for name in entries(group)
        ]
        new = {name: entry for field in changed_fields for name, entry in entries(groups[field]).items()}
        for name in old:
            self.entries.pop(name, None)
        self.entries |= new
        return dict.fromkeys(old, NOTHING) | new
