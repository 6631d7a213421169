"""A user's own Celery application on the broker of a deployment: it knows tasks of Xylem by their names only."""

import os
from typing import Any

from celery import Celery

from app.keys import PRIORITY_STEPS

QUEUE = "own"


def own_app(url: str, prefix: str, *, results: bool = True) -> Celery:
    own = Celery("own", broker=url, backend=url if results else None, set_as_current=False)
    own.conf.broker_transport_options = {"global_keyprefix": prefix, "priority_steps": list(PRIORITY_STEPS)}
    own.conf.result_backend_transport_options = {"global_keyprefix": prefix}
    own.conf.task_routes = {"app.tasks.batch.*": {"queue": "batch"}, "own.*": {"queue": QUEUE}}
    return own


app = own_app(os.environ.get("OWN_REDIS", ""), os.environ.get("OWN_PREFIX", ""))


@app.task(name="own.collect")  # type: ignore[untyped-decorator]
def collect(results: list[Any]) -> list[Any]:
    """The body of a chord."""
    return results
