"""Every Redis key and channel: type, writer, lifetime and unit.

All carry the deployment's prefix, so that several deployments may share one Redis. Celery's own
keys get the same prefix (`global_keyprefix` in `app/celery.py`): the queue of pool P is the list
`<prefix>P`, with `\\x06\\x16<step>` behind it for a priority step above 0.

| key or channel        | type                | written by          | lives                | holds                                    |
|-----------------------|---------------------|---------------------|----------------------|------------------------------------------|
| pool:<pool>           | set                 | worker, api         | as long as a member  | ids of the pool's workers, dead ones too until an API prunes them |
| worker:<id>           | string (msgpack)    | worker, each second | lease_ttl_s          | `messages.Lease`; its presence is the worker's life |
| reservations:<worker> | hash request → "b,t" | api, worker        | until the worker dies | KV blocks b and prompt tokens t placed there and not finished |
| load:<worker>         | hash                | with the above      | with the above       | sums of the above: `requests`, `blocks`, `tokens` |
| request:<id>:<n>      | string (msgpack)    | api                 | deadline + grace     | `messages.Job` of attempt n; gone = cancelled or done |
| out:<api>             | stream, capped      | worker              | stream_ttl_s         | field `s`: `messages.Step`, the truth behind the channel |
| out:<api>             | channel             | worker              |                      | the same bytes, live                     |
| cancel:<worker>       | list                | api                 | until taken, 60 s    | ids of requests whose client has gone    |
"""

from app.ids import ApiId, PoolId, QueueName, RequestId, WorkerId

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

    def request(self, request: RequestId, attempt: int) -> str:
        return f"{self.prefix}request:{request}:{attempt}"

    def out(self, api: ApiId) -> str:
        return f"{self.prefix}out:{api}"

    def cancel(self, worker: WorkerId) -> str:
        return f"{self.prefix}cancel:{worker}"

    def queue(self, queue: QueueName, step: int = 0) -> str:
        """The list behind a Celery queue at one priority step."""
        return f"{self.prefix}{queue}{PRIORITY_SEP}{step}" if step else f"{self.prefix}{queue}"
