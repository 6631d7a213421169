"""The benchmark of tracing asks as API replicas do: what a `Generation` uses of its dispatcher is there."""

from ops.bench import tracing


async def test_each_way_of_asking_is_measured() -> None:
    (turn,) = await tracing._turns(None, 1, lambda _: None)
    assert turn.keys() == {"off", "refused", "not_begun", "sampled"}
    assert min(turn.values()) > 0
