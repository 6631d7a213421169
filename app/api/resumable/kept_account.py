"""The bytes of kept answers and conversations that are counted for each key and for all, and those of each of them."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping

from app.keys import Keys
from app.store import Wire
from app.tenants.stored_audit import Bytes, recounted

_AT_ONCE = 500  # entries
_ALL, _OF_KEY, _OF_ONE = "all", "key:", "id:"


class KeptAccounts:
    """Accounts are fields of `kept-bytes`: `all`, `key:<API key>`, and `id:<id>` of one that nobody would subtract."""

    kind = "kept"

    def __init__(self, wire: Wire, keys: Keys) -> None:
        self._wire = wire
        self._counted, self._expiring = keys.kept_account()

    async def read(self) -> Mapping[str, Bytes]:
        owners: dict[str, str] = {}
        async for member, _ in self._scanned("ZSCAN", self._expiring):
            id_, _, owner = member.partition("|")
            owners[id_] = owner
        counts = {name: int(count) async for name, count in self._scanned("HSCAN", self._counted)}
        there: Counter[str] = Counter()
        sizes: dict[str, Bytes] = {}
        for name, count in counts.items():
            if name.startswith(_OF_ONE):
                if (one := name.removeprefix(_OF_ONE)) in owners:
                    there[_ALL] += count
                    there[_OF_KEY + owners[one]] += count
                else:  # it will not expire
                    sizes[name] = Bytes(count, 0)
        sums = {name for name in counts if not name.startswith(_OF_ONE)}
        return sizes | {name: Bytes(counts.get(name), there[name]) for name in sums | there.keys()}

    async def _scanned(self, command: str, key: str) -> AsyncIterator[tuple[str, bytes]]:
        cursor = None
        while cursor != b"0":
            ((cursor, flat),) = await self._wire.execute([(command, key, cursor or b"0", "COUNT", _AT_ONCE)])
            for name, value in zip(flat[::2], flat[1::2], strict=True):
                yield name.decode(), value

    async def correct(self, account: str, actual: Bytes) -> bool:
        return await recounted(self._wire, self._counted, account, actual)
