"""The LoRA adapters of the deployment, as models of this process: no request asks Redis for them."""

from dataclasses import replace

from app.adapters.assignment import is_for
from app.adapters.registry import decoded
from app.dispatch.models.models import Model
from app.keys import Keys
from app.messages.wanted import Adapter
from app.store import Command, Wire
from app.telemetry import Meters, logger

log = logger(__name__)

_METERED = 100  # adapters with metrics of their own, in the life of this process
_OTHERS = "other-adapters"


class AdapterTable:
    def __init__(self, wire: Wire, keys: Keys, models: dict[str, Model]) -> None:
        """`models`: of the pools file; adapters come and go beside them."""
        self._wire, self._keys, self._models = wire, keys, models
        self._bases = dict(models)
        self._version: bytes | None = None
        self._known: dict[str, Adapter] = {}
        self._meters: dict[str, Meters] = {}

    async def refresh(self) -> None:
        """Raises: StoreDown, and then all is as before."""
        (now,) = await self._wire.execute([self.question])
        await self.answered(now)

    @property
    def question(self) -> Command:
        """Asks which version Redis has."""
        return "GET", self._keys.loras()[1]

    async def answered(self, version: bytes | None) -> None:
        """Reads them, if that is another version. Raises: StoreDown."""
        if version == self._version:
            return
        (fields,) = await self._wire.execute([("HGETALL", self._keys.loras()[0])])
        self._take(decoded(dict(zip(fields[::2], fields[1::2], strict=True))))
        self._version = version

    def current(self, name: str) -> Adapter | None:
        """The version that is answered with now; None when it was removed."""
        return self._known.get(name)

    def _take(self, adapters: dict[str, Adapter]) -> None:
        served_adapters = {name: adapter for name, adapter in adapters.items() if self._is_served(adapter)}
        for name in self._known.keys() - served_adapters.keys():
            del self._models[name]
        for name, adapter in served_adapters.items():
            if adapter != self._known.get(name):
                self._models[name] = self._model(adapter)
        self._known = served_adapters

    def _is_served(self, adapter: Adapter) -> bool:
        is_served = adapter.model in self._bases and adapter.name not in self._bases
        if not is_served:
            log.warning("adapter_not_served", adapter=adapter.name, model=adapter.model)
        return is_served

    def _model(self, adapter: Adapter) -> Model:
        base = self._bases[adapter.model]
        return replace(
            base,
            name=adapter.name,
            pools=tuple(pool for pool in base.pools if is_for(adapter, pool, base.name)),
            prefill_pools=tuple(pool for pool in base.prefill_pools if is_for(adapter, pool, base.name)),
            meters=self._meters_of(adapter.name),
            parent=base.name,
            adapter=adapter.versioned,
        )

    def _meters_of(self, name: str) -> Meters:
        meters = self._meters.get(name)
        if meters is None:
            meters = Meters(name if len(self._meters) < _METERED else _OTHERS)
            if len(self._meters) < _METERED:
                self._meters[name] = meters
        return meters
