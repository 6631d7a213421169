"""Keys of a pool that are set and change nothing: a file that has them is taken, and its owner told."""

from app.endpoints import EndpointName
from app.pools.schema import Pool

_CHATS: frozenset[EndpointName] = frozenset({"chat", "responses", "messages"})


def without_effect(pool: Pool) -> str:
    """A sentence about what changes nothing; empty: there is nothing."""
    if pool.chat_template is None:
        return ""
    if pool.task != "generate":
        why = f"task: {pool.task}"
    elif pool.endpoints is not None and _CHATS.isdisjoint(pool.endpoints):
        why = f"endpoints: [{', '.join(pool.endpoints)}]"
    else:
        return ""
    return f"chat_template has no effect beside {why}: no chat is written with it"
