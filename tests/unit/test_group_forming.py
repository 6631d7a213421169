"""Choice of the waiting members that become an engine on several hosts, and of their leader."""

import pytest
from msgspec.structs import replace

from app.engines.base import Node
from app.ids import PoolId, WorkerId
from app.messages.group import Group, Member
from app.settings import load_settings
from workers.engine.group_forming import form, node_of
from workers.engine.group_member import GroupMember


def member(name: str) -> Member:
    return Member(WorkerId(name), f"10.0.0.{name}", 20_000 + int(name))


def names(members: object) -> str:
    return "".join(one.worker for one in members)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("waiting", "nodes", "led"),
    [
        ("", 2, {}),
        ("1", 2, {}),
        ("12", 2, {"1": "12"}),
        ("21", 2, {"2": "21"}),  # who came first leads
        ("123", 2, {"1": "12"}),
        ("1234", 2, {"1": "12", "3": "34"}),  # several groups of a pool
        ("123", 3, {"1": "123"}),
    ],
)
def test_those_that_came_first_are_a_group_and_the_first_of_them_leads(
    waiting: str, nodes: int, led: dict[str, str]
) -> None:
    """Each decides for itself, and all by the same list: nobody is in two groups."""
    members = [member(name) for name in waiting]
    groups = {name: names(form(members, nodes, WorkerId(name))) for name in waiting}
    assert {name: group for name, group in groups.items() if group} == led


def test_who_does_not_wait_any_more_leads_nothing() -> None:
    assert not form([member("1"), member("2")], 2, WorkerId("3"))


def test_a_member_knows_its_rank_and_where_its_leader_is_met() -> None:
    group = Group(7, [member("2"), member("1")])
    assert node_of(group, WorkerId("2")) == Node(0, "10.0.0.2", "10.0.0.2", 20_002)
    assert node_of(group, WorkerId("1")) == Node(1, "10.0.0.1", "10.0.0.2", 20_002)


@pytest.mark.parametrize(("ranks", "told", "known"), [(4, [], [0, 0]), (4, [7, 8], [7, 8]), (1, [], [])])
def test_caches_on_other_hosts_have_the_places_of_their_ranks_before_they_have_numbers(
    ranks: int, told: list[int], known: list[int]
) -> None:
    """The second follower's caches would otherwise stand for the first one's."""
    group = GroupMember(load_settings(), PoolId("p"), 2, WorkerId("1"), "10.0.0.1")
    group._members = [member("1"), replace(member("2"), caches=told)]
    assert group.followers_caches(ranks) == known
