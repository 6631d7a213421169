"""Times at which an erasure is repeated, its end and what it has removed by then; and the owner of a stored block."""

from hypothesis import given
from hypothesis import strategies as st

from app.ids import KeyId
from app.kv_store.salts import folder, is_of, label_of, new_salt, salted
from app.tenants.erasures import Erasure, after_pass, is_due, is_over

DAY = 86_400.0
OWN = st.none() | st.text(min_size=1, max_size=300)


def carried_out(found: list[tuple[int, int]], every_s: float, later_s: float) -> tuple[Erasure, list[float]]:
    """An erasure from its begin to its end, by passes that remove and leave so many; and when these were.

    `every_s`, `later_s`: how often it is looked at, until it is clean and then.
    """
    erasure, passes, now = Erasure("key", "a", 1000.0, [KeyId("key_1")]), list[float](), 1000.0
    results = iter(found)
    while not is_over(erasure, now):
        if is_due(erasure, now):
            removed_files, stays = next(results, (0, 0))
            passes.append(now)
            erasure = after_pass(erasure, now, now + 0.1, {"files": removed_files} if removed_files else {}, stays)
        now += later_s if erasure.clean else every_s
        assert now < 1000 + 3 * DAY
    return erasure, passes


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), max_size=30), st.floats(1, 30), st.floats(60, 5000))
def test_an_erasure_is_repeated_for_a_day_and_counts_all_that_it_removed(
    found: list[tuple[int, int]], every_s: float, later_s: float
) -> None:
    """An erasure is clean only after a pass that found nothing and began when the key was refused everywhere."""
    erasure, passes = carried_out(found, every_s, later_s)
    assert erasure.removed.get("files", 0) == sum(removed_files for removed_files, _ in found[: len(passes)])
    assert erasure.clean >= 1003
    assert passes[-1] >= 1000 + DAY
    at = min(i for i, began in enumerate(passes) if began >= 1003 and (*found, *[(0, 0)] * 99)[i] == (0, 0))
    assert erasure.clean == passes[at] + 0.1
    assert len(passes[at + 1 :]) <= 6


def test_what_comes_late_is_found_within_a_minute_and_again_after_hours() -> None:
    _, passes = carried_out([], 1.0, 2.0)
    assert [round(began - 1000) for began in passes] == [0, 2, 4, 10, 60, 600, 3600, 21600, 86400]


@given(OWN, OWN)
def test_two_tenants_prompts_never_have_one_salt(one: str | None, other: str | None) -> None:
    """Any `cache_salt` of their clients is covered, and so is a tenant that shares its KV with others."""
    ours, theirs = new_salt(), new_salt()
    mine = salted(ours, one)
    assert mine not in (salted(theirs, other), salted("", other), salted("", ours), salted("", mine))
    assert salted("", one) in (one, f"client:{one}")


@given(OWN)
def test_a_store_knows_a_tenants_blocks_by_their_folder_and_nobody_elses(own: str | None) -> None:
    ours, theirs = new_salt(), new_salt()
    label = label_of(salted(ours, own))
    assert label == label_of(ours) != label_of(theirs)
    assert ours not in folder(label)
    assert label_of(salted("", own)) == label_of(salted("", ours)) == ""
    path = f"0123abcd/{folder(label)}abc/abcdef-0"
    assert is_of(path, {label})
    assert not is_of(path, {label_of(theirs)})
    assert not is_of("0123abcd/abc/abcdef-0", {label, ""})
    assert not is_of(f"0123abcd/abc/salt-{label}", {label})  # a file of that name
