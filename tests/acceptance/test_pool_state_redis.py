"""Redis dies in the middle of an operator's change, and comes back with what it had written."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.chaos.fleet import Fleet
from tests.stack import leases, mock_pool, stop, wait_until

POOL = "decode-pool-a"
CHANGES = {"sleep": {"level": 1}, "wake": {}, "weights": {"version": "v2"}}
WANTED = {
    "sleep": {"sleep": 1, "weights": ""},
    "wake": {"sleep": 0, "weights": ""},
    "weights": {"sleep": 0, "weights": "v2"},
}
_WRITTEN_S = 1.5  # Redis writes its file each second


@pytest.mark.timeout(180)
@pytest.mark.parametrize("what", CHANGES)
def test_a_change_in_whose_middle_redis_dies_is_done_or_told_and_can_be_done_again(tmp_path: Path, what: str) -> None:
    """The workers do what they were told before, the wanted state stays, and requests are answered."""
    (tmp_path / "weights/v2").mkdir(parents=True)
    body = CHANGES[what] | ({"path": str(tmp_path / "weights/v2")} if what == "weights" else {})
    slow = mock_pool(sleep_s=3.0, wake_s=3.0, weights_s=3.0)
    with Fleet(tmp_path, {POOL: slow}, apis=1, workers=2, XYLEM_WEIGHTS_FOLDER=str(tmp_path / "weights")) as fleet:
        url = f"{fleet.urls()[0]}/admin/pools/{POOL}"

        def change(name: str) -> httpx.Response:
            return httpx.post(f"{url}/{name}", json=body if name == what else {}, timeout=60)

        if what == "wake":
            change("sleep").raise_for_status()
        with ThreadPoolExecutor() as threads:
            future = threads.submit(change, what)
            wait_until(lambda: any(lease.state.changing for lease in leases(fleet.stack)), "a worker changes")
            time.sleep(_WRITTEN_S)
            assert fleet.redis_process is not None
            stop(fleet.redis_process)
            fleet.start_redis()
            first = future.result()
        assert first.status_code in (200, 503), first.text
        if first.status_code == 503:
            assert first.json()["error"]["code"] == "store_unavailable"
        wait_until(lambda: len(leases(fleet.stack)) == 2, "both workers are back")
        # Until the lock of the first one has expired, it is refused.
        again = wait_until(lambda: (r := change(what)).status_code == 200 and r.json(), "it is done again", 60)
        assert not again["refused"]
        assert {key: again["wanted"][key] for key in ("sleep", "weights")} == WANTED[what]
        for worker in again["workers"].values():
            assert (worker["asleep"], worker["weights"], worker["changing"]) == (*WANTED[what].values(), False)
        change("wake").raise_for_status()
        answer = httpx.post(f"{fleet.urls()[0]}/v1/completions", json={"model": "mock", "prompt": "a", "max_tokens": 3})
        assert answer.status_code == 200, answer.text
        assert answer.json().get("system_fingerprint") == (WANTED[what]["weights"] or None)
