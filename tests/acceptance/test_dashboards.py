"""Every panel shows something of a fleet that does all that there are panels for: a real Prometheus scrapes it."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import httpx
import pytest
import yaml

from app.ids import BATCH_QUEUE
from ops.observability.empty import empty, everything, shows
from ops.observability.panels import Query
from tests.acceptance.test_disagg import pool as apart
from tests.acceptance.test_images import RULES as PAINTING
from tests.batching import submitted
from tests.pictures import asked, png
from tests.prometheus import prometheus
from tests.serving import begin, client_of
from tests.stack import BIN, Stack, mock_pool, stack, valkey, wait_until
from tests.vlm import random_vlm

LONG = "the quick brown fox jumps over the lazy dog " * 40
WINDOW = "15s"
ENOUGH_S = 60.0  # for the panels of a slow machine


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One worker of each kind."""
    path = tmp_path_factory.mktemp("dashboards")
    tiers = {"tiers": {"host_gb": 0.02, "disk": str(path / "kv")}}
    small = {"max_model_len": 1024, "block_size": 32, "total_blocks": 48, "handoff": {"block_bytes": 2**16}}
    sees = mock_pool(model="sees", max_model_len=2048, block_size=16) | {
        "path": str(random_vlm("idefics3", weights=False))
    }
    paints = {"model": "paints", "engine": "mock", "task": "image", "args": {"step_ms": 5.0}, "painting": PAINTING}
    pools = {
        "both-pool": mock_pool(**small) | tiers | {"scale": {"most": 1}},
        "prefill-pool": apart("prefill", model="apart"),
        "decode-pool": apart("decode", model="apart"),
        "seeing-pool": sees,
        "eyes-pool": sees | {"role": "encode"},
        "painting-pool": paints,
    }
    env = {"XYLEM_WORKER_PORT": "0", "XYLEM_MEDIA_STORE": str(path / "media")}
    with valkey(path) as url, stack(url, path, pools, **env) as s:
        planner = {"objectives": {"mock": {"ttft_s": 1.0, "itl_s": 0.1}}}
        s.pools_file.write_text(yaml.safe_dump({"pools": pools, "planner": planner}))
        s.spawn("planner", str(BIN / "xylem"), "planner", "--interval", "1")
        begin(s, {**{pool: pool for pool in pools}, "batch": BATCH_QUEUE})
        yield s


@contextmanager
def under_load(s: Stack) -> Iterator[None]:
    """Requests of all kinds, again and again, one of each kind at a time."""
    over, numbers = threading.Event(), count()
    client = client_of(s.url)

    def again(ask: Callable[[], object]) -> None:
        while not over.is_set():
            ask()

    def paint() -> None:
        client.images.generate(model="paints", prompt="a red boat", size="32x32")

    def see() -> None:
        picture = png(next(numbers) % 200)
        client.chat.completions.create(model="sees", messages=asked(picture), max_tokens=8)

    def complete(model: str, prompt: str) -> None:
        client.completions.create(model=model, prompt=prompt, max_tokens=8)

    def ask_for_nothing() -> None:
        assert httpx.get(f"{s.url}/v1/nothing").status_code == 404
        over.wait(0.2)

    asks: list[Callable[[], object]] = [
        lambda: complete("mock", f"{next(numbers) % 5} {LONG}"),
        lambda: complete("apart", f"{next(numbers)} {LONG}"),
        see,
        paint,
        ask_for_nothing,
    ]
    lines = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": {"model": "mock", "prompt": "hello"}}
        for i in range(3000)
    ]
    with client, ThreadPoolExecutor(len(asks)) as threads:
        batch = submitted(client, lines, "/v1/completions")
        running = [threads.submit(again, ask) for ask in asks]
        try:
            yield
        finally:
            over.set()
            client.batches.cancel(batch.id)
        for one in running:
            one.result()


@pytest.mark.timeout(240)
def test_no_panel_is_empty(served: Stack, tmp_path: Path) -> None:
    """Each panel has numbers, and the labels that its legend names."""
    empty_panels = [one.name for one in everything()]

    def all_show() -> bool:
        empty_panels[:] = empty(client, WINDOW)
        return not empty_panels

    with prometheus(served, tmp_path) as client, under_load(served):
        try:
            wait_until(all_show, "every panel shows something", ENOUGH_S, every_s=1.0)
        finally:
            print(json.dumps({"panels_empty": len(empty_panels)}), *empty_panels, sep="\n")  # noqa: T201 (what fails)
        assert not shows(client, Query("sum (xylem_gone)"), WINDOW)
        assert not shows(client, Query("max (xylem_workers)", "{{pool}}"), WINDOW)
        targets = client.get("/api/v1/targets").json()["data"]["activeTargets"]
        assert {target["labels"]["job"] for target in targets} == {"xylem-api", "xylem-worker"}
        assert [target for target in targets if target["health"] != "up"] == []
        firing = client.get("/api/v1/alerts").json()["data"]["alerts"]
        assert [alert["labels"]["alertname"] for alert in firing if alert["state"] == "firing"] == []
