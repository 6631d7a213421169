"""Prompts that end whatever engine they meet."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import APIStatusError

from tests.serving import client_of, revive, served_by
from tests.stack import Stack, all_free, leases, mock_pool, wait_until

POOL = "decode-pool-a"


def write(s: Stack, prompt: str, tokens: int = 250) -> str:
    """The whole text of a streamed answer."""
    with client_of(s.url) as client:
        stream = client.completions.create(
            model="mock", prompt=prompt, max_tokens=tokens, temperature=0, stream=True, extra_body={"ignore_eos": True}
        )
        return "".join(chunk.choices[0].text for chunk in stream)


fleet = served_by(
    {POOL: mock_pool(step_ms=20.0, dies_on="poison", hangs_on="venom")}, {},
    XYLEM_MAX_MIGRATIONS="2", XYLEM_STALL_S="4",
    XYLEM_SSE_PING_S="60",  # until the first comment a stream may still end with an HTTP error
)  # fmt: skip


@pytest.mark.parametrize("what", ["poison", "venom"])
def test_a_poison_prompt_is_given_up_and_the_others_are_answered(fleet: Stack, what: str) -> None:
    """The prompt kills or hangs three of four workers.

    Other answers on them go on, and the prompt gets one clear error.
    """
    names = [f"worker-{i}" for i in range(4)]
    fleet.workers = dict.fromkeys(names, POOL)
    revive(fleet)
    with ThreadPoolExecutor(9) as threads:
        references = list(threads.map(lambda i: write(fleet, f"story {i}"), range(3)))
        stories = [threads.submit(write, fleet, f"story {i % 3}") for i in range(9)]
        wait_until(lambda: sum(lease.load.running for lease in leases(fleet, POOL)) == 9, "they have begun")
        with pytest.raises(APIStatusError) as exc_info:
            write(fleet, f"a {what} apple")
        assert (exc_info.value.status_code, exc_info.value.code) == (502, "worker_lost")
        assert "3 workers" in exc_info.value.message
        assert [story.result() for story in stories] == references * 3
    wait_until(lambda: sum(fleet.names[name].poll() is None for name in names) == 1, "three have ended")
    wait_until(lambda: all_free(fleet, POOL), "nothing is held for anybody")
