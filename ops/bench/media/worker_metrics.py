"""Metrics that workers have told of themselves."""

import time

import httpx


def told(client: httpx.Client, url: str, name: str) -> float:
    """The sum of a metric over all workers, after all that has happened so far. `url`: the API's."""
    time.sleep(1.5)  # more than two heartbeats of a worker
    lines = client.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))
