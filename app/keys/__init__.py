"""The names of Redis keys and channels. `keys.toml` says of each what it has, who uses it and how long it lives.

All carry the deployment's prefix, so that several deployments may share one Redis. Celery's own
keys get the same prefix (`global_keyprefix` in `app/celery.py`), and are in `broker_url` if that is another server: the
queue of pool P is the list `<prefix>P`, with `\\x06\\x16<step>` behind it for a priority step above 0. Times are by
Redis' clock (`store.clock`).

In a Redis Cluster, names begin with a hash tag instead of the prefix, and what a script or a MULTI touches shares one:
`{<deployment>}:` for most; `{<deployment>.kept}:` for kept answers and conversations (kept… to joined…);
`{<deployment>.<pool>}:` for the index (cached…, tiered…, stores…, predicted…); `{<deployment>.<api>}:` for out….
"""

from app.ids import QueueName
from app.keys.answers import AnswerKeys
from app.keys.batches import BatchKeys
from app.keys.fleet import FleetKeys
from app.keys.index import IndexKeys
from app.keys.media import MediaKeys
from app.keys.names import remembered
from app.keys.planning import PlanningKeys
from app.keys.tenants import TenantKeys

# kombu's separator between a queue's name and its priority step (0 is the most urgent).
PRIORITY_SEP = "\x06\x16"
PRIORITY_STEPS = (0, 3, 6, 9)


class Keys(FleetKeys, IndexKeys, MediaKeys, TenantKeys, AnswerKeys, BatchKeys, PlanningKeys):
    """Builds the names of one deployment's keys."""

    @property
    def home(self) -> str:
        """A key that has the slot of all that is not spread over a cluster."""
        return self.wire_versions()

    def wire_versions(self) -> str:
        return f"{self._fleet}wire-versions"

    @remembered
    def queue(self, queue: QueueName, step: int = 0) -> str:
        """The list behind a Celery queue at one priority step."""
        return f"{self.prefix}{queue}{PRIORITY_SEP}{step}" if step else f"{self.prefix}{queue}"
