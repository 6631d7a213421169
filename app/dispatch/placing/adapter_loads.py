"""LoRA adapters of requests that are placed: which version each gets, and which workers are asked to load one."""

import time
from collections.abc import Callable, Collection

from app.dispatch.inflight import InFlight
from app.dispatch.placing.placement_queue import PlacementQueue
from app.errors import ModelNotFound
from app.ids import WorkerId
from app.intervals import COMMANDS_TTL_S
from app.keys import Keys
from app.messages.commands import LoadAdapter
from app.messages.wanted import Adapter
from app.messages.wire import encode
from app.store import Command

_ASK_AGAIN_S = 1.0


class AdapterLoads:
    def __init__(self, keys: Keys, adapter: Callable[[str], Adapter | None], queue: PlacementQueue) -> None:
        """`adapter`: the one of that name."""
        self._keys, self._adapter, self._queue = keys, adapter, queue
        self._asked: dict[tuple[WorkerId, str], float] = {}  # to load an adapter, and when

    def resolved(self, inflight: InFlight) -> bool:
        """The adapter that it wants is there, and it is of today's version; else its wait is over."""
        adapter = self._adapter(inflight.adapter_name)
        if adapter is None:
            self._queue.settle(inflight, ModelNotFound(f"The model '{inflight.adapter_name}' is not served any more."))
            return False
        inflight.attempt = inflight.attempt.with_adapter(adapter)
        return True

    def ask(self, asks: Collection[tuple[WorkerId, str]]) -> list[Command]:
        """Has workers load adapters for which requests wait."""
        now, commands = time.monotonic(), list[Command]()
        self._asked = {ask: at for ask, at in self._asked.items() if now - at < _ASK_AGAIN_S}
        for worker, adapter in asks:
            if (worker, adapter) not in self._asked:
                self._asked[worker, adapter] = now
                key = self._keys.commands(worker)
                commands += [("RPUSH", key, encode(LoadAdapter(adapter))), ("EXPIRE", key, COMMANDS_TTL_S)]
        return commands
