"""Every Redis key and channel: type, writer, lifetime and unit.

All carry the deployment's prefix, so that several deployments may share one Redis. Celery's own
keys get the same prefix (`global_keyprefix` in `app/celery.py`), and are in `broker_url` if that is another server: the
queue of pool P is the list `<prefix>P`, with `\\x06\\x16<step>` behind it for a priority step above 0. Times are by
Redis' clock (`store.clock`).

In a Redis Cluster, names begin with a hash tag instead of the prefix, and what a script or a MULTI touches shares one:
`{<deployment>}:` for most; `{<deployment>.kept}:` for kept answers and conversations (kept… to joined…);
`{<deployment>.<pool>}:` for the index (cached…, tiered…, stores…, predicted…); `{<deployment>.<api>}:` for out….

wire-versions           hash, wire version → when a process of that version last reported, ms since the epoch.
                        Written by workers, batch workers and api every ten seconds; never expires.
pool:<pool>             hash, worker → "r,e": its number of data-parallel ranks r, and e = 1 if it reports KV events.
                        A dead worker's field stays until an API replica removes it.
                        Written by worker and api; lives as long as a member.
seen:<pool>             string, "1". Its presence says that the pool had a worker lately. Written by the worker with its
                        lease; lives `patience_s`.
keys:api                hash, name → msgpack `tenants.records.ApiKey`: the keys that clients may use, as digests.
                        Written by `xylem keys` and the api; never expires.
tenants                 hash, name → msgpack `tenants.records.Tenant`. Written by `xylem tenants` and the api; never
                        expires.
keys:owners             hash, id of an owner → its tenant, of those that keys:api does not have (any more). Written by
                        `xylem keys revoke` and the api; never expires, but goes with what is erased.
erasures                hash, "key:<name>" or "tenant:<name>" → msgpack `tenants.erasures.Erasure`: what is being
                        erased, and what was in the last day. Written by the api.
erasing                 string, the API replica that erases. Lives 30 s after its last renewal.
salts:erased            hash, label (`kv_store.salts`) of an erased salt → when, seconds since the epoch; and
                        <label>|<pool> → how many of its blocks a worker of the pool has removed from the store so far.
                        Written by the api and by workers; a label stays for 30 days.
prices                  hash, model → msgpack `tenants.records.Price`. Written with it; never expires.
tenants-version         string, random: changes with `tenants`, `keys:api` and `prices`, so that nobody overwrites what
                        another has just written. Written with them; never expires.
audit                   stream, field `b`: msgpack `tenants.audit.Entry`: who changed what. Written by the api, `xylem
                        tenants` and `xylem keys`; about the last 100,000 entries.
loras                   hash, name → msgpack `messages.Adapter`: the wanted LoRA adapters. Written by the api; never
                        expires.
loras-version           string, the version given last, about ms since the epoch: changes with `loras`, so that
                        processes need to read only this. Written with it; never expires.
service:<model>         hash, what tenants got of the model's engines (`routing/tenant_service.py`): "v<class>" → a
                        priority class's virtual time; "t<class><tenant>" → the tenant's finish tag there, its weight,
                        and when it was last served, s since the epoch; "a<api>" → when that API replica told it, and
                        msgpack, a list of `tenant_service.Presence`: what it has of each tenant. Written by the api
                        (`serve.lua`); lives 10 min after the last.
spent:<account>         hash, what an account has left of its `requests` and `tokens` a minute, as of `at`, ms since
                        the epoch. <account>: an API key (as in files-of), or `tenant/<name>`; and with `:batch` behind
                        it, of its batches, if these have their own limits.
                        Written by api and batch workers; lives until the limits would be full again.
budget:<account>        hash, what the account has `spent` of its budget of the `kind` "<unit>/<period>" in the period
                        that began at `from`, ms since the epoch. Written with it; lives until that period ends.
budget:<account>:reserved hash, API replica → what its running requests may cost of that budget besides. Written by the
                        api; lives until a minute after their deadlines; those of dead replicas go when it refuses.
running:<account>       sorted set, "<api>|<request>" → a minute after its deadline, ms since the epoch: the requests of
                        an account with a limit of these. Written by the api; those of dead replicas go when it is full.
charged:<request>       hash, the `tokens` and the `money` that a request has been charged, and its deadline `until`, ms
                        since the epoch; with a budget, also what its answer may cost at most, `more_tokens` and
                        `more_money`, and the `holder`, the API replica that reserves it. Written with the above; gone
                        when it is settled, or a day after its deadline.
pool-state:<pool>       string, msgpack `messages.PoolState`: the state that its workers are to have (asleep, paused,
                        which weights). Written by api and batch workers, read by starting workers; never expires.
pool-state:<pool>:lock  string, a random id: the process that is changing it. Lives 10 s after its last renewal.
aliases                 hash, alias → JSON of `pools.Alias`: those that were made or changed at run time. Others are as
                        in the pools file. Written by the api; never expires.
prefixes:<pool>         hash, id → msgpack `messages.Prefix`: the prefixes that its workers are to have in their caches.
                        Written by the api; lives as long as the last one. Those whose time is over go with the next.
limits:<pool>           hash, `routing.candidates.Limits` field → value changed at run time. Written by the api.
worker:<id>             string, msgpack `messages.Lease`. The worker is alive while it exists.
                        Written by the worker each `heartbeat_s`; lives `lease_ttl_s`.
lost:<worker>           string, "1": an API replica has counted the worker's death in its metrics. Written by it; lives
                        10 min.
member:<worker>         string, msgpack `messages.Member`: of a worker whose engine spans several hosts. It is alive
                        while it exists. Written by it ten times a second; lives `lease_ttl_s`, while it loads longer.
gathering:<pool>        sorted set, worker → when it came, ms since the epoch: those that wait until they are a group.
                        Written by them; a dead one is removed by the next that looks.
group:<worker>          string, msgpack `messages.Group`: the group that it is in. Written by its leader (`form.lua`);
                        lives 60 s, in which it is read.
group-epoch:<pool>      string, the number of the last group. Never expires.
metrics:<worker>        string, msgpack list of `messages.WorkerMetric`. Written with its lease; lives as long.
api:<id>                string, "1". The API replica is alive while it exists. Written by it four times a second; lives
                        `api_ttl_s`.
changed:<pool>          sorted set, worker → when its lease became another one or ended, µs since the epoch: API
                        replicas read the leases of these. Written by worker and api; forgets after an hour.
watched:<pool>          string, "1". While it is there, an API replica has just read all leases of the pool, and others
                        need not. Written by api; lives four fifths of the time between two looks.
cached:<pool>           hash, 8-byte block hash (`kv.blocks`) → the KV caches that hold it: their numbers, 4 bytes each,
                        big endian, in order. Written by workers from their engines' KV events. Numbers of caches that
                        are gone or were cleared count for nothing, and are removed by the api a minute later.
                        A cache of layers of several kinds has two numbers (`Lease`).
cached-count:<pool>     hash, a cache's packed number → in how many entries of the above it is; that number and a "w" →
                        random bytes of its last write, as long as Redis has lost none: its worker looks. Written with
                        it.
tiered:<pool>           hash, as cached:<pool>, of tiers: the numbers of workers' host memories, and of stores.
tiered-count:<pool>     hash, as cached-count:<pool>.
stores:<pool>           hash, a store's address, and the engine and host that its blocks are for → its number in
                        tiered:<pool>. Written by the first worker that has it. Never expires: it outlives workers.
stored:<pool>           hash, a store's number and the last 8 bytes of an engine's hash of a block → its block hash, for
                        each block of tiered:<pool> that a store holds. Written with it.
cleaning:<pool>         string, the worker that compares the pool's store with the above, and bounds it. Lives three
                        times as long as the time between two looks.
cache-numbers           string, the number that was given last: each cache gets one when it is created, cleared or
                        written anew, and none is given twice. The first is a random one. Never expires.
                        With `index_url`, the above and predicted:… are there.
sweeping:<pool>         string, the API replica that removes what workers that are gone have left. Lives 60 s after its
                        last look.
predicted:<pool>:<place>  sorted set, block hash → when that guess expires, ms since the epoch. Used instead of the
                        above for engines without KV events. Written by the api at placement.
reservations:<worker>   hash, run → "b,t,r,p,a", for runs that are placed and not finished: b KV blocks, t uncached
                        prompt tokens to compute, rank r, p blocks to pull from the prefill engine (then t is 0), a the
                        API replica that awaits the run. An aside run has "<r>a" for r here and below: it is counted
                        apart, and online requests don't see it as load.
                        Written by the api at placement and the worker at the end; gone with the worker.
loads:<pool>            hash, a number below 128 (a worker's last two hex digits, modulo that) → of these workers'
                        places one after the other the name, with its length before it, and the sums of the above,
                        packed (`lua/requests/load.lua`): requests, blocks; of those without a first token the tokens
                        to compute, how many they are, and the blocks to pull; aside requests and their blocks; when
                        the first waiting prompt began, ms since the epoch.
                        Written with them, recounted by the worker every second; a place is gone with the worker.
load:<worker>           hash, the same sums by field, as wire version 1 reads them. Recounted by the worker every
                        second.
prefilling:<worker>     hash, run → its prompt's first block hash (8 bytes) and its rank, of requests without a first
                        token. Written with reservations.
starting:<pool>         hash, the prompts of such requests, for others that begin alike. Run → its place, a line feed
                        and its packed block hashes, or of a long prompt their outline
                        (`dispatch/placement_commands.py`); and 8-byte hash → the newest runs whose 1st, 4th, 16th …
                        block has that hash, each with a line feed. Written with the above; those of a dead worker are
                        removed by the api; lives as long as the last of these requests may.
request:<run>           string, msgpack `messages.Job`. Gone means done or cancelled.
                        Written by the api; lives until the deadline and 30 s more.
media:<sha256>          string, the samples of a picture (RGB, 8 bits each, row by row) or a sound (float32,
                        little-endian) in a prompt. <sha256>: as in `messages.Media`. Written by the api, in pieces,
                        before the request is placed; removed with the last request in progress that has it, or
                        XYLEM_MEDIA_LEFT_S after the process that dispatched that has gone.
media:held              hash, what requests in progress hold: `of:<request>` ("<key>|<tenant>|<sha256> …");
                        `size:<sha256>`; `n:<sha256>|<owner>`, how often; and `<owner>`, bytes, which is `all`,
                        `tenant:<name>` or `key:<id>`. Written by api and batch workers; bounded by XYLEM_MEDIA_HELD.
media:ends              sorted set, request → when its samples may be removed, ms since the epoch, unless it is renewed.
embedding:<model>:<sha256>  string, msgpack `messages.EmbeddingHandle`: where the encoded picture is, and with whom.
                        Written by that worker, and removed by it when it forgets the picture; lives 10 minutes.
expansions:<digest>     hash, "<kind>:<shape>:<number>" → msgpack list of token ids, each with how often it comes: what
                        stands for such a medium in prompts of a model whose engines alone know it. <digest>: as in
                        `messages.MediaSign`. Written by the api; at most 20,000 of a model; lives 30 days after the
                        last.
encoded:<run>           set of the workers that have encoded their pictures of it; the last one sends the next task.
                        Written by them; lives until `request:<run>` would expire.
commands:<worker>       list of msgpack `messages.WorkerCommand`. Written by the api; lives 60 s after the last.
commands:<api>          list of msgpack `messages.Look`, the questions of other API replicas. Lives as long.
reply:<id>              list, a worker's msgpack `messages.Reply` to a command, or an API replica's answer to a Look.
                        Lives 60 s.
kept:<id>               hash: `record` (msgpack `messages.KeptRequest`; none once deleted), `owner` (an API replica),
                        `epoch` (+1 for each new owner, and a cancel), `end` (ended, cancelled or full), `key` (the API
                        key it is counted for), `most` (bytes that this may have kept), and of a stored chat `chat`
                        (msgpack `messages.StoredChat`). Written by the api; lives until the deadline and
                        `keep_s`, and from the answer's end `keep_s`.
log:<id>                stream, ids from 1-0, field `b`: a msgpack list of events, of which the last is Done or Failed.
                        A kept answer so far. Written by its owner; lives as long.
kept-of:<api>           set of the ids that an API replica owns and that have not ended. Written by the api.
untold                  sorted set, "<tries>|<status>|<id>" → when it is due, ms since the epoch: background responses
                        that have ended, and that the webhook has not been told of; the status once that was tried.
                        Written by the api; gone when it is told, or after the last try.
answer-owners           set of the API replicas that own any, or did. Written by the api; a dead one is removed when its
                        answers are adopted.
chats-of:<key>          sorted set, id → when it came, ms since the epoch: the complete stored chats of an API key (as
                        in files-of). Written by the api; lives as long as the newest; the id of an expired chat stays
                        until the next read, or a day longer.
videos-of:<key>         sorted set, id → when it came, ms since the epoch: the videos of an API key (as in files-of),
                        with those that have ended. Written by the api; lives as long as the newest may; the id of an
                        expired one stays until the next read.
kept-bytes              hash, approximate bytes of kept answers with their logs, and of conversations with their items:
                        `all`, `key:<API key>`, `id:<id>`.
                        Written by the api with them; expired ones are subtracted when the next is kept.
kept-expiring           sorted set, "<id>|<API key>" → when it expires, ms since the epoch. Written with the above.
conversation:<id>       hash: `record` (JSON: `created`, `metadata`), `key` (the API key that it is counted for),
                        `of:<response>` for each response whose items it has, `busy` (the key kept:<response> of the one
                        that was begun last: the conversation is locked until that has an `end`, or is gone). Written by
                        the api; lives `keep_s` from its last change.
conversation-items:<id> list of JSON: its items, each with its id. Written with it, and lives as long.
joined:<hash>           string, the id that a request with this Idempotency-Key got (SHA-256 of <key> below and
                        that key). Written by the api; lives as long as the answer could.
file:<id>               string, msgpack `batch.records.StoredFile`. Its bytes are in the storage. Written by api and
                        batch workers; lives until it expires or is deleted, and then until its bytes are gone.
files-of:<key>          sorted set, file id → when it was made: the files of one API key. <key> is the key's id, since a
                        name may be used again; the name of a key without an id, which an older version made; "" where
                        no keys are required.
file-bytes:<key>        string, bytes of all files of that key. Written with files-of, and gone with the last file.
files-expiring          sorted set, file id → when it expires.
batch:<id>              hash, `batch.records.Batch` by field; `holder`, the batch worker that validates or finishes it,
                        and `holder_at`, ms since the epoch, when that worker last confirmed it;
                        `ticket`, a counter: a part gets a new number each time it is handed out; `broke:<part>`, how
                        often that part failed. Written by api and batch workers; lives `batch_keep_s` after its end.
batches-of:<key>        sorted set, batch id → when it was made, of one API key.
batches                 sorted set, batch id → its deadline: the batches that have not ended.
todo:<batch>            sorted set of the numbers of parts that no worker has. Lives as long as the batch runs.
taken:<batch>           hash, part → "ticket|worker|since": the ticket it was handed out with, the batch worker that
                        took it, if any, and when that worker last confirmed it, ms since the epoch. Lives as long.
done:<batch>:<part>     hash, line number → msgpack `batch.records.Result`, of an unfinished part. A finished part's
                        results go to the storage, as one file. Written by the batch worker that has the part.
batch-leader            string, the batch worker that is the leader. Lives 3 s after its last renewal.
batch-workers           hash, batch worker → how many parts it takes at once. Written by each, twice a second; the
                        leader removes dead ones.
batch-ports             hash, batch worker → host:port of its /metrics, of those with XYLEM_WORKER_PORT. As above.
handling:<what>         string, 3 for each process that died when it had just begun with <what> (`store/handling.py`),
                        1 for one that died later; with the present one while a process handles it. Written by batch
                        workers, api and usage writer; gone when <what> is over, or a day after the last time. Of
                        request:<id>, once a worker has died with it: "early deaths", and how many in all
                        (`dispatch/deaths.py`); lives until its deadline.
recording               string, msgpack `messages.Recording`: while it is there, API replicas record the requests that
                        end. Written and renewed by `xylem record`; lives 10 s after that.
recorded:<recording>    stream, field `b`: msgpack `messages.RecordedBatch`. Written by the api twice a second, read and
                        trimmed by `xylem record`; at most about 1,000 entries; lives 60 s after the last.
planning                string, "1": while it is there, API replicas count their requests for the planner. Written and
                        renewed by the planner; lives 30 s after that.
traffic:<number>        hash, API replica → msgpack, model → `planner.observed.Traffic`: what it counted in the window
                        of that number, of ten seconds, since the epoch. Written by the api; lives 5 min.
traffic-of:<model>:<seconds>  hash, begin → msgpack `planner.observed.Traffic`: all replicas together, in windows of so
                        many seconds: 10, of the last hour, and 300, of the last eight days. Written by the planner;
                        lives eight days.
planner-leader          string, the planner that is the leader. Lives 5 s after its last renewal.
planner-speeds          hash, pool → msgpack `planner.observed.Speed`, as last measured. Written by the planner; never
                        expires.
desired:<pool>          string, JSON of `planner.desired.Desired`: how many workers the planner wants in the pool, and
                        why, for whoever starts and ends workers. Written by the planner at each decision; lives ten
                        times as long as the time between two, and a minute at least.
usage                   stream, field `b`: a msgpack list of `usage.record.UsageRecord`, of requests that have ended.
                        Written by api and batch workers, at most about 250,000 entries; `xylem usage write` deletes
                        what it has written to SQL.
usage-aside             stream, as usage: entries with which too many usage writers died. Written by these; about 500.
usage-leader            string, the usage writer that is the leader. Lives 5 s after its last renewal.
batch-counts            string, how many times the lines of a batch were counted because its client or tenant may have
                        so many only: who checks that sees whether another batch was counted meanwhile. Written by
                        batch workers; never expires.
batch-totals            hash, over all batches: `completed` and `failed` lines, and tokens. Never expires.
out:<api>               stream, field `s`: msgpack `messages.EventBatch`. The channel of the same name carries the same
                        bytes live; the stream has them for replicas that missed some: its last `stream_bytes` bytes, at
                        most `stream_ttl_s` old.
                        Written by workers; lives `stream_ttl_s` after the last entry, or until the replica ends. With
                        `token_redis_urls`, it and the next one are in the one of these that the replica has taken.
out:<api>:marks         sorted set, an entry's id in that stream → bytes that had been written by then. Written by
                        workers (`trim_stream.lua`); lives as long.
"""

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

# kombu's separator between a queue's name and its priority step (0 is the most urgent).
PRIORITY_SEP = "\x06\x16"
PRIORITY_STEPS = (0, 3, 6, 9)


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

    def reservations(self, worker: WorkerId) -> str:
        return f"{self._fleet}reservations:{worker}"

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

    def limits(self, pool: PoolId) -> str:
        return f"{self._fleet}limits:{pool}"

    def pool_state(self, pool: PoolId) -> str:
        return f"{self._fleet}pool-state:{pool}"

    def pool_lock(self, pool: PoolId) -> str:
        return f"{self.pool_state(pool)}:lock"

    def changed(self, pool: PoolId) -> str:
        return f"{self._fleet}changed:{pool}"

    def watched(self, pool: PoolId) -> str:
        return f"{self._fleet}watched:{pool}"

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

    def prefilling(self, worker: WorkerId) -> str:
        return f"{self._fleet}prefilling:{worker}"

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

    def reply(self, asked: str) -> str:
        return f"{self._fleet}reply:{asked}"

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

    def queue(self, queue: QueueName, step: int = 0) -> str:
        """The list behind a Celery queue at one priority step."""
        return f"{self.prefix}{queue}{PRIORITY_SEP}{step}" if step else f"{self.prefix}{queue}"
