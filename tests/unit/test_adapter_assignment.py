"""Assignment of adapters to workers, the requests for them, and the point at which a change has arrived everywhere."""

from hypothesis import given
from hypothesis import strategies as st

from app.adapters.assignment import Member, assign, is_for, order, wanted
from app.adapters.progress import others, progress
from app.adapters.slots import Step, Use, next_step
from app.ids import PoolId, WorkerId
from app.messages.lease import AdapterReport, Lease
from app.messages.wanted import Adapter
from tests.jobs import POOL
from tests.leases import worker

OTHER = PoolId("other")


def adapter(name: str = "a", version: int = 1, **more: object) -> Adapter:
    return Adapter(name, version, "m", "/x", **more)  # type: ignore[arg-type]


def member(name: str, slots: int = 2, seats: int = 10, **more: object) -> Member:
    return Member(WorkerId(name), slots, seats, **more)  # type: ignore[arg-type]


def lease(name: str, *has: str, pool: PoolId = POOL, slots: int = 4, failed: dict[str, str] | None = None) -> Lease:
    return Lease(worker(name, pool=pool, max_adapters=slots, adapters=has), adapters=AdapterReport(failed or {}))


FOUR = [member(f"w{i}") for i in range(4)]
names = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)


@given(names, st.integers(0, 5), st.integers(1, 6), st.integers(0, 3))
def test_slots_are_never_exceeded_and_each_gets_what_there_is(known: list[str], least: int, n: int, slots: int) -> None:
    members = [member(f"w{i}", slots) for i in range(n)]
    assignment = assign([adapter(name, min_workers=least) for name in known], members)
    assert all(len(had) <= slots and len(set(had)) == len(had) for had in assignment.values())
    free = [w for w, had in assignment.items() if len(had) < slots]
    short = [name for name in known if sum(f"{name}@1" in had for had in assignment.values()) < min(least, n)]
    assert all(f"{name}@1" in assignment[w] for name in short for w in free)
    assert assignment == assign([adapter(name, min_workers=least) for name in reversed(known)], members[::-1])


def test_when_a_worker_comes_or_goes_only_its_own_moves() -> None:
    adapters = [adapter(f"a{i}") for i in range(40)]
    members = [member(f"w{i}", slots=100) for i in range(5)]
    before, after = assign(adapters, members), assign(adapters, members[:-1])
    moved_adapters = {name for m in members[:-1] for name in set(after[m.id]) - set(before[m.id])}
    assert moved_adapters == set(before[members[-1].id])


def test_those_that_do_not_live_yet_are_told_apart_from_those_that_failed() -> None:
    """One worker of two and nobody that failed said nothing of the other pool, whose worker started later."""
    one, pools = adapter(), [POOL, OTHER]
    change = progress(one, [lease("w", "a@1")], pools)
    assert (change.workers, change.failed, change.missing, change.done) == (["w"], {}, {OTHER: 1}, True)
    leases = [lease("w", "a@1"), lease("x", pool=OTHER)]
    assert not progress(one, leases, pools).done  # it lives, and is waited for
    failure = progress(one, [leases[0], lease("x", pool=OTHER, failed={"a@1": "no"})], pools)
    assert (failure.failed, failure.missing, failure.done) == ({"x": "no"}, {OTHER: 1}, True)
    both = progress(one, [leases[0], lease("x", "a@1", pool=OTHER)], pools)
    assert (both.workers, both.missing, both.done) == (["w", "x"], {}, True)
    assert progress(one, [leases[0], lease("x", pool=OTHER, slots=0)], pools).missing == {}  # takes no adapters
    assert progress(adapter(min_workers=0), [], pools).missing == {}


def test_a_new_version_is_where_the_old_one_was() -> None:
    assert order(adapter(version=1), FOUR) == order(adapter(version=2), FOUR)


def test_what_one_worker_cannot_load_the_next_does() -> None:
    first, second, *_ = order(adapter(), FOUR)
    members = [member(m.id, failed=frozenset({"a@1"}) if m == first else frozenset()) for m in FOUR]
    assert [w for w, had in assign([adapter()], members).items() if had] == [second.id]


def test_more_workers_have_what_has_more_of_the_load() -> None:
    """Twice the seats that its requests take; never fewer than it says, nor more than there are."""

    def busy(requests: int) -> int:
        return wanted(adapter(min_workers=1), [member("w0", requests={"a@1": requests}), *FOUR[1:]])

    assert [busy(n) for n in (0, 5, 6, 10, 11, 20, 100)] == [1, 1, 2, 2, 3, 4, 4]
    assert wanted(adapter(min_workers=3), FOUR) == 3
    assert wanted(adapter(min_workers=9), FOUR) == 4
    members = [member("w0", slots=1, requests={"a@1": 40}), *[member(f"w{i}", slots=1) for i in range(1, 4)]]
    assignment = assign([adapter("a"), adapter("b")], members)
    assert sorted(name for had in assignment.values() for name in had) == ["a@1", "a@1", "a@1", "b@1"]


def test_an_adapter_is_for_its_models_pools() -> None:
    assert is_for(adapter(), POOL, "m")
    assert not is_for(adapter(), POOL, "another")
    assert not is_for(adapter(pools=[OTHER]), POOL, "m")


def test_a_free_slot_is_taken_what_is_asked_for_first() -> None:
    assert next_step(2, {}, {"a", "b"}, ["a"], ["b"], 0.0) == Step("b")
    assert next_step(2, {"b": Use()}, {"a", "b"}, ["a"], ["b"], 0.0) == Step("a")
    assert next_step(2, {"b": Use(), "a": Use()}, {"a", "b"}, ["a"], ["b"], 0.0) == Step()
    assert next_step(2, {}, set(), ["a"], ["b"], 0.0) == Step()


def test_of_the_idle_ones_the_least_lately_used_goes_and_none_with_requests() -> None:
    uses = {"old": Use(last=1), "older": Use(last=0.5), "busy": Use(2, last=0.1)}
    assert next_step(3, uses, {*uses, "new"}, [], ["new"], 2.0) == Step("new", ["older"])
    assert next_step(1, {"busy": Use(1)}, {"busy", "new"}, [], ["new"], 2.0) == Step()


def test_what_nobody_waits_for_puts_out_only_what_was_not_used_for_long() -> None:
    uses = {"a": Use(last=100.0)}
    assert next_step(1, uses, {"a", "b"}, ["b"], [], 120.0) == Step()
    assert next_step(1, uses, {"a", "b"}, ["b"], [], 161.0) == Step("b", ["a"])
    assert next_step(1, uses, {"a", "b"}, ["b", "a"], [], 999.0) == Step()


def test_what_is_not_wanted_any_more_goes_when_its_requests_have_ended() -> None:
    assert next_step(2, {"a@1": Use(1), "b": Use()}, {"a@2"}, ["a@2"], [], 0.0) == Step("a@2", ["b"])
    assert next_step(1, {"a@1": Use(1)}, {"a@2"}, ["a@2"], [], 0.0) == Step()
    assert next_step(1, {"a@1": Use(0)}, {"a@2"}, ["a@2"], [], 0.0) == Step("a@2", ["a@1"])


def test_a_change_is_done_when_nobody_has_another_version_and_enough_have_this_one() -> None:
    two = adapter(version=2, min_workers=2)
    assert not progress(two, [lease("x", "a@2"), lease("y", "a@1")], [POOL]).done
    assert not progress(two, [lease("x", "a@2"), lease("y")], [POOL]).done
    change = progress(two, [lease("x", "a@2"), lease("y", "a@2"), lease("z")], [POOL])
    assert (change.done, change.workers) == (True, ["x", "y"])
    assert others("a", [lease("x", "a@2"), lease("y", "ab@2")], "a@2") == []


def test_it_does_not_wait_for_workers_that_are_not_there_or_cannot() -> None:
    two = adapter(min_workers=2)
    assert progress(two, [], [POOL]).done
    assert progress(two, [lease("x", slots=0)], [POOL]).done
    assert progress(two, [lease("x", "a@1")], [POOL]).done
    change = progress(two, [lease("x", "a@1"), lease("y", failed={"a@1": "why"})], [POOL])
    assert (change.done, change.failed) == (True, {"y": "why"})
    assert not progress(two, [lease("x", "a@1"), lease("y", pool=OTHER)], [POOL, OTHER]).done
    assert progress(two, [lease("x", "a@1"), lease("y", pool=OTHER)], [POOL]).done
