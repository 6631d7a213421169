"""Every Redis key and channel: type, writer, lifetime and unit.

All carry the deployment's prefix, so that several deployments may share one Redis. Celery's own
keys get the same prefix (`global_keyprefix` in `app/celery.py`): the queue of pool P is the list
`<prefix>P`, with `\\x06\\x16<step>` behind it for a priority step above 0. Times are by Redis' clock (`store.clock`).

wire-versions           hash, wire version → ms since the epoch, when a process of it last said that it lives.
                        Written by workers, batch workers and api each ten seconds; lives for good.
pool:<pool>             hash, worker → "r,e": its data-parallel ranks r, and e = 1 when it tells its KV events.
                        A dead one stays until an API replica prunes it.
                        Written by worker and api; lives as long as a member.
seen:<pool>             string, "1". Its presence says that the pool had a worker lately. Written by the worker with its
                        lease; lives `patience_s`.
keys:api                hash, name → msgpack `messages.ApiKey`: the keys that clients may use, as digests.
                        Written by `xylem keys`; lives for good.
loras                   hash, name → msgpack `messages.Adapter`: the LoRA adapters that are wanted. Written by the api;
                        lives for good.
loras-version           string, the version that was given last, about ms since the epoch: changes with the above, so
                        that processes look at this only. Written with it; lives for good.
spent:<key>             hash, what an API key (as in files-of) has left of its `requests` and `tokens` a minute, as of
                        `at`, ms since the epoch; `spent:<key>:batch` of its batches where these have their own.
                        Written by api and batch workers; lives until it would be as good as new.
limits:<pool>           hash, `routing.candidates.Limits` field → value changed at run time. Written by the api.
worker:<id>             string, msgpack `messages.Lease`. Its presence is the worker's life.
                        Written by the worker each `heartbeat_s`; lives `lease_ttl_s`.
metrics:<worker>        string, msgpack list of `messages.WorkerMetric`. Written with its lease; lives as long.
api:<id>                string, "1". Its presence is the API replica's life. Written by it four times a second; lives
                        `api_ttl_s`.
kv:<pool>:<place>       set of 8-byte block hashes (`kv.blocks`): what that KV cache holds. Written by the worker
                        from its engine's KV events; gone with the worker. `…:new` while it is built anew.
predicted:<pool>:<place>  sorted set, block hash → when that guess expires, ms since the epoch. In the place of the
                        above for engines that tell no events. Written by the api at placement.
reservations:<worker>   hash, run → "b,t,r,p,a": placed on rank r and not finished: b KV blocks, t uncached prompt
                        tokens to compute, p blocks to pull from the engine that computes them (then t is 0); a is
                        the API replica that awaits it. An aside run, which gives way to others, has "<r>a" for r
                        here and below: it counts apart, and nobody else sees it as load.
                        Written by the api at placement and the worker at the end; gone with the worker.
load:<worker>           hash, the sums of the above for each rank r: `requests.r`, `blocks.r`; and of those without a
                        first token `waiting.r` (how many), `pulls.r`, `tokens.r`, and `since.r`, ms since the epoch,
                        when the head of the line of prompts to compute began.
                        Written with them, counted anew by the worker every second.
prefilling:<worker>     hash, run → its prompt's first block hash (8 bytes) and its rank, of requests without a first
                        token. Written with reservations.
prefix:<run>            string, the packed block hashes of such a request's prompt. Lives as long.
request:<run>           string, msgpack `messages.Job`. Gone means done or cancelled.
                        Written by the api; lives until the deadline and 30 s more.
commands:<worker>         list of msgpack `messages.WorkerCommand`. Written by the api; lives 60 s after the last.
commands:<api>            list of msgpack `messages.Look`, what other API replicas ask it. Lives as long.
reply:<id>              list, a worker's msgpack `messages.Reply` to a command, or what an API replica says to a Look.
                        Lives 60 s.
kept:<id>               hash: `record` (msgpack `messages.Kept`; none when it was deleted), `owner` (an API replica),
                        `epoch` (+1 for each new owner, and a cancel), `end` (ended or cancelled), `key` (the API key
                        it is counted for), and of a stored chat `chat` (msgpack `messages.StoredChat`). Written by the
                        api; lives until the deadline and `keep_s`, and from the answer's end `keep_s`.
log:<id>                stream, ids from 1-0, field `b`: a list of msgpack events; Done or Failed is the last one's.
                        What has come of a kept answer. Written by its owner; lives as long.
kept-of:<api>           set of the ids that an API replica owns and that have not ended. Written by the api.
answer-owners           set of the API replicas that own any, or did. Written by the api; a dead one goes when what it
                        had is adopted.
chats-of:<key>          sorted set, id → when it came, ms since the epoch: the whole stored chats of an API key (as in
                        files-of). Written by the api; lives as long as the newest, an expired one until it is looked
                        at, or a day longer.
kept-bytes              hash, bytes that kept answers take with their logs, and conversations with their items, about:
                        `all`, `key:<API key>`, `id:<id>`.
                        Written by the api, with what it counts; an expired one goes when the next is kept.
kept-expiring           sorted set, "<id>|<API key>" → when it expires, ms since the epoch. Written with the above.
conversation:<id>       hash: `record` (JSON: `created`, `metadata`), `key` (the API key that it is counted for),
                        `of:<response>` for each response whose items it has. Written by the api; lives `keep_s` from
                        its last change.
conversation-items:<id> list of JSON: its items, each with its id. Written with it, and lives as long.
joined:<hash>           string, the id that a request with this Idempotency-Key got (SHA-256 of <key> below and
                        of it). Written by the api; lives as long as the answer could.
file:<id>               string, msgpack `batch.records.StoredFile`. Its bytes are in the storage. Written by api and
                        batch workers; lives until it expires or is deleted, and then until its bytes are gone.
files-of:<key>          sorted set, file id → when it was made: of one API key, as <key> its id: a name may be given
                        to somebody else. Keys that an older version made have none, and their name stands there;
                        "" where no keys are asked for.
file-bytes:<key>        string, bytes that all files of that key have. Written with files-of, and gone with its last.
files-expiring          sorted set, file id → when it expires.
batch:<id>              hash, `batch.records.Batch` by field; `holder`, the batch worker that validates or finishes it,
                        and `holder_at`, ms since the epoch, when it last said so;
                        `ticket`, a counter: each sending of a part gets a number; `broke:<part>`, how often that part
                        broke. Written by api and batch workers; lives `batch_keep_s` after its end.
batches-of:<key>        sorted set, batch id → when it was made, of one API key.
batches                 sorted set, batch id → when its time is over: those that have not ended.
todo:<batch>            sorted set of the numbers of parts that no worker has. Lives as long as the batch runs.
taken:<batch>           hash, part → "ticket|worker|since": sent with that ticket, and taken by that batch worker, if by
                        any; at that time (ms since the epoch) that worker last said so. Lives as long.
done:<batch>:<part>     hash, line number → msgpack `batch.records.Result`: what a part that is not finished has. Then
                        it goes to the storage, as one file. Written by the batch worker that has the part.
batch-leader            string, the batch worker that looks after all batches. Lives 3 s after its last look.
batch-workers           hash, batch worker → how many parts it takes at once. Written by each, twice a second; a dead
                        one goes when the leader looks.
batch-totals            hash, what all batches have had: `completed` and `failed` lines, and tokens. Lives for good.
out:<api>               stream, field `s`: msgpack `messages.Step`: the truth behind the channel of the same name, which
                        carries the same bytes live. Its last `stream_bytes` bytes, of at most `stream_ttl_s`.
                        Written by workers; lives `stream_ttl_s` after their last words, or until the replica ends.
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

    def __init__(self, deployment: str) -> None:
        self.prefix = f"{deployment}:"

    def wire_versions(self) -> str:
        return f"{self.prefix}wire-versions"

    def pool(self, pool: PoolId) -> str:
        return f"{self.prefix}pool:{pool}"

    def seen(self, pool: PoolId) -> str:
        return f"{self.prefix}seen:{pool}"

    def worker(self, worker: WorkerId) -> str:
        return f"{self.prefix}worker:{worker}"

    def metrics(self, worker: WorkerId) -> str:
        return f"{self.prefix}metrics:{worker}"

    def api(self, api: ApiId) -> str:
        return f"{self.prefix}api:{api}"

    def reservations(self, worker: WorkerId) -> str:
        return f"{self.prefix}reservations:{worker}"

    def load(self, worker: WorkerId) -> str:
        return f"{self.prefix}load:{worker}"

    def request(self, run: RunId) -> str:
        return f"{self.prefix}request:{run}"

    def out(self, api: ApiId) -> str:
        return f"{self.prefix}out:{api}"

    def out_marks(self, api: ApiId) -> str:
        return f"{self.out(api)}:marks"

    def api_keys(self) -> str:
        return f"{self.prefix}keys:api"

    def loras(self) -> tuple[str, str]:
        """The adapters, and their version."""
        return f"{self.prefix}loras", f"{self.prefix}loras-version"

    def spent(self, account: str) -> str:
        return f"{self.prefix}spent:{account}"

    def limits(self, pool: PoolId) -> str:
        return f"{self.prefix}limits:{pool}"

    def kv(self, pool: PoolId, place: PlaceId) -> str:
        return f"{self.prefix}kv:{pool}:{place}"

    def kv_aside(self, pool: PoolId, place: PlaceId) -> str:
        return f"{self.kv(pool, place)}:new"

    def predicted(self, pool: PoolId, place: PlaceId) -> str:
        return f"{self.prefix}predicted:{pool}:{place}"

    def prefilling(self, worker: WorkerId) -> str:
        return f"{self.prefix}prefilling:{worker}"

    def blocks(self, run: RunId) -> str:
        return f"{self.prefix}prefix:{run}"

    def account(self, run: RunId, worker: WorkerId) -> tuple[str, ...]:
        """The keys of `release.lua`."""
        return (
            self.request(run),
            self.reservations(worker),
            self.load(worker),
            self.prefilling(worker),
            self.blocks(run),
        )

    def kept(self, request: RequestId) -> str:
        return f"{self.prefix}kept:{request}"

    def log(self, request: RequestId) -> str:
        return f"{self.prefix}log:{request}"

    def conversation(self, conversation: ConversationId) -> tuple[str, str]:
        """It, and its items."""
        return f"{self.prefix}conversation:{conversation}", f"{self.prefix}conversation-items:{conversation}"

    def kept_of(self, api: ApiId) -> str:
        return f"{self.prefix}kept-of:{api}"

    def answer_owners(self) -> str:
        return f"{self.prefix}answer-owners"

    def chats_of(self, key: KeyId) -> str:
        return f"{self.prefix}chats-of:{key}"

    def kept_account(self) -> tuple[str, str]:
        """The last keys of the scripts that keep answers."""
        return f"{self.prefix}kept-bytes", f"{self.prefix}kept-expiring"

    def joined(self, digest: str) -> str:
        return f"{self.prefix}joined:{digest}"

    def commands(self, process: WorkerId | ApiId) -> str:
        return f"{self.prefix}commands:{process}"

    def reply(self, asked: str) -> str:
        return f"{self.prefix}reply:{asked}"

    def file(self, file: FileId) -> str:
        return f"{self.prefix}file:{file}"

    def files_of(self, key: KeyId) -> str:
        return f"{self.prefix}files-of:{key}"

    def file_bytes(self, key: KeyId) -> str:
        return f"{self.prefix}file-bytes:{key}"

    def files_expiring(self) -> str:
        return f"{self.prefix}files-expiring"

    def batch(self, batch: BatchId) -> str:
        return f"{self.prefix}batch:{batch}"

    def batches_of(self, key: KeyId) -> str:
        return f"{self.prefix}batches-of:{key}"

    def batches(self) -> str:
        return f"{self.prefix}batches"

    def todo(self, batch: BatchId) -> str:
        return f"{self.prefix}todo:{batch}"

    def taken(self, batch: BatchId) -> str:
        return f"{self.prefix}taken:{batch}"

    def done(self, batch: BatchId, part: int) -> str:
        return f"{self.prefix}done:{batch}:{part}"

    def batch_leader(self) -> str:
        return f"{self.prefix}batch-leader"

    def batch_workers(self) -> str:
        return f"{self.prefix}batch-workers"

    def batch_totals(self) -> str:
        return f"{self.prefix}batch-totals"

    def queue(self, queue: QueueName, step: int = 0) -> str:
        """The list behind a Celery queue at one priority step."""
        return f"{self.prefix}{queue}{PRIORITY_SEP}{step}" if step else f"{self.prefix}{queue}"
