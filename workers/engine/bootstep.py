"""The bootstep that makes a Celery worker an engine: load before ready, register, drain on SIGTERM.

Celery imports this module in workers only, because of `app.conf.include`, and so gets the step. A bootstep and not a
signal: after an error in a signal's handler, Celery would still report the worker ready.
"""

import asyncio
from functools import partial
from typing import Any, cast

from celery import bootsteps
from celery.signals import celeryd_init, setup_logging
from celery.worker.components import Timer
from redis.exceptions import RedisError

from app.addresses.host_address import address_towards
from app.celery import app, settings
from app.engines.base import EngineInfo, Metered
from app.errors import SettingsError, WireMismatch, XylemError
from app.ids import BATCH_QUEUE, PoolId, WorkerId, new_worker_id, worker_queue
from app.kv.groups import grid_of
from app.pools.engine_args import with_args
from app.pools.fetched_pools import fetched_pool
from app.pools.pools_file import load_pools
from app.pools.schema import Pool
from app.runner import runner as runners
from app.runner.engine_factory import create_engine
from app.running.ending import end_tasks
from app.running.log_lines import setup_logging as setup_xylem_logging
from app.store import sync_client
from app.store.wire_version import check, keep_noting, note
from app.telemetry import logger
from app.tokenizing.tokenizer import load_tokenizer
from workers.engine.adapter_keeper import keeper_of
from workers.engine.canary import Canary
from workers.engine.exit_guard import ExitGuard, lease_ended
from workers.engine.following import follow, told_to_end
from workers.engine.group_member import GroupMember
from workers.engine.hang_watchdog import HangWatchdog
from workers.engine.kv_indices import kv_indices
from workers.engine.lease import LeaseKeeper
from workers.engine.prefix_keeper import PrefixKeeper, keeps_prefixes
from workers.engine.probe import Probe
from workers.engine.queue_handback import hand_back_queue
from workers.engine.registered import RegisteredEngine, RegisteredFollower
from workers.engine.reservation_audit import ReservationAudit
from workers.engine.state_keeper import StateKeeper
from workers.engine.task_events import TaskEventsStep
from workers.engine.task_room import TaskRoomStep
from workers.engine.warm_up import warm_up
from workers.engine.worker_commands import run_commands
from workers.hangup import end_on_hangup
from workers.restart_pauses import RestartPausesStep
from workers.worker_port import listening

log = logger(__name__)
_WORKER_ID = new_worker_id()
_REDIS_S = 5.0
_FIRST_S = 600.0  # for the token without which no worker is ready: at first use engines compile
_LOOK_S = 0.1

# For each seat of the engine, one task runs; one waits in the engine, so that a free seat is taken in the next step;
# and an aside one may wait at the gate. More requests wait in Redis, where they can be taken back.
_TASKS_PER_SLOT = 3


@setup_logging.connect
def _log_as_xylem_does(logfile: str | None, **_: Any) -> None:
    setup_xylem_logging(settings.log_level, json=settings.log_json, file=logfile)


@celeryd_init.connect
def _name_worker(sender: str, instance: Any, options: Any = None, **_: Any) -> None:
    """Two workers on one host would both be celery@host, and Flower would show one. Its name begins with its pool's."""
    options = options or {}
    _log_as_xylem_does(options.get("logfile"))  # before Celery warns of anything
    instance.quiet |= settings.log_json  # its banner is no JSON
    name, _at, host = sender.partition("@")
    if name == "celery":
        queues = options.get("queues") or "worker"
        pool = queues if isinstance(queues, str) else ",".join(queues)
        instance.hostname = f"{pool}-{_WORKER_ID}@{host}"


def my_pool(queues: list[str]) -> tuple[PoolId, Pool]:
    """The pool that `-Q` names. Raises: SettingsError when it isn't exactly one pool of the pools file."""
    pools = load_pools(settings.pools_file).pools
    mine = [PoolId(q) for q in queues if q in pools]
    if len(mine) != 1 or len(queues) != 1:
        pool_names = ", ".join(sorted(pools)) or "none"
        raise SettingsError(f"-Q {','.join(queues)}: name one pool of {settings.pools_file} (it has: {pool_names})")
    return mine[0], pools[mine[0]]


def _check_version() -> None:
    """Checks the wire version before an engine is loaded, which takes minutes. Raises: WireMismatch."""
    try:
        with sync_client(settings.redis_url, _REDIS_S, settings.keys.home) as client:
            strangers = cast(list[int], client.execute_command(*note(settings)))
    except (RedisError, OSError) as exc:
        log.warning("wire_version_not_checked", error=repr(exc))  # registering the worker waits for Redis anyway
        return
    check(strangers)


class EngineStep(bootsteps.StartStopStep):
    """Started before the consumer, and stopped when the last task has ended: tasks always find an engine."""

    requires = (Timer,)

    def __init__(self, worker: Any, **_: Any) -> None:
        self.worker_id: WorkerId = _WORKER_ID
        queues = list(worker.app.amqp.queues.consume_from)
        self.enabled = queues != [BATCH_QUEUE]
        if not self.enabled:  # it is a batch worker
            return
        try:
            self.pool_id, self.pool = my_pool(queues)
        except XylemError as exc:
            log.critical("worker_not_started", reason=exc.message)  # nobody reads what a detached worker prints
            raise SystemExit(1) from exc
        # Workers don't talk to each other, and mingle would take a second in which requests already arrive.
        worker.options |= {"without_mingle": True, "without_gossip": True}
        # Celery's Pool step reads one of the two, before this step or after it.
        seats = self.pool.max_running * self.pool.data_parallel_size
        worker.concurrency = worker.min_concurrency = seats * _TASKS_PER_SLOT

    def _join(self, pool: Pool, address: str) -> GroupMember | None:
        """The group that its engine needs, once it is complete. None: the engine has one host. Blocks."""
        if pool.nodes == 1:
            return None
        member = GroupMember(settings, self.pool_id, pool.nodes, self.worker_id, address)
        member.start()
        while not member.formed.wait(_LOOK_S):
            if told_to_end():
                raise SystemExit(0)
        if not member.node.rank:
            return member
        if self.port is not None:
            self.port.loaded(RegisteredFollower(member))
        # Celery's consumer would be the next step: a follower never gets there, and takes no task.
        raise SystemExit(follow(settings, self.pool_id, pool, member, self.guard))

    def start(self, worker: Any) -> None:
        end_on_hangup()
        log.info("loading_engine", pool=self.pool_id, engine=self.pool.engine, model=self.pool.model)
        end_commands = lease_ended(settings.keys, self.worker_id, self.pool_id)
        self.guard = ExitGuard(settings.redis_url, end_commands)
        address = settings.address or address_towards(settings.redis_url)
        self.port = listening(address, settings.worker_port)  # before the engine is loaded: probes see it
        try:
            _check_version()
            pool = with_args(fetched_pool(self.pool, settings, "all"), settings.engine_args)
            self.group = self._join(pool, address)
            engine = create_engine(pool, address, None if self.group is None else self.group.node)
            if self.port is not None and settings.engine_metrics and isinstance(engine, Metered):
                engine.keep_metrics()
            tokenizer = partial(load_tokenizer, pool.model_dir, pool.chat_template, pool.tokenizer_mode)
            own = self.worker_id, self.pool_id, settings
            self.runner = runners.Runner(
                engine, *own, rules=self.pool.aside, model=self.pool.model, tokenizer=tokenizer
            )
            info = self.runner.load()
            if info.embeddings is not None or pool.role == "encode":
                self.runner.call(self.runner.pictures.start())
            listens = pool.task == "transcribe"
            if (pool.role == "prefill" or listens) and pool.warm_up:
                self.runner.call(warm_up(self.runner.engine, info, listens=listens))
            else:
                self.runner.call(Probe(self.runner, self.pool)(_FIRST_S))
        except WireMismatch as exc:
            raise SystemExit(1) from exc
        except XylemError as exc:
            log.critical("engine_failed_to_load", pool=self.pool_id, reason=exc.message)
            raise SystemExit(1) from exc
        self.guard.loaded()
        runners.RUNNER.set(self.runner)
        queues = worker.app.amqp.queues
        # Xylem writes to it by its name. A binding serves nobody, and stays in Redis for each worker that ever was.
        queues.select_add(worker_queue(self.pool_id, self.worker_id)).no_declare = True
        for queue in queues.consume_from.values():
            # Messages are acknowledged when taken: kombu then keeps no record of its own, which nothing here needs.
            queue.no_ack = True
        try:
            self.runner.call(self._register(info))
        except XylemError as exc:
            log.critical("pool_state_not_taken_over", pool=self.pool_id, reason=exc.message)
            raise SystemExit(1) from exc
        watchdog = HangWatchdog(self.runner, self.lease, settings.stall_s)
        watchdog.start()
        if self.port is not None:
            self.port.loaded(RegisteredEngine(self.lease, watchdog))
        if self.group is not None:
            self.group.weights = lambda: self.runner.weights
            leased_worker = self.lease.worker
            self.group.tell(
                ready=True, block_size=info.block_size, groups=list(info.groups), unindexed=leased_worker.unindexed
            )
        log.info("engine_ready", pool=self.pool_id, worker=self.worker_id, total_blocks=info.total_blocks)

    async def _register(self, info: EngineInfo) -> None:
        runner = self.runner

        async def renumbered() -> None:
            await lease.tell()

        kv = kv_indices(runner, self.pool_id, self.pool, info, renumbered)
        feeds = kv.feeds
        account = ReservationAudit(runner, worker_queue(self.pool_id, self.worker_id))
        keeps, metrics_at = keeps_prefixes(runner.engine, self.pool, info), "" if self.port is None else self.port.at
        lease = LeaseKeeper(
            runner, self.pool_id, self.pool, info, kv, prefixes=keeps, metrics_at=metrics_at, group=self.group
        )
        lines = grid_of(lease.worker)
        if lines.step != self.pool.block_size:
            log.info(
                "engine_has_other_blocks", configured=self.pool.block_size, block_size=lines.block_size, step=lines.step
            )
        keeper = StateKeeper(runner, lease, self.pool_id, self.pool, feeds)
        own = self.pool_id, self.pool, info
        adapters = keeper_of(runner, lease, *own, changing=keeper.changing, group=self.group)
        prefixes = PrefixKeeper(runner, lease, self.pool_id, kv.cleaner) if keeps else None
        following = [asyncio.create_task(feed.run()) for feed in feeds]
        await keeper.adopt()
        self.background = following + [
            asyncio.create_task(work)
            for work in (
                run_commands(runner, feeds, keeper, adapters, prefixes),
                account.run(),
                keep_noting(runner.wire, runner.settings),
                *([] if kv.cleaner is None else [kv.cleaner.run()]),
            )
        ]
        self.lease = lease
        await lease.register()
        await keeper.adopt()
        canary = Canary(runner, lease, keeper.presence, keeper.changing) if runner.settings.canary_s else None
        self.background += [asyncio.create_task(one.run()) for one in (adapters, prefixes, canary) if one is not None]
        for task in self.background:
            task.add_done_callback(runners.end_process)

    async def _wait_for_runs(self) -> None:
        """Returns when all runs are over. Requests in the queue, which nobody takes any more, don't wait so long.

        Some come until API replicas and prefill workers have heard of the draining.
        """
        over = asyncio.create_task(self.runner.wait_for_runs())
        while not over.done():
            try:
                await hand_back_queue(self.runner, worker_queue(self.pool_id, self.worker_id))
            except (RedisError, OSError) as exc:
                log.warning("queue_not_handed_back", error=repr(exc))
            await asyncio.wait([over], timeout=_LOOK_S)

    async def _deregister(self) -> None:
        await end_tasks(self.background)
        await self.lease.end()

    def close(self, _worker: Any) -> None:
        """SIGTERM: routing places no more requests here; running ones have `drain_timeout_s` to end."""
        if hasattr(self, "lease"):
            if self.group is not None:
                self.group.tell(leaving=True)
            self.runner.call(self.lease.drain())
            state = self.lease.state
            is_stopped = state.paused or state.asleep  # its requests don't go on by themselves
            # Not in `stop`: Celery may stop its pool's step first, which waits for the tasks.
            self.runner.give_up_after(0 if is_stopped else settings.drain_timeout_s)

    def stop(self, worker: Any) -> None:
        """Finishes running requests, gives those that never began back to their API replicas, and deregisters."""
        if not hasattr(self, "lease"):
            return
        # Celery may stop its pool's step after this one, so the tasks are awaited here. The pool's own step then does
        # nothing.
        worker.pool.stop()
        self.runner.call(self._wait_for_runs())
        try:
            self.runner.call(self._deregister())
            self.runner.call(hand_back_queue(self.runner, worker_queue(self.pool_id, self.worker_id)))
            self.runner.call(self.runner.wait_for_lent_blocks(0 if self.runner.stopping else settings.drain_timeout_s))
        except (RedisError, OSError) as exc:
            log.error("not_deregistered", error=repr(exc))
        if self.group is not None:
            self.group.end()
        self.runner.close()
        self.guard.close()
        if self.port is not None:
            self.port.close()
        log.info("worker_stopped", worker=self.worker_id)

    def terminate(self, worker: Any) -> None:
        """A second SIGTERM: running requests go back to their API replicas."""
        if hasattr(self, "lease"):
            self.runner.give_up_after(0)
        self.stop(worker)


app.steps["worker"].add(EngineStep)
app.steps["consumer"] |= {RestartPausesStep, TaskEventsStep, TaskRoomStep}
