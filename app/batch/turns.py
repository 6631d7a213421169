"""Chooses the batches that the leader reads at a look: one client's crowd must not delay those of others. Pure."""

from collections.abc import Collection, Mapping, Sequence

from app.ids import BatchId, KeyId

_OF_KEY = 20  # batches of one key at one look
_NEW = 500  # batches that have not been read before


def to_read(
    ids: Sequence[BatchId], owners: Mapping[BatchId, KeyId], busy: Collection[BatchId], turn: int
) -> list[BatchId]:
    """Batches to read, of all that have not ended, in order: the `busy` ones, new ones, and some of each key in turn.

    `owners`: of those that were read before. `busy`: those of which workers have parts, which have to be counted.
    `turn`: +1 for each look.
    """
    of_key: dict[KeyId, list[BatchId]] = {}
    new: list[BatchId] = []
    for id_ in ids:
        owner = owners.get(id_)
        if owner is None:
            new.append(id_)
        elif id_ not in busy:
            of_key.setdefault(owner, []).append(id_)
    due = {*busy, *new[:_NEW]}
    for waiting in of_key.values():
        first = turn * _OF_KEY % len(waiting)
        due.update((waiting + waiting)[first : first + min(_OF_KEY, len(waiting))])
    return [id_ for id_ in ids if id_ in due]
