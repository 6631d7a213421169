"""Beam search over real processes: through OpenAI's client by vLLM's names, and what becomes of one that is cut off."""

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.batching import TEXT, answered
from tests.serving import refused, revive, served_by
from tests.stack import Stack, all_free, leases, mock_pool, wait_until

POOL = "decode-pool-a"
APART = {"disagg": {"remote_tokens": 16, "remote_wait_s": 60.0}}
STEP_MS = 10.0
served = served_by(
    {
        POOL: mock_pool(step_ms=STEP_MS),
        "prefill-apart": mock_pool(model="apart", step_ms=STEP_MS) | APART | {"role": "prefill"},
        "decode-apart": mock_pool(model="apart", step_ms=STEP_MS) | APART | {"role": "decode"},
    },
    {"w1": POOL, "w2": POOL, "batch": "batch", "prefill-apart": "prefill-apart", "decode-apart": "decode-apart"},
)
PROMPT = "A fox went out " * 8
WIDTH, TOKENS = 4, 12


def search(client: OpenAI, **fields: Any) -> Any:
    """Two answers of four beams."""
    own = {"use_beam_search": True, "best_of": WIDTH, "ignore_eos": True} | fields.pop("extra_body", {})
    options = {"model": "mock", "prompt": PROMPT, "n": 2, "max_tokens": TOKENS, "logprobs": 2} | fields
    return client.completions.create(**options, extra_body=own)


def shown(answer: Any) -> list[Any]:
    return [(choice.text, choice.finish_reason, choice.logprobs.token_logprobs) for choice in answer.choices]


def test_the_best_answers_come_first_and_every_beam_is_counted(client: OpenAI) -> None:
    """Each choice is whole, ends once and is another; nothing is drawn, so a temperature changes nothing."""
    answer = search(client)
    (text, finish, logprobs), (other_text, *_) = shown(answer)
    assert finish == "length"
    assert text != other_text
    assert len(logprobs) == TOKENS
    sums = [sum(choice.logprobs.token_logprobs) for choice in answer.choices]
    assert sums == sorted(sums, reverse=True)
    assert answer.usage.completion_tokens == WIDTH * TOKENS
    assert shown(search(client, temperature=1.7, seed=3)) == shown(answer)
    [best] = search(client, n=1).choices
    assert best.text == text


def test_a_search_finds_likelier_answers_than_the_likeliest_tokens(client: OpenAI) -> None:
    greedy = client.completions.create(
        model="mock", prompt=PROMPT, max_tokens=TOKENS, temperature=0, logprobs=0, extra_body={"ignore_eos": True}
    )
    own_sum = sum(greedy.choices[0].logprobs.token_logprobs)  # type: ignore[union-attr,arg-type,misc]
    assert sum(search(client).choices[0].logprobs.token_logprobs) >= own_sum
    assert search(client, n=1, extra_body={"best_of": 1}).choices[0].text == greedy.choices[0].text


def test_a_token_that_stops_an_answer_ends_its_beam(client: OpenAI) -> None:
    whole = search(client, logprobs=None, extra_body={"return_token_ids": True})
    token = whole.choices[0].token_ids[3]
    answer = search(client, extra_body={"stop_token_ids": [token], "length_penalty": -2.0, "return_token_ids": True})
    stopped_choices = [choice for choice in answer.choices if choice.finish_reason == "stop"]
    assert stopped_choices
    assert all((choice.stop_reason, choice.token_ids[-1]) == (token, token) for choice in stopped_choices)


def test_a_chat_is_searched_too(client: OpenAI) -> None:
    chat = client.chat.completions.create(
        model="mock", messages=[{"role": "user", "content": "hello"}], n=3, max_tokens=5, logprobs=True, top_logprobs=1,
        extra_body={"use_beam_search": True, "ignore_eos": True, "early_stopping": "never"},
    )  # fmt: skip
    assert len({choice.message.content for choice in chat.choices}) == 3
    assert [len(choice.logprobs.content or ()) for choice in chat.choices if choice.logprobs] == [5, 5, 5]
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 15


def test_prompts_that_other_workers_compute_are_searched_where_they_are_answered(client: OpenAI) -> None:
    """The two engines have one model, so the answers are those of the pool in which one worker does both."""
    assert shown(search(client, model="apart")) == shown(search(client))


def test_flex_requests_and_lines_of_batches_are_searched(served: Stack, client: OpenAI) -> None:
    """Both give way to other requests in the middle of a search, and go on from there."""
    with ThreadPoolExecutor() as together:
        flex = [together.submit(search, client, extra_body={"service_tier": "flex"}) for _ in range(4)]
        online = [together.submit(search, client) for _ in range(2)]
        of_online, *others = [shown(one.result()) for one in [*online, *flex]]
    assert others == [of_online] * 5
    body = {"model": "mock", "prompt": PROMPT, "n": 2, "best_of": WIDTH, "max_tokens": TOKENS, "use_beam_search": True}
    _, [line] = answered(client, [body | {"ignore_eos": True}], TEXT)
    assert [choice["text"] for choice in line["choices"]] == [text for text, *_ in of_online]
    assert line["usage"]["completion_tokens"] == WIDTH * TOKENS


def test_streams_are_refused(client: OpenAI) -> None:
    with refused("stream", match="no answer is known before the search is over"):
        search(client, stream=True)


LONG: dict[str, Any] = {
    "model": "mock", "prompt": PROMPT, "max_tokens": 300, "use_beam_search": True, "best_of": WIDTH, "ignore_eos": True,
}  # fmt: skip


def busy(s: Stack) -> Any:
    """The name of the worker that computes a search."""
    running = {lease.worker.pid for lease in leases(s, POOL) if lease.load.running}
    return next((name for name in ("w1", "w2") if s.names[name].pid in running), None)


def test_a_search_whose_worker_dies_finds_the_same_on_another(served: Stack, client: OpenAI) -> None:
    of_no_other = search(client, n=2, max_tokens=200)
    with ThreadPoolExecutor() as aside:
        answer = aside.submit(search, client, n=2, max_tokens=200)
        name = wait_until(lambda: busy(served), "a worker has it")
        assert not answer.done()
        served.names[name].send_signal(signal.SIGKILL)
        assert shown(answer.result(60)) == shown(of_no_other)
        assert answer.result().usage.completion_tokens == WIDTH * 200
    revive(served)
    wait_until(lambda: all_free(served, POOL), "nothing is held or reserved")


def answer_tokens(s: Stack) -> float:
    """Tokens of answers that tenants were charged for."""
    lines = httpx.get(f"{s.url}/metrics").text.splitlines()
    charged_lines = [line for line in lines if line.startswith("xylem_tenant_tokens_total") and '"completion"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in charged_lines)


def test_a_client_that_leaves_ends_the_search_and_pays_for_what_was_computed(served: Stack) -> None:
    """Within a second or so of computing: there is no token that it could be counted by."""
    before = answer_tokens(served)

    async def leave() -> None:
        async with httpx.AsyncClient(base_url=served.url) as c:
            with pytest.raises(httpx.ReadTimeout):
                await c.post("/v1/completions", json=LONG, timeout=2.6)

    asyncio.run(leave())
    wait_until(lambda: all_free(served, POOL), "nothing is held or reserved")
    wait_until(lambda: not busy(served), "the engine has let go")
    assert WIDTH * 20 < answer_tokens(served) - before < WIDTH * LONG["max_tokens"]
