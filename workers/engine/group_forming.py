"""Chooses the processes that become one engine on several hosts."""

from collections.abc import Sequence

from app.engines.base import Node
from app.ids import WorkerId
from app.messages.group import Group, Member


def form(waiting: Sequence[Member], nodes: int, own: WorkerId) -> Sequence[Member]:
    """The members of the group that `own` is to lead, by rank; none if it leads none, or too few wait.

    `waiting`: in the order in which they came, so that all agree: the first `nodes` of them are a group, and the next.
    """
    for first in range(0, len(waiting) - nodes + 1, nodes):
        if waiting[first].worker == own:
            return waiting[first : first + nodes]
    return ()


def node_of(group: Group, worker: WorkerId) -> Node:
    """The worker's place in its group."""
    rank = [member.worker for member in group.members].index(worker)
    leader = group.members[0]
    return Node(rank, group.members[rank].address, leader.address, leader.port)
