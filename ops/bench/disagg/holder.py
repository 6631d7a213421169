"""Memory that another process reads through NIXL: `python -m ops.bench.disagg.holder`, given by one line of JSON."""

import asyncio
import base64
import json
import secrets
from typing import Any

import uvloop

from app.engines.mock.memory import KvMemory
from app.kv.nixl import Nixl

UNIT = 64 * 2**10
SPACE = 512 * 2**20  # bytes: twice the largest transfer, so that there are holes between scattered blocks
_LOOK_S = 0.001


class Bare:
    """NIXL's own Python interface, unchanged; without a progress thread, as in `Nixl`."""

    def __init__(self, address: int) -> None:
        from nixl import _api

        self.name = f"bare-{secrets.token_hex(4)}"
        config = _api.nixl_agent_config(backends=["UCX"], enable_prog_thread=False)
        self.agent: Any = _api.nixl_agent(self.name, config)
        self.agent.register_memory([(address, SPACE, 0, "")], "DRAM")
        self.metadata: bytes = self.agent.get_agent_metadata()

    def read(self, peer: str, spans: list[tuple[int, int, int]]) -> None:
        """Reads spans: own address, other address, bytes. Blocks until they have arrived."""
        agent = self.agent
        own = agent.get_xfer_descs([(here, size, 0) for here, _, size in spans], "DRAM")
        others = agent.get_xfer_descs([(there, size, 0) for _, there, size in spans], "DRAM")
        handle = agent.initialize_xfer("READ", own, others, peer)
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        handle.release()
        if state != "DONE":
            raise RuntimeError(f"bare NIXL: {state}")


def memory() -> KvMemory:
    """Memory with all pages touched, and each 64 KiB marked with its number."""
    kv_memory = KvMemory(SPACE // UNIT, UNIT)
    for block in range(SPACE // UNIT):
        kv_memory.mark(block, block)
    return kv_memory


async def _main() -> None:
    kv_memory = memory()
    ours, bare = Nixl(f"ours-{secrets.token_hex(4)}", lambda _note: None), Bare(kv_memory.address)
    await ours.start(kv_memory.address, SPACE)
    ours.expecting = 1  # as if a prompt were lent
    metadata = {n: base64.b64encode(m).decode() for n, m in ((ours.name, ours.metadata), (bare.name, bare.metadata))}
    print(
        json.dumps({"address": kv_memory.address, "ours": ours.name, "bare": bare.name, "metadata": metadata}),
        flush=True,
    )
    while True:
        bare.agent.get_new_notifs()
        await asyncio.sleep(_LOOK_S)


if __name__ == "__main__":
    uvloop.run(_main())
