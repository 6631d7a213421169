"""Prompts that end whatever engine they meet."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from openai import APIStatusError, OpenAI

from tests.stack import Stack, all_free, leases, mock_pool, stack, wait_until

POOL = "decode-pool-a"


def write(s: Stack, prompt: str, tokens: int = 250) -> str:
    """The whole text of a streamed answer."""
    with OpenAI(base_url=f"{s.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        stream = client.completions.create(
            model="mock", prompt=prompt, max_tokens=tokens, temperature=0, stream=True, extra_body={"ignore_eos": True}
        )
        return "".join(chunk.choices[0].text for chunk in stream)


@pytest.mark.parametrize("how", ["dies_on", "hangs_on"])
def test_a_poison_prompt_is_given_up_and_the_others_are_answered(valkey_url: str, tmp_path: Path, how: str) -> None:
    """It ends three of four workers; who was on them goes on, and it gets one clear error."""
    env = {"XYLEM_DEPLOYMENT": f"poison-{how}", "XYLEM_MAX_MIGRATIONS": "2", "XYLEM_STALL_S": "5"}
    pools = {POOL: mock_pool(step_ms=20.0, **{how: "poison"})}
    with stack(valkey_url, tmp_path, pools, **env) as s, ThreadPoolExecutor(9) as threads:
        s.api()
        for i in range(4):
            s.worker(name=f"worker-{i}")
        s.wait_ready(4)
        wanted = list(threads.map(lambda i: write(s, f"story {i}"), range(3)))
        stories = [threads.submit(write, s, f"story {i % 3}") for i in range(9)]
        wait_until(lambda: sum(lease.running for lease in leases(s, POOL)) == 9, "they have begun")
        with pytest.raises(APIStatusError) as failed:
            write(s, "a poison apple")
        assert (failed.value.status_code, failed.value.code) == (502, "worker_lost")
        assert "3 workers" in failed.value.message
        assert [story.result() for story in stories] == wanted * 3
        assert sum(s.names[f"worker-{i}"].poll() is None for i in range(4)) == 1
        wait_until(lambda: all_free(s, POOL), "nothing is held for anybody")
