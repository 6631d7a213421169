"""Tests requests that end each process that begins them.

Pictures, prompts and answers are computed by workers of their own.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import APIStatusError, OpenAI

from tests.pictures import asked, png
from tests.stack import Stack, all_free, leases, mock_pool, stack, wait_until
from tests.vlm import random_vlm

COUNTS = {"encode": 2, "prefill": 2, "decode": 3}
NAMES = {f"{role}-{number}": role for role, count in COUNTS.items() for number in range(count)}


@pytest.fixture(scope="module")
def fleet(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One migration is allowed. Decode workers die of apples, prefill workers of poison apples only."""
    path = str(random_vlm("idefics3", weights=False))
    split = {"disagg": {"remote_tokens": 64, "remote_wait_s": 60.0}}
    usual: dict[str, Any] = {
        "max_model_len": 2048, "block_size": 16, "step_ms": 15.0, "encode_tokens_per_s": 1000.0,
    }  # fmt: skip
    dies = {"prefill": {"dies_on": "poison apple"}, "decode": {"dies_on": "apple"}}
    pools = {
        role: mock_pool(**usual | dies.get(role, {})) | {"path": path, "role": role} | (split if role in dies else {})
        for role in COUNTS
    }
    env = {"XYLEM_DEPLOYMENT": "apart", "XYLEM_MAX_MIGRATIONS": "1"}
    with stack(valkey_url, tmp_path_factory.mktemp("apart"), pools, **env) as s:
        s.api()
        yield s


def answer(s: Stack, messages: list[Any], tokens: int = 100) -> str:
    with OpenAI(base_url=f"{s.url}/v1", api_key="none", max_retries=0, timeout=100) as client:
        response = client.chat.completions.create(
            model="mock", messages=messages, max_tokens=tokens, seed=1, extra_body={"ignore_eos": True}
        )
        return str(response.choices[0].message.content)


@pytest.mark.parametrize(("messages", "first"), [
    pytest.param(asked(png(1), text="A poison apple. " * 20), "prefill", id="prompt"),
    pytest.param(asked(png(1), text="An apple. " * 20), "decode", id="answer"),
])  # fmt: skip
def test_what_ends_each_worker_that_begins_it_costs_one_migration(
    fleet: Stack, messages: list[Any], first: str
) -> None:
    """Whichever worker that was, and all others are answered."""
    for name, role in NAMES.items():
        if name not in fleet.names or fleet.names[name].poll() is not None:
            fleet.worker(role, name)
    wait_until(lambda: len(leases(fleet)) == len(NAMES), "all workers", 60)
    fleet.wait_ready(COUNTS["decode"])
    others = [asked(png(i), text=f"Story {i}. " * 20) for i in range(2, 5)]
    with ThreadPoolExecutor(9) as threads:
        references = list(threads.map(lambda each: answer(fleet, each), others))
        answers = [threads.submit(answer, fleet, each) for each in others * 3]
        wait_until(lambda: sum(lease.load.running for lease in leases(fleet, "decode")) == 9, "they have begun")
        with pytest.raises(APIStatusError) as exc_info:
            answer(fleet, messages)
        assert (exc_info.value.status_code, exc_info.value.code) == (502, "worker_lost")
        assert [each.result() for each in answers] == references * 3

    def died() -> list[str]:
        return [role for name, role in NAMES.items() if fleet.names[name].poll() is not None]

    wait_until(lambda: len(died()) == 2, f"two have ended: {died()}", 10)
    assert first in died()
    wait_until(lambda: all_free(fleet, *COUNTS), "nothing is held for anybody")
