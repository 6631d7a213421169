"""The Celery application behind `celery -A app worker -Q POOL` and `celery -A app flower`.

Why each setting is what it is: `ops/decisions/0004-celery-settings.md`.
"""

import os
import sys
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP

from app.addresses.redis_url import broker, tls_options
from app.batch.schedule import beat_schedule
from app.broker_channel import BrokerConnection
from app.errors import SettingsError
from app.flower_hosts import guard
from app.ids import BATCH_QUEUE
from app.keys import PRIORITY_STEPS
from app.settings import load_settings

try:
    settings = load_settings()
    schedule = beat_schedule(settings.schedule_file)
except SettingsError as exc:
    sys.exit(f"xylem: {exc}")

# Flower can revoke tasks and stop workers, and has no login by default: nobody but this machine reaches it
# unless an operator says so.
os.environ.setdefault("FLOWER_ADDRESS", "127.0.0.1")
guard(settings)
# A worker that was started anew has a new name. Flower would list the dead ones, and count them as online, for ever.
os.environ.setdefault("FLOWER_PURGE_OFFLINE_WORKERS", "60")

# By name: nothing in app imports workers.
_TASKS = [f"app.tasks.{name}" for name in ("prefill", "decode", "encode", "encode_pictures", "paint", "batch")]
_INCLUDED = [*_TASKS, "workers.engine.bootstep", "workers.batch.bootstep", "workers.task_control"]

_PAUSES = {"interval_start": 0.1, "interval_step": 0.2, "interval_max": 1.0}  # s, between tries to reach the broker


class _BrokerConnection(BrokerConnection):
    """Reconnects within a second after Redis is back: kombu itself pauses 2, 4, 6 … and up to 30 s between tries."""

    def ensure_connection(self, errback: Any = None, max_retries: Any = None, **how: Any) -> Any:
        return super().ensure_connection(errback, max_retries, **_PAUSES | how)


class _Amqp(AMQP):  # type: ignore[misc]
    Connection = _BrokerConnection


broker_redis = settings.broker_url or settings.redis_url
broker_url, transport_options = broker(broker_redis)
result_backend, result_options = broker(settings.result_url) if settings.result_url else (None, {})
app = Celery("xylem", broker=broker_url, include=_INCLUDED, amqp=_Amqp)
app.conf.update(
    broker_use_ssl=tls_options(broker_redis),
    # JSON only: nothing from Redis is ever unpickled.
    accept_content=["json"],
    task_serializer="json",
    result_serializer="json",
    # Tokens go through our own streams, and only tasks that submit batches have a result, if the operator keeps them.
    result_backend=result_backend,
    result_backend_transport_options={**result_options, "global_keyprefix": settings.keys.prefix},
    redis_backend_use_ssl=tls_options(settings.result_url or ""),
    task_ignore_result=True,
    # A worker that dies is noticed by its lease within seconds, so a message is acknowledged when it is taken: nothing
    # waits for the visibility timeout.
    task_acks_late=False,
    # One process, one engine (fork and CUDA don't mix). Its tasks need no threads (`task_strategy.py`), except those
    # that are to be run later. Tasks beyond the concurrency stay in Redis, and can be taken back.
    worker_pool="threads",
    worker_disable_prefetch=True,
    worker_prefetch_multiplier=1,
    worker_send_task_events=True,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
    task_default_queue="unplaced",
    task_routes={"app.tasks.batch.*": {"queue": BATCH_QUEUE}},
    beat_schedule=schedule,
    task_create_missing_queues=True,
    task_inherit_parent_priority=True,  # a decode task has the priority of its prefill
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_channel_error_retry=True,  # Redis out of memory, or read-only in a failover: that passes
    broker_transport_options={
        **transport_options,
        "global_keyprefix": settings.keys.prefix,
        "priority_steps": list(PRIORITY_STEPS),
        "queue_order_strategy": "priority",
        "visibility_timeout": 3600,
        # A connection that something between forgets is noticed: by a command within the first, by who waits for
        # messages within a second and twice the other.
        "socket_timeout": 2,
        "health_check_interval": 2,
        "socket_keepalive": True,
        "socket_connect_timeout": 5,
        **_PAUSES,  # for connections that kombu makes without ensure_connection
    },
)
