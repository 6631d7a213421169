"""The worker's lease, with its load, renewed each `heartbeat_s`. On the engine's loop."""

import asyncio
import os
import socket
import time
from collections.abc import Sequence

import psutil
from msgspec.structs import replace
from redis.exceptions import RedisError

from app.engines.base import Adapters, EngineInfo
from app.errors import StoreDown
from app.ids import PlaceId, PoolId, place_id, worker_queue
from app.keys import PRIORITY_STEPS
from app.kv.groups import grid, leaves
from app.messages.lease import AdapterReport, CacheGroup, EngineState, Grid, Lease, Load, Speeds, Worker, WorkerMetric
from app.messages.wire import encode
from app.pools.schema import Pool
from app.runner.runner import Runner, end_process
from app.running.ending import end_tasks
from app.running.loops import keep
from app.store import clock
from app.store.scripts import FORGET_LOADS, TELL
from app.telemetry import logger
from workers.engine.group_member import GroupMember
from workers.engine.kv_indices import KvIndices, why_unindexed
from workers.engine.worker_metrics import metrics

log = logger(__name__)
_TIME = "return redis.call('TIME')"  # in a cluster: of the node that has the fleet


async def forget_guesses(runner: Runner, places: Sequence[PlaceId]) -> None:
    """Forgets what is guessed of this worker's caches if its engine doesn't tell. Guesses expire by themselves, too."""
    try:
        await runner.index.execute([("UNLINK", runner.keys.predicted(runner.pool, place)) for place in places])
    except StoreDown as exc:
        log.warning("guesses_not_forgotten", error=exc.message)


class LeaseKeeper:
    """A worker that doesn't renew its lease for `lease_ttl_s` counts as dead."""

    def __init__(
        self,
        runner: Runner,
        pool_id: PoolId,
        pool: Pool,
        info: EngineInfo,
        kv: KvIndices = KvIndices(),  # noqa: B008 (frozen)
        *,
        prefixes: bool = False,
        metrics_at: str = "",
        group: GroupMember | None = None,
    ) -> None:
        """`kv`: what its KV events are written to. `prefixes`: whether it has a `PrefixKeeper`.

        `metrics_at`: as in `messages.Worker`. `group`: in which it leads.
        """
        self._runner, self._keys, self._redis = runner, runner.keys, runner.redis
        self._writing = asyncio.Lock()
        self.fresh = time.monotonic()  # when Redis last got it
        self._draining = self._registered = False
        self._kv, self._group = kv, group
        self._told: Lease | None = None  # as API replicas were last told of it, without load and speeds
        self.state = EngineState()  # told with the next lease
        self.metrics: list[WorkerMetric] = []  # as they were last told
        lines = grid(info.groups or [CacheGroup(0, "all", info.block_size)])
        self._worker = Worker(
            id=runner.worker,
            pool=pool_id,
            role=pool.role,
            host=socket.gethostname(),
            pid=os.getpid(),
            block_size=info.block_size,
            total_blocks=info.total_blocks,
            max_running=info.max_running,
            max_model_len=info.max_model_len,
            ranks=info.ranks,
            kv_events=bool(kv.caches or why_unindexed(info)),
            block_bytes=info.block_bytes,
            meets_at=info.meets_at,
            grammars=list(info.grammars),
            seeds=info.seeds,
            computes=info.computes,
            max_adapters=info.max_adapters if isinstance(runner.engine, Adapters) else 0,
            engine=pool.engine,
            engine_version=info.version,
            model=pool.model,
            media=list(info.media),
            embeddings=info.embeddings is not None,
            tier_block_bytes=info.tier_block_bytes,
            peers=info.peers,
            prefixes=prefixes,
            metrics_at=metrics_at,
            grid=lines or Grid(info.block_size, info.block_size),
            unindexed=why_unindexed(info),
            leaves=leaves(info.groups) if info.groups else 0,
            signs=list(info.signs),
            collects=True,
            beams=info.logprobs and info.computes,
        )

    async def register(self) -> None:
        """Raises: RedisError when Redis does not answer, which ends the worker's start."""
        start_time = psutil.Process().create_time()
        self._worker = replace(self._worker, start_s=max(0.0, time.time() - start_time))
        await self._write()
        self._registered = True
        self._keeping = asyncio.create_task(self._keep())
        self._keeping.add_done_callback(end_process)

    async def drain(self) -> None:
        """Makes routing place nothing here any more."""
        self._draining = True
        await self.tell()

    def take(self, info: EngineInfo) -> None:
        """The engine's ranks have changed; told with the next lease."""
        self._worker = replace(self._worker, ranks=info.ranks, total_blocks=info.total_blocks)

    @property
    def worker(self) -> Worker:
        return self._worker

    @property
    def stays_out(self) -> bool:
        """Whether it takes no requests."""
        state = self.state
        return bool(self._draining or state.asleep or state.paused or state.changing)

    async def end(self) -> None:
        """Deregister. After this nothing can be placed here: `place.lua` checks the lease."""
        await self._runner.emitters.drained(5)  # else an API replica would miss the last events of finished requests
        async with self._writing:
            self._registered = False  # nothing writes it again
        await end_tasks([self._keeping])
        keys, worker, pool = self._keys, self._worker.id, self._worker.pool
        places = [place_id(worker, rank) for rank in range(self._worker.ranks)]
        pipe = self._redis.pipeline(transaction=True)
        pipe.unlink(keys.worker(worker), keys.metrics(worker), keys.commands(worker))
        pipe.unlink(keys.reservations(worker), keys.load(worker), keys.prefilling(worker))
        pipe.eval(FORGET_LOADS, 1, keys.loads(pool), *places)
        pipe.hdel(keys.pool(pool), worker)
        pipe.eval(TELL, 1, keys.changed(pool), worker)
        await pipe.execute()
        await forget_guesses(self._runner, places)

    async def _keep(self) -> None:
        await keep("lease_not_renewed", self._renew, self._beat, later=True)

    async def _beat(self) -> None:
        settings, sleep_start = self._runner.settings, time.monotonic()
        await asyncio.sleep(settings.heartbeat_s)
        stood_s = time.monotonic() - sleep_start
        if stood_s > settings.lease_ttl_s:
            self.stood_still(stood_s)

    async def tell(self) -> None:
        """Writes the lease now, after earlier writes, once it is registered; without Redis, the next heartbeat does."""
        try:
            await self._renew()
        except (RedisError, OSError) as exc:
            log.warning("lease_not_renewed", error=repr(exc))

    async def _renew(self) -> None:
        """Raises: RedisError, OSError."""
        async with self._writing:
            if self._registered:
                await self._write()

    async def _write(self) -> None:
        runner, keys, own = self._runner, self._keys, self._worker
        stats, settings = runner.engine.stats(), runner.settings
        load = Load(
            stats.running,
            stats.waiting,
            stats.used_blocks,
            lent_blocks=stats.lent_blocks,
            aside=sum(map(len, runner.gates)),
            aside_most=0 if self.stays_out else min(gate.most for gate in runner.gates),
        )
        if own.max_adapters:
            own = replace(own, adapters=runner.adapters.open)
        speeds, adapters = runner.speeds(stats), runner.adapters.report()
        caches, hosts = ([cache.number for cache in each[: own.ranks]] for each in (self._kv.caches, self._kv.hosts))
        if caches and self._group is not None:
            caches += self._group.followers_caches(own.ranks)
        lease = Lease(
            own,
            load,
            speeds,
            self.stays_out,
            adapters=adapters,
            state=self.state,
            caches=caches,
            token_redis=len(settings.token_redis_urls),
            broker_apart=settings.broker_url is not None,
            hosts=hosts,
            store=0 if self._kv.store is None else self._kv.store.number,
            left_out=any(feed.is_blind for feed in self._kv.feeds),
            beginnings=[index.number for index in self._kv.beginnings[: own.ranks]],
        )
        lasting = replace(lease, load=Load(), speeds=Speeds(), adapters=AdapterReport(adapters.failed))
        seen_key = keys.seen(own.pool)
        pipe = self._redis.pipeline(transaction=False)
        ttl_ms, patience_ms = round(settings.lease_ttl_s * 1000), max(1, round(settings.patience_s * 1000))
        pipe.pexpire(keys.worker(own.id), ttl_ms)  # first: Redis accepts it even when it is out of memory
        pipe.pexpire(seen_key, patience_ms)
        runner.kv_blocks_left_out = sum(feed.left_out for feed in self._kv.feeds)
        self.metrics = metrics(runner, stats)
        pipe.set(keys.metrics(own.id), encode(self.metrics), px=ttl_ms)
        pipe.set(keys.worker(own.id), encode(lease), px=ttl_ms)
        pipe.set(seen_key, "1", px=patience_ms)
        pipe.hset(keys.pool(own.pool), own.id, f"{own.ranks},{int(own.kv_events)}")
        last_lease, self._told = self._told, None  # if the reply is lost, nobody knows what was told
        if lasting != last_lease:
            pipe.eval(TELL, 1, keys.changed(own.pool), own.id)
        pipe.eval(_TIME, 1, keys.worker(own.id))
        request_time = time.monotonic()
        was_alive, *_, theirs = await pipe.execute()
        # API replicas that found it dead have to hear of it again.
        self._told = lasting if was_alive or last_lease is None else None
        clock.heard(request_time, theirs)
        if not was_alive:  # an API replica found the worker dead, and made these keys expire
            for key in (keys.reservations(own.id), keys.load(own.id), keys.prefilling(own.id)):
                await self._redis.persist(key)
        self.fresh = time.monotonic()
        if not was_alive:
            queue = worker_queue(own.pool, own.id)
            for step in PRIORITY_STEPS:
                await runner.broker.persist(keys.queue(queue, step))

    def stood_still(self, seconds: float) -> None:
        """Gives all requests back: this process stood still for longer than its lease, so they run elsewhere by now."""
        log.error("stood_still", seconds=round(seconds, 1))
        self._runner.give_all_back()
