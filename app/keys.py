"""Every Redis key and channel: type, writer, lifetime and unit.

All carry the deployment's prefix, so that several deployments may share one Redis. Celery's own
keys get the same prefix (`global_keyprefix` in `app/celery.py`): the queue of pool P is the list
`<prefix>P`, with `\\x06\\x16<step>` behind it for a priority step above 0.

pool:<pool>             set. Ids of the pool's workers; a dead one stays until an API replica prunes it.
                        Written by worker and api; lives as long as a member.
worker:<id>             string, msgpack `messages.Lease`. Its presence is the worker's life.
                        Written by the worker each `heartbeat_s`; lives `lease_ttl_s`.
reservations:<worker>   hash, run → "b,t": KV blocks b and prompt tokens t placed there and not finished.
                        Written by the api at placement and the worker at the end; gone 10 min after the worker.
load:<worker>           hash, the sums of the above: `requests`, `blocks`, `tokens`. Written with them.
request:<run>           string, msgpack `messages.Job`. Gone means done or cancelled.
                        Written by the api; lives until the deadline and 30 s more.
cancel:<worker>         list of runs whose client has gone. Written by the api; 60 s after the last.
out:<api>               stream, capped at `stream_maxlen`, field `s`: msgpack `messages.Step`: the truth behind
                        the channel of the same name, which carries the same bytes live.
                        Written by workers; lives `stream_ttl_s` after the last 256 messages.
"""

from app.ids import ApiId, PoolId, QueueName, RunId, WorkerId

# kombu's separator between a queue's name and its priority step (0 is the most urgent).
PRIORITY_SEP = "\x06\x16"
PRIORITY_STEPS = (0, 3, 6, 9)


class Keys:
    """Builds the names of one deployment's keys."""

    def __init__(self, deployment: str) -> None:
        self.prefix = f"{deployment}:"

    def pool(self, pool: PoolId) -> str:
        return f"{self.prefix}pool:{pool}"

    def worker(self, worker: WorkerId) -> str:
        return f"{self.prefix}worker:{worker}"

    def reservations(self, worker: WorkerId) -> str:
        return f"{self.prefix}reservations:{worker}"

    def load(self, worker: WorkerId) -> str:
        return f"{self.prefix}load:{worker}"

    def request(self, run: RunId) -> str:
        return f"{self.prefix}request:{run}"

    def out(self, api: ApiId) -> str:
        return f"{self.prefix}out:{api}"

    def cancel(self, worker: WorkerId) -> str:
        return f"{self.prefix}cancel:{worker}"

    def queue(self, queue: QueueName, step: int = 0) -> str:
        """The list behind a Celery queue at one priority step."""
        return f"{self.prefix}{queue}{PRIORITY_SEP}{step}" if step else f"{self.prefix}{queue}"
