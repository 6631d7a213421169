"""Finds which pictures of requests are encoded already, as Redis has it."""

from collections.abc import Mapping, Sequence

import msgspec

from app.dispatch.inflight import InFlight
from app.ids import PoolId
from app.keys import Keys
from app.messages.handoff import EmbeddingHandle, decode_embedding
from app.pools.schema import Pool
from app.store import Wire
from app.telemetry import logger

log = logger(__name__)


class EmbeddingIndex:
    def __init__(self, wire: Wire, keys: Keys, pools: Mapping[PoolId, Pool]) -> None:
        self._wire, self._keys, self._pools = wire, keys, pools

    async def read(self, in_flight: Sequence[InFlight]) -> dict[tuple[str, str], EmbeddingHandle]:
        """The embeddings, by model and hash, of the pictures of those requests that want them encoded.

        No round trip if there are no such pictures. Raises: StoreDown.
        """
        pictures = {
            (self._pools[f.encode_pools[0]].model, one.sha256): None
            for f in in_flight
            if f.wants_encoding
            for one in f.job.media
            if one.kind == "image"
        }
        if not pictures:
            return {}
        raws = await self._wire.execute([("GET", self._keys.embedding(*one)) for one in pictures])
        embeddings = {}
        for one, raw in zip(pictures, raws, strict=True):
            try:
                if raw is not None:
                    embeddings[one] = decode_embedding(raw)
            except msgspec.DecodeError as exc:  # it is encoded anew
                log.warning("embedding_not_understood", error=str(exc))
        return embeddings
