"""Pages of sorted sets, for clients that name the last member that they have."""

from collections.abc import Sequence

from app.errors import RequestError
from app.store.scripts import PAGE
from app.store.wire import Wire

FEW = 256  # members at least, for who leaves some out: a page of each one would take as many turns
_ENOUGH = 8  # of the page before: one of them is still there


async def page(
    wire: Wire, members: str, behind: Sequence[str], limit: int, *, newest_first: bool, param: str = "after"
) -> tuple[list[str], bool]:
    """Members of a sorted set, up to `limit`, and whether there are more.

    `behind`: the page before, or only its last one, which the client's `param` named; empty: from the beginning.
    Raises: StoreDown; RequestError if none of it is there: the end would look as if there were no more.
    """
    last_members, order = behind[: -_ENOUGH - 1 : -1], "REV" if newest_first else ""
    (raw_names,) = await wire.execute([("EVAL", PAGE, 1, members, order, limit + 1, *last_members)])
    if raw_names is None:
        raise RequestError(f"'{param}': '{behind[-1][:100]}' is not the id of one of these (any more).", param=param)
    names = [name.decode() for name in raw_names]
    return names[:limit], len(names) > limit
