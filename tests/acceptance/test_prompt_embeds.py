"""Prompt embeddings, from OpenAI's client to the mock engine, whose answers depend on each number."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from app.media.prompt_embeds import prompt_embeds_of
from tests.batching import TEXT, answered
from tests.prompt_embeds import embeds
from tests.serving import outlived, refused, revive, served_by
from tests.stack import Stack, indexed_blocks, mock_pool, timeline, wait_until

POOL = "decode-pool-a"
SIZE = 16  # tokens of a block


ARGS: dict[str, Any] = {"max_model_len": 2048, "block_size": SIZE, "step_ms": 15.0}
APART = {"disagg": {"remote_tokens": 64, "remote_wait_s": 60.0}}
TAKES = {"prompt_embeds": True}
APARTS = ("plain-pool", "prefill-apart", "decode-apart")
# Two workers that take them, one that doesn't, and two for prompts and answers.
served = served_by(
    {
        POOL: mock_pool(model="rows", **ARGS) | TAKES,
        "plain-pool": mock_pool(model="plain", **ARGS),
        "prefill-apart": mock_pool(model="apart", **ARGS) | APART | {"role": "prefill"},
        "decode-apart": mock_pool(model="apart", **ARGS) | APART | TAKES | {"role": "decode"},
    },
    {"rows-0": POOL, "rows-1": POOL, **{pool: pool for pool in APARTS}},
)


def answer(client: OpenAI, given: Any, **fields: Any) -> Any:
    extra = {"prompt_embeds": given} | fields.pop("extra_body", {})
    options = {"model": "rows", "prompt": "", "seed": 1, "max_tokens": 12} | fields
    return client.completions.create(**options, extra_body=extra)


def test_an_answer_depends_on_the_rows(client: OpenAI) -> None:
    """Each counts as a token; embeddings and prompts of one request have a choice each, the embeddings first."""
    first, second = answer(client, embeds(1, 40)), answer(client, embeds(2, 40))
    assert first.usage.prompt_tokens == 40
    texts = [response.choices[0].text for response in (first, second)]
    assert texts[0] != texts[1]
    plain = client.completions.create(model="rows", prompt="Hello", seed=1, max_tokens=12)
    both = answer(client, [embeds(1, 40), embeds(2, 40)], prompt="Hello")
    assert [choice.text for choice in both.choices] == [*texts, plain.choices[0].text]
    assert both.usage.prompt_tokens == 80 + plain.usage.prompt_tokens  # type: ignore[union-attr]


def test_the_same_embedding_meets_its_kv_and_another_does_not(served: Stack, client: OpenAI) -> None:
    before = indexed_blocks(served, POOL)
    answer(client, embeds(11, 100))
    wait_until(lambda: indexed_blocks(served, POOL) >= before + 6, "the index has its blocks")
    assert answer(client, embeds(11, 100)).usage.prompt_tokens_details.cached_tokens == 96
    other = answer(client, embeds(12, 100)).usage
    assert other.prompt_tokens_details is None or not other.prompt_tokens_details.cached_tokens


def test_many_at_once_leave_a_worker_connections_for_its_lease(served: Stack, client: OpenAI) -> None:
    """A job's rows take one to Redis; without any left, a worker that eight requests kept busy was taken for dead."""
    embeddings = [embeds(number, 8) for number in range(128)]
    with ThreadPoolExecutor(4) as together:
        responses = list(together.map(lambda _: answer(client, embeddings, max_tokens=1), range(4)))
    assert [len(one.choices) for one in responses] == [128] * 4
    assert all("not_re" not in served.log(f"rows-{i}") for i in range(2))  # media_not_read, lease_not_renewed


def test_rows_are_in_redis_for_a_while_and_in_no_log(served: Stack, client: OpenAI) -> None:
    text = embeds(21, 30)
    chunks = answer(client, text, stream=True, max_tokens=400, extra_body={"ignore_eos": True})
    next(iter(chunks))
    embedding = prompt_embeds_of(text, 64, 100)
    key = f"prompt-embeds:media:{embedding.sha256}"
    assert served.redis.get(key) == embedding.data
    assert 0 < served.redis.ttl(key) <= 300
    chunks.close()
    wait_until(lambda: not served.redis.exists(key), "they are gone")
    logs = "".join(served.log(name) for name in served.names)
    assert text[200:240] not in logs


def test_an_answer_goes_on_elsewhere_when_its_worker_is_killed(served: Stack, client: OpenAI) -> None:
    """Behind the same rows: the answer is the one that an undisturbed worker gives."""
    embedding = embeds(31, 50)
    fields: dict[str, Any] = {"max_tokens": 120, "extra_body": {"ignore_eos": True}}
    whole = answer(client, embedding, **fields).choices[0].text
    assert outlived(served, POOL, answer(client, embedding, stream=True, **fields))[0] == whole
    revive(served)


def test_an_answer_is_the_same_aside_in_a_batch_and_where_prompts_are_computed_elsewhere(
    served: Stack, client: OpenAI
) -> None:
    """Rows are computed by the worker that answers."""
    embedding = embeds(41, 100)
    reference = answer(client, embedding).choices[0].text
    assert answer(client, embedding, extra_body={"service_tier": "flex"}).choices[0].text == reference
    apart = answer(client, embedding, model="apart")
    assert apart.choices[0].text == reference
    assert len(timeline(served, apart.id)["workers"]) == 1
    served.worker("batch", "batch")
    body = {"model": "rows", "prompt_embeds": embedding, "seed": 1, "max_tokens": 12}
    (completion,) = answered(client, [body], TEXT)[1]
    assert completion["choices"][0]["text"] == reference


def test_what_takes_none_refuses_by_name(client: OpenAI) -> None:
    with refused("prompt_embeds", "takes no prompt embeddings"):
        answer(client, embeds(1, 10), model="plain")
    part: Any = {"type": "prompt_embeds", "data": embeds(1, 10)}
    with pytest.raises(BadRequestError, match="content parts of type 'prompt_embeds'") as exc_info:
        client.chat.completions.create(model="rows", messages=[{"role": "user", "content": [part]}])
    assert exc_info.value.param == "messages.0.content.0.type"
    with pytest.raises(BadRequestError, match="'prompt_embeds' is not supported") as exc_info:
        client.chat.completions.create(
            model="rows", messages=[{"role": "user", "content": "x"}], extra_body={"prompt_embeds": embeds(1, 10)}
        )
    with refused("prompt_embeds.1", "shape"):
        answer(client, [embeds(1, 10), embeds(1, 10, 63)])
