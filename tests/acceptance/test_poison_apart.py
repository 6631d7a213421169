"""Tests requests that end each process that begins them.

Pictures, prompts and answers are computed by workers of their own.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError

from tests.pictures import asked, png
from tests.serving import Pools, client_of, revive, served_by
from tests.stack import Stack, all_free, leases, mock_pool, wait_until
from tests.vlm import random_vlm

COUNTS = {"encode": 2, "prefill": 2, "decode": 3}
NAMES = {f"{role}-{number}": role for role, count in COUNTS.items() for number in range(count)}


def pools(_: Path) -> Pools:
    """Decode workers die of apples, prefill workers of poison apples only."""
    path = str(random_vlm("idefics3", weights=False))
    split = {"disagg": {"remote_tokens": 64, "remote_wait_s": 60.0}}
    usual: dict[str, Any] = {"max_model_len": 2048, "block_size": 16, "step_ms": 15.0, "encode_tokens_per_s": 1000.0}
    dies = {"prefill": {"dies_on": "poison apple"}, "decode": {"dies_on": "apple"}}
    return {
        role: mock_pool(**usual | dies.get(role, {})) | {"path": path, "role": role} | (split if role in dies else {})
        for role in COUNTS
    }


fleet = served_by(pools, {}, XYLEM_MAX_MIGRATIONS="1")


def answer(s: Stack, messages: list[Any], tokens: int = 100) -> str:
    with client_of(s.url) as client:
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
    fleet.workers = NAMES
    revive(fleet)
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
