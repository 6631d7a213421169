"""The names of Redis keys and channels. `keys.toml` says of each what it has, who uses it and how long it lives.

All carry the deployment's prefix, so that several deployments may share one Redis. Celery's own
keys get the same prefix (`global_keyprefix` in `app/celery.py`), and are in `broker_url` if that is another server: the
queue of pool P is the list `<prefix>P`, with `\\x06\\x16<step>` behind it for a priority step above 0. Times are by
Redis' clock (`store.clock`).

In a Redis Cluster, names begin with a hash tag instead of the prefix, and what a script or a MULTI touches shares one:
`{<deployment>}:` for most; `{<deployment>.kept}:` for kept answers and conversations (kept… to joined…);
`{<deployment>.<pool>}:` for the index (cached…, tiered…, stores…, predicted…); `{<deployment>.<api>}:` for out….
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

from app.ids import (
    ApiId,
    BatchId,
    ConversationId,
    FileId,
    KeyId,
    PlaceId,
    PoolId,
    QueueName,
    RequestId,
    RunId,
    WorkerId,
)

F = TypeVar("F", bound=Callable[..., Any])

# kombu's separator between a queue's name and its priority step (0 is the most urgent).
PRIORITY_SEP = "\x06\x16"
PRIORITY_STEPS = (0, 3, 6, 9)
_MOST = 4096  # names that are remembered, of each kind


def _remembered(name: F) -> F:
    """`name`, which is called for each request with the same few arguments: of pools and workers."""
    return cast(F, lru_cache(_MOST)(name))


class Keys:
    """Builds the names of one deployment's keys."""

    def __init__(self, deployment: str, *, clustered: bool = False) -> None:
        """`clustered`: the names are for a Redis Cluster."""
        self.prefix = f"{deployment}:"  # of Celery's keys: its broker is a single server
        self._deployment, self._clustered = deployment, clustered
        self._fleet, self._kept = self._tagged(), self._tagged("kept")

    def _tagged(self, part: str = "") -> str:
        """The beginning of names that have one slot in a cluster."""
        tag = f"{self._deployment}.{part}" if part else self._deployment
        return f"{{{tag}}}:" if self._clustered else self.prefix

    @property
    def home(self) -> str:
        """A key that has the slot of all that is not spread over a cluster."""
        return self.wire_versions()

    def wire_versions(self) -> str:
        return f"{self._fleet}wire-versions"

    def pool(self, pool: PoolId) -> str:
        return f"{self._fleet}pool:{pool}"

    def seen(self, pool: PoolId) -> str:
        return f"{self._fleet}seen:{pool}"

    @_remembered
    def worker(self, worker: WorkerId) -> str:
        return f"{self._fleet}worker:{worker}"

    def lost(self, worker: WorkerId) -> str:
        return f"{self._fleet}lost:{worker}"

    def metrics(self, worker: WorkerId) -> str:
        return f"{self._fleet}metrics:{worker}"

    def member(self, worker: WorkerId) -> str:
        return f"{self._fleet}member:{worker}"

    def group(self, worker: WorkerId) -> str:
        return f"{self._fleet}group:{worker}"

    def gathering(self, pool: PoolId) -> str:
        return f"{self._fleet}gathering:{pool}"

    def group_epoch(self, pool: PoolId) -> str:
        return f"{self._fleet}group-epoch:{pool}"

    def api(self, api: ApiId) -> str:
        return f"{self._fleet}api:{api}"

    @_remembered
    def reservations(self, worker: WorkerId) -> str:
        return f"{self._fleet}reservations:{worker}"

    @_remembered
    def loads(self, pool: PoolId) -> str:
        return f"{self._fleet}loads:{pool}"

    def load(self, worker: WorkerId) -> str:
        return f"{self._fleet}load:{worker}"

    def request(self, run: RunId) -> str:
        return f"{self._fleet}request:{run}"

    def media(self, sha256: str) -> str:
        return f"{self._fleet}media:{sha256}"

    def media_held(self) -> tuple[str, str, str]:
        """The keys of the scripts that count samples."""
        return f"{self._fleet}media:held", f"{self._fleet}media:ends", f"{self._fleet}media:"

    def embedding(self, model: str, sha256: str) -> str:
        return f"{self._fleet}embedding:{model}:{sha256}"

    def expansions(self, digest: str) -> str:
        return f"{self._fleet}expansions:{digest}"

    def encoded(self, run: RunId) -> str:
        return f"{self._fleet}encoded:{run}"

    def out(self, api: ApiId) -> str:
        return f"{self._tagged(api)}out:{api}"

    def out_marks(self, api: ApiId) -> str:
        return f"{self.out(api)}:marks"

    def api_keys(self) -> str:
        return f"{self._fleet}keys:api"

    def loras(self) -> tuple[str, str]:
        """The adapters, and their version."""
        return f"{self._fleet}loras", f"{self._fleet}loras-version"

    def tenants(self) -> str:
        return f"{self._fleet}tenants"

    def key_owners(self) -> str:
        return f"{self._fleet}keys:owners"

    def erasures(self) -> tuple[str, str]:
        """The erasures, and who carries them out."""
        return f"{self._fleet}erasures", f"{self._fleet}erasing"

    def erased_salts(self) -> str:
        return f"{self._fleet}salts:erased"

    def prices(self) -> str:
        return f"{self._fleet}prices"

    def tenants_version(self) -> str:
        return f"{self._fleet}tenants-version"

    def audit(self) -> str:
        return f"{self._fleet}audit"

    def aliases(self) -> str:
        return f"{self._fleet}aliases"

    def spent(self, account: str) -> str:
        return f"{self._fleet}spent:{account}"

    def budget(self, account: str) -> str:
        return f"{self._fleet}budget:{account}"

    def reserved(self, account: str, unit: str) -> str:
        """The reserved part of a budget: a change of the unit leaves what running requests reserve in the old one."""
        return f"{self._fleet}budget:{account}:reserved{'' if unit == 'tokens' else f':{unit}'}"

    def running(self, account: str) -> str:
        return f"{self._fleet}running:{account}"

    def charged(self, request: RequestId) -> str:
        return f"{self._fleet}charged:{request}"

    def service(self, model: str) -> str:
        return f"{self._fleet}service:{model}"

    def prefixes(self, pool: PoolId) -> str:
        return f"{self._fleet}prefixes:{pool}"

    @_remembered
    def limits(self, pool: PoolId) -> str:
        return f"{self._fleet}limits:{pool}"

    def pool_state(self, pool: PoolId) -> str:
        return f"{self._fleet}pool-state:{pool}"

    def pool_lock(self, pool: PoolId) -> str:
        return f"{self.pool_state(pool)}:lock"

    @_remembered
    def changed(self, pool: PoolId) -> str:
        return f"{self._fleet}changed:{pool}"

    def watched(self, pool: PoolId) -> str:
        return f"{self._fleet}watched:{pool}"

    @_remembered
    def cached(self, pool: PoolId) -> tuple[str, str]:
        """The prefix index, and the counts of its entries."""
        return f"{self._tagged(pool)}cached:{pool}", f"{self._tagged(pool)}cached-count:{pool}"

    def tiered(self, pool: PoolId) -> tuple[str, str]:
        """The same as `cached`, for what lies behind engines' own caches."""
        return f"{self._tagged(pool)}tiered:{pool}", f"{self._tagged(pool)}tiered-count:{pool}"

    def stored(self, pool: PoolId) -> str:
        return f"{self._tagged(pool)}stored:{pool}"

    def cleaning(self, pool: PoolId) -> str:
        return f"{self._tagged(pool)}cleaning:{pool}"

    def stores(self, pool: PoolId) -> str:
        return f"{self._tagged(pool)}stores:{pool}"

    def cache_numbers(self) -> str:
        return f"{self._fleet}cache-numbers"

    def sweeping(self, pool: PoolId) -> str:
        return f"{self._fleet}sweeping:{pool}"

    def predicted(self, pool: PoolId, place: PlaceId) -> str:
        return f"{self._tagged(pool)}predicted:{pool}:{place}"

    @_remembered
    def prefilling(self, worker: WorkerId) -> str:
        return f"{self._fleet}prefilling:{worker}"

    @_remembered
    def starting(self, pool: PoolId) -> str:
        return f"{self._fleet}starting:{pool}"

    def release(self, run: RunId, worker: WorkerId, pool: PoolId) -> tuple[str, ...]:
        """The keys of `release.lua`."""
        return (
            self.request(run),
            self.reservations(worker),
            self.loads(pool),
            self.prefilling(worker),
            self.starting(pool),
        )

    def kept(self, request: RequestId) -> str:
        return f"{self._kept}kept:{request}"

    def log(self, request: RequestId) -> str:
        return f"{self._kept}log:{request}"

    def conversation(self, conversation: ConversationId) -> tuple[str, str]:
        """The keys of the conversation, and of its items."""
        return f"{self._kept}conversation:{conversation}", f"{self._kept}conversation-items:{conversation}"

    def kept_of(self, api: ApiId) -> str:
        return f"{self._kept}kept-of:{api}"

    def answer_owners(self) -> str:
        return f"{self._kept}answer-owners"

    def untold(self) -> str:
        return f"{self._kept}untold"

    def chats_of(self, key: KeyId) -> str:
        return f"{self._kept}chats-of:{key}"

    def videos_of(self, key: KeyId) -> str:
        return f"{self._kept}videos-of:{key}"

    def kept_account(self) -> tuple[str, str]:
        """The last keys of the scripts that keep answers."""
        return f"{self._kept}kept-bytes", f"{self._kept}kept-expiring"

    def joined(self, digest: str) -> str:
        return f"{self._kept}joined:{digest}"

    def commands(self, process: WorkerId | ApiId) -> str:
        return f"{self._fleet}commands:{process}"

    def reply(self, question: str) -> str:
        return f"{self._fleet}reply:{question}"

    def file(self, file: FileId) -> str:
        return f"{self._fleet}file:{file}"

    def files_of(self, key: KeyId) -> str:
        return f"{self._fleet}files-of:{key}"

    def file_bytes(self, key: KeyId) -> str:
        return f"{self._fleet}file-bytes:{key}"

    def file_bytes_in_all(self) -> str:
        return self.file_bytes(KeyId("*"))  # no key's id

    def files_expiring(self) -> str:
        return f"{self._fleet}files-expiring"

    def batch(self, batch: BatchId) -> str:
        return f"{self._fleet}batch:{batch}"

    def batches_of(self, key: KeyId) -> str:
        return f"{self._fleet}batches-of:{key}"

    def batches(self) -> str:
        return f"{self._fleet}batches"

    def todo(self, batch: BatchId) -> str:
        return f"{self._fleet}todo:{batch}"

    def taken(self, batch: BatchId) -> str:
        return f"{self._fleet}taken:{batch}"

    def done(self, batch: BatchId, part: int) -> str:
        return f"{self._fleet}done:{batch}:{part}"

    def batch_leader(self) -> str:
        return f"{self._fleet}batch-leader"

    def batch_workers(self) -> str:
        return f"{self._fleet}batch-workers"

    def batch_ports(self) -> str:
        return f"{self._fleet}batch-ports"

    def batch_counts(self) -> str:
        return f"{self._fleet}batch-counts"

    def batch_totals(self) -> str:
        return f"{self._fleet}batch-totals"

    def handling(self, what: str) -> str:
        return f"{self._fleet}handling:{what}"

    def recording(self) -> str:
        return f"{self._fleet}recording"

    def recorded(self, recording: str) -> str:
        return f"{self._fleet}recorded:{recording}"

    def usage(self) -> str:
        return f"{self._fleet}usage"

    def usage_aside(self) -> str:
        return f"{self._fleet}usage-aside"

    def usage_leader(self) -> str:
        return f"{self._fleet}usage-leader"

    def planning(self) -> str:
        return f"{self._fleet}planning"

    def traffic(self, window: int) -> str:
        return f"{self._fleet}traffic:{window}"

    def traffic_of(self, model: str, seconds: int) -> str:
        return f"{self._fleet}traffic-of:{model}:{seconds}"

    def planner_leader(self) -> str:
        return f"{self._fleet}planner-leader"

    def planner_speeds(self) -> str:
        return f"{self._fleet}planner-speeds"

    def desired(self, pool: PoolId) -> str:
        return f"{self._fleet}desired:{pool}"

    @_remembered
    def queue(self, queue: QueueName, step: int = 0) -> str:
        """The list behind a Celery queue at one priority step."""
        return f"{self.prefix}{queue}{PRIORITY_SEP}{step}" if step else f"{self.prefix}{queue}"
