"""The bytes of samples that are counted for each key, each tenant and all, and those of the samples that they hold."""

from collections import Counter
from collections.abc import Mapping

from app.keys import Keys
from app.store import Wire
from app.tenants.stored_audit import Bytes, recounted


class MediaAccounts:
    kind = "media"

    def __init__(self, wire: Wire, keys: Keys) -> None:
        self._wire, self._held = wire, keys.media_held()[0]

    async def read(self) -> Mapping[str, Bytes]:
        (flat,) = await self._wire.execute([("HGETALL", self._held)])  # of requests in progress
        fields = dict(zip((name.decode() for name in flat[::2]), flat[1::2], strict=True))
        there: Counter[str] = Counter()
        for name in fields:
            if name.startswith("n:"):
                sha256, _, owner = name.removeprefix("n:").partition("|")
                there[owner] += int(fields.get(f"size:{sha256}", 0))
        owners = {name for name in fields if name == "all" or name.startswith(("key:", "tenant:"))}
        return {
            owner: Bytes(int(fields[owner]) if owner in fields else None, there[owner])
            for owner in owners | there.keys()
        }

    async def correct(self, account: str, actual: Bytes) -> bool:
        return await recounted(self._wire, self._held, account, actual)
