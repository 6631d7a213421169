"""The planner: one at a time leads, observes each few seconds, decides, and has it done."""

import asyncio
from collections.abc import Mapping

from msgspec.structs import replace

from app.errors import ScalingFailed
from app.ids import PoolId, new_api_id
from app.planner.decision import decide
from app.planner.desired import Desired, encode_desired
from app.planner.plan import PoolPlan
from app.planner.rules import limits_of, objectives_of, scales_of
from app.pools.schema import PoolsFile
from app.running.loops import keep
from app.settings import Settings
from app.store import Command, Wire, clock
from app.store.scripts import LEAD
from app.telemetry import logger
from workers.planner.observation import Observation
from workers.planner.scalers.base import Scaler
from workers.planner.traffic_history import TrafficHistory

log = logger(__name__)

_RENEW_S = 1.0
_LEADER_MS = 5000  # how long the leader leads without renewal
_PLANNING_S = 30
_LEAST_TTL_S = 60.0


class Planner:
    def __init__(
        self, settings: Settings, pools_file: PoolsFile, wire: Wire, scaler: Scaler, interval_s: float, *, act: bool
    ) -> None:
        """`act`: else it only says what it would do."""
        self._keys, self._wire, self._scaler, self._act = settings.keys, wire, scaler, act
        self._interval_s, self._me = interval_s, new_api_id()
        scales = scales_of(pools_file)
        self._objectives, self._limits = objectives_of(pools_file), limits_of(scales, pools_file.planner.gpus)
        pools = {name: pools_file.pools[name] for name in scales}
        self._observation = Observation(wire, self._keys, pools, settings.max_queued)
        self._history = TrafficHistory(wire, self._keys, self._objectives)
        self._leads = asyncio.Event()
        self._is_new = True  # what others have kept is to be read

    async def run(self) -> None:
        """Renews the lead and plans, until cancelled."""
        async with asyncio.TaskGroup() as both:
            # Apart, since planning may wait for a scaler.
            both.create_task(keep("planner_not_renewed", self._lead, _RENEW_S))
            both.create_task(keep("not_planned", self._plan_if_it_leads, self._interval_s))

    async def _lead(self) -> None:
        """Raises: StoreDown."""
        lead: Command = ("EVAL", LEAD, 1, self._keys.planner_leader(), self._me, _LEADER_MS)
        leads = False  # after an error, too: its time is over before Redis may have given it to another
        try:
            leads = bool((await self._wire.execute([lead]))[0])
        finally:
            if leads != self._leads.is_set():
                log.info("planner_leads" if leads else "planner_waits", planner=self._me)
            (self._leads.set if leads else self._leads.clear)()

    async def _plan_if_it_leads(self) -> None:
        """Raises: StoreDown."""
        self._is_new = self._is_new or not self._leads.is_set()
        await self._leads.wait()
        await clock.ask(self._wire, self._keys)
        if self._is_new:
            await self._history.load()
        await self.plan()
        self._is_new = False

    async def plan(self) -> None:
        """Raises: StoreDown."""
        now, history = clock.now(), self._history
        await self._wire.execute([("SET", self._keys.planning(), "1", "EX", _PLANNING_S)])
        await history.read(now)
        pools = await self._observation.read()
        traffic = {model: history.of(model) for model in self._objectives}
        # Before its first worker is ready nobody knows how many were started, and any plan could end some.
        pools = [p for p in pools if p.workers or p.pool in self._observation.desired or traffic[p.model]]
        # In a thread: meanwhile this process goes on leading.
        plans = await asyncio.to_thread(decide, now, traffic, pools, self._objectives, self._limits)
        targets = {plan.pool: self._desired(plan, now) for plan in plans}
        if not self._leads.is_set():
            return
        await self._tell(targets)
        if self._act:
            await self._scale(targets)

    def _desired(self, plan: PoolPlan, now: float) -> Desired:
        before, drain = self._observation.desired.get(plan.pool), list(plan.drain)
        if before is not None and (before.workers, before.drain, before.act) == (plan.workers, drain, self._act):
            decision = before.decision
        else:
            decision = round(now * 1000)
            log.info(
                "planned",
                pool=plan.pool,
                workers=plan.workers,
                before=None if before is None else before.workers,
                reason=plan.reason,
                drain=drain,
                arrivals_per_s=round(plan.arrivals_per_s, 3),
                act=self._act,
            )
        return Desired(
            plan.workers, plan.reason, decision, at=now, act=self._act, drain=drain, arrivals_per_s=plan.arrivals_per_s
        )

    async def _tell(self, targets: Mapping[PoolId, Desired]) -> None:
        """Raises: StoreDown."""
        ttl_ms = round(1000 * max(_LEAST_TTL_S, 10 * self._interval_s))
        entries = [(self._keys.desired(pool), encode_desired(each)) for pool, each in targets.items()]
        await self._wire.execute([("SET", key, raw, "PX", ttl_ms) for key, raw in entries])

    async def _scale(self, targets: Mapping[PoolId, Desired]) -> None:
        """Raises: StoreDown."""
        failures = {}
        for pool, each in targets.items():
            try:
                await self._scaler.scale(pool, each, [lease.worker for lease in self._observation.leases[pool]])
            except ScalingFailed as exc:
                log.error("pool_not_scaled", pool=pool, error=exc.message)
                failures[pool] = replace(each, problem=exc.message)
        await self._tell(failures)
