"""Endpoints at which SGLang's ranks publish their KV events."""

import json
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from app.engines.base import KvEventSource
from app.engines.ports import free_ports
from app.errors import SettingsError


def event_config(ranks: int, value: Any) -> dict[str, Any]:
    """Published on this host unless the pool says where; replay is always on, since missed events must be had."""
    if isinstance(value, str):  # as SGLang's own YAML has it
        with suppress(ValueError):
            value = json.loads(value)
    if not isinstance(value, dict):
        raise SettingsError(f"args.kv_events_config={value!r}: has to be a mapping, or null")
    if ranks > 1:  # each rank's port is the first one + its number
        first = free_ports(2 * ranks)
        defaults = {"endpoint": f"tcp://*:{first}", "replay_endpoint": f"tcp://*:{first + ranks}"}
    else:  # abstract sockets leave no files
        path = f"ipc://@xylem-{secrets.token_hex(8)}"
        defaults = {"endpoint": f"{path}-events", "replay_endpoint": f"{path}-replay"}
    # Its default format has hashes that salts and adapters don't wholly keep apart.
    return {"publisher": "zmq", "format": "dynamo", **defaults, **value}


def event_sources(
    config: str, ranks: Iterable[int], pictures: Mapping[int, tuple[int, str]]
) -> dict[int, KvEventSource]:
    """`config`: ServerArgs' `kv_events_config`. `pictures`: as `KvEventSource` has them."""
    settings = json.loads(config)
    publishes, replays, topic = settings["endpoint"], settings["replay_endpoint"], settings.get("topic", "")
    return {
        rank: KvEventSource(_of_rank(publishes, rank), _of_rank(replays, rank), topic, pictures=pictures)
        for rank in ranks
    }


def _of_rank(endpoint: str, rank: int) -> str:
    """The endpoint to connect to: a rank's port is the first one's + its number."""
    if not endpoint.startswith("tcp://"):
        return endpoint
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return f"tcp://{'127.0.0.1' if host in ('*', '0.0.0.0') else host}:{int(port) + rank}"  # noqa: S104 (it compares)
