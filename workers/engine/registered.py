"""The state and metrics that an engine's worker shows at its own port."""

from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from app.metric_families import families, worker_state
from workers.engine.group_member import GroupMember
from workers.engine.hang_watchdog import HangWatchdog
from workers.engine.lease import LeaseKeeper


class RegisteredEngine(NamedTuple):
    """A worker with an engine, as `workers.worker_port.Registered`."""

    lease: LeaseKeeper
    watchdog: HangWatchdog

    def stands_s(self, now: float) -> float:
        return self.watchdog.stands_s(now)

    def ready(self) -> tuple[bool, str]:
        """Whether requests are placed here; else why not."""
        return not self.lease.stays_out, worker_state(self.lease.state, draining=self.lease.stays_out)

    def metrics(self) -> Iterable[Metric]:
        return families([(self.lease.worker, self.lease.metrics)])


class RegisteredFollower(NamedTuple):
    """The same of a worker whose engine another one leads: that one is registered, and tells the metrics."""

    group: GroupMember

    def stands_s(self, _now: float) -> float:
        return 0.0

    def ready(self) -> tuple[bool, str]:
        """Whether requests are computed here, with the leader."""
        leads = self.group.leader.ready
        return leads, "following" if leads else "loading"

    def metrics(self) -> Iterable[Metric]:
        return ()
