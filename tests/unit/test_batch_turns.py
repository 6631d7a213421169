"""Choice of the batches that the leader reads at a look."""

from hypothesis import given
from hypothesis import strategies as st

from app.batch.turns import _NEW, _OF_KEY, to_read
from app.ids import BatchId, KeyId

CROWDS = st.lists(st.integers(0, 90), min_size=1, max_size=4)


def batches(crowds: list[int]) -> tuple[list[BatchId], dict[BatchId, KeyId]]:
    """Batch IDs, so many of each key, in interleaved order; and the owner of each."""
    owners = {BatchId(f"{key}-{i}"): KeyId(str(key)) for key, many in enumerate(crowds) for i in range(many)}
    return sorted(owners, key=lambda id_: id_.partition("-")[2]), owners


@given(CROWDS, st.integers(0, 99), st.data())
def test_each_batch_has_its_turn_and_no_key_has_more_than_its_part(
    crowds: list[int], turn: int, data: st.DataObject
) -> None:
    """The number of another key's batches doesn't matter."""
    ids, owners = batches(crowds)
    busy = set(data.draw(st.lists(st.sampled_from(ids), max_size=5))) if ids else set()
    read_ids: set[BatchId] = set()
    for number in range(turn, turn + max(crowds) // _OF_KEY + 1):
        read = to_read(ids, owners, busy, number)
        assert read == [id_ for id_ in ids if id_ in set(read)], "the most urgent first"
        assert busy <= set(read)
        for key in map(str, range(len(crowds))):
            assert sum(owners[id_] == key and id_ not in busy for id_ in read) <= _OF_KEY
        read_ids |= set(read)
    if not busy:
        assert read_ids == set(ids)


def test_new_batches_are_read_at_once_and_a_crowd_of_them_in_parts() -> None:
    """Their owners are known only when they are read."""
    ids, owners = batches([2000])
    assert to_read([*ids, BatchId("new")], owners, (), 1)[-1] == "new"
    assert len(to_read(ids, {}, (), 1)) == _NEW
