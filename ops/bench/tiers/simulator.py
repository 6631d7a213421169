"""`python -m ops.bench.tiers.simulator SECONDS TRACE …`: route_sim.py with a store that all workers share.

A prompt takes its leading blocks from the worker's own cache, and those behind them from the store, each of which takes
so many seconds. A load stands in the line of prefills, as if nothing were computed meanwhile: engines do better.
What a prefill has computed is stored at its end. The other arguments are route_sim.py's.
"""

import importlib.util
import sys
from itertools import takewhile
from types import ModuleType
from typing import Any

from ops.bench.load import tool


def _route_sim() -> ModuleType:
    spec = importlib.util.spec_from_file_location("route_sim", tool("route_sim.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["route_sim"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def with_store(sim: Any, load_s: float) -> None:
    """`load_s`: seconds for a block."""
    store = set[int]()

    class Worker(sim.Worker):  # type: ignore[misc]
        def admit(self) -> None:
            before, waiting = self.cur, self.queue[0] if self.queue else None
            super().admit()
            if self.oracle or self.cur is before or self.cur is not waiting:
                return
            q = self.cur
            loaded_blocks = sum(1 for _ in takewhile(store.__contains__, q.blocks[q.hit :]))
            if not loaded_blocks or load_s >= self.c.block / self.c.prefill:  # slower than computing: not used
                return
            tokens = min((q.hit + loaded_blocks) * self.c.block, q.n_in - 1) - q.hit_tok
            self.rem += loaded_blocks * load_s * self.c.prefill - tokens
            self.work += self.c.work(q, q.hit_tok + tokens) - self.c.work(q, q.hit_tok)
            q.hit_tok += tokens

        def step(self, t: float) -> Any:
            for what, q in super().step(t):
                if what == "prefill":
                    store.update(q.blocks)
                yield what, q

    class Router(sim.Router):  # type: ignore[misc]
        def __init__(self, c: Any, policy: Any) -> None:
            super().__init__(c, policy)
            store.clear()

        def look(self, q: Any, now: float) -> Any:
            views = super().look(q, now)
            views.stored_blocks = sum(1 for _ in takewhile(store.__contains__, q.blocks))
            return views

    sim.Worker, sim.Router = Worker, Router


def main() -> None:
    seconds = float(sys.argv.pop(1))
    sim = _route_sim()
    with_store(sim, seconds)
    sys.argv += ["--jobs", "1"]  # a pool's processes would have the original classes
    sim.concurrent.futures.ProcessPoolExecutor = lambda _jobs: sim.concurrent.futures.ThreadPoolExecutor(1)
    sim.main()


if __name__ == "__main__":
    main()
