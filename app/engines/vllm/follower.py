"""The part of a vLLM that spans several hosts on one that does not lead: vLLM's processes there, without requests."""

import asyncio
import multiprocessing
import os
from collections.abc import Callable
from threading import Thread

# Read when huggingface_hub is imported, as in `engine.py`.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from vllm.config import VllmConfig
from vllm.utils.network_utils import get_tcp_uri
from vllm.v1.engine.utils import CoreEngineProcManager
from vllm.v1.executor.abstract import Executor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from app.engines.base import KvEventSource, Node
from app.engines.pool_args import set_environment
from app.engines.vllm.args import engine_args, vllm_config
from app.engines.vllm.sockets import socket_folder
from app.errors import EngineFailed
from app.pools.schema import Pool

_SHUTDOWN_S = 2.0


class VllmFollower:
    """Implements `app.engines.base.Follower`."""

    def __init__(self, pool: Pool, node: Node) -> None:
        """Raises: SettingsError (unknown arguments)."""
        self._args = engine_args(pool, node.address, node=node)
        self._config: VllmConfig | None = None  # set by start, with one of the next two
        self._executor: MultiprocExecutor | None = None  # of devices that compute with those of other hosts
        self._cores: CoreEngineProcManager | None = None  # of data-parallel ranks that are on this host

    async def start(self, on_death: Callable[[], None]) -> None:
        set_environment(self._args.environment)
        os.environ["VLLM_RPC_BASE_PATH"] = socket_folder()
        try:
            await asyncio.to_thread(self._load, on_death)
        except (RuntimeError, OSError, EOFError) as exc:
            raise EngineFailed(f"vLLM did not start: {exc}") from exc

    def kv_events(self) -> dict[int, KvEventSource]:
        if self._cores is None or self._config is None:
            return {}
        events, first = self._config.kv_events_config, self._config.parallel_config.data_parallel_rank
        if events is None or not events.enable_kv_cache_events or not events.replay_endpoint:
            return {}
        return {
            rank: KvEventSource(_of_rank(events.endpoint, rank), _of_rank(events.replay_endpoint, rank), events.topic)
            for rank in range(first, first + len(self._cores.processes))
        }

    async def close(self) -> None:
        executor, self._executor = self._executor, None
        cores, self._cores = self._cores, None
        if executor is not None:
            for worker in executor.workers:  # without a leader they never leave by themselves
                worker.proc.kill()
            await asyncio.to_thread(executor.shutdown)
        if cores is not None:
            await asyncio.to_thread(cores.shutdown, _SHUTDOWN_S)

    def _load(self, on_death: Callable[[], None]) -> None:
        self._config = config = vllm_config(self._args.fields, headless=True)
        parallel = config.parallel_config
        if parallel.nnodes > 1:
            self._executor = executor = MultiprocExecutor(config, monitor_workers=False)
            executor.register_failure_callback(on_death)
            executor.start_worker_monitor()
            return
        self._cores = CoreEngineProcManager(
            local_engine_count=parallel.data_parallel_size_local,
            start_index=parallel.data_parallel_rank,
            local_start_index=0,
            vllm_config=config,
            local_client=False,
            handshake_address=get_tcp_uri(parallel.data_parallel_master_ip, parallel.data_parallel_rpc_port),
            executor_class=Executor.get_class(config),
            log_stats=True,  # the leader's adapter reads them
        )
        Thread(target=self._watch, args=(self._cores, on_death), name="vllm-cores", daemon=True).start()

    def _watch(self, cores: CoreEngineProcManager, on_death: Callable[[], None]) -> None:
        multiprocessing.connection.wait(cores.sentinels())
        if self._cores is cores:  # else it was closed
            on_death()


def _of_rank(endpoint: str, rank: int) -> str:
    """The endpoint at which a rank publishes: its port is the first one's + its number."""
    where, _, port = endpoint.replace("//*:", "//127.0.0.1:").rpartition(":")
    return f"{where}:{int(port) + rank}"
