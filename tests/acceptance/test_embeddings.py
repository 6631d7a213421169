"""Embeddings, scores and classes: real processes, the official client, and mock engines."""

import asyncio
import json
import os
import shutil
import signal
from array import array
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from math import hypot
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from app.engines.mock.encoding import vector
from app.tokenizing.tokenizer import load_tokenizer
from tests.acceptance.test_document import check, declared
from tests.batching import answered
from tests.serving import Pools, served_by
from tests.stack import Stack, all_free, leases, metric, mock_pool, wait_until

MODEL = Path("app/engines/mock/model")
EMBED, CLASSIFY, CHAT = "embed-pool", "classify-pool", "chat-pool"
TEXTS = ["The cat sat on the mat.", "A cat on a mat", "Engines answer requests"]


def pools(path: Path) -> Pools:
    model = path / "model"
    shutil.copytree(MODEL, model)
    config = json.loads((model / "config.json").read_text())
    more = {"matryoshka_dimensions": [8, 32], "id2label": {"0": "sad", "1": "glad", "2": "neither"}}
    (model / "config.json").write_text(json.dumps(config | more))
    slow = {"step_ms": 20.0, "prefill_tokens_per_s": 20_000.0}
    return {
        EMBED: mock_pool(model="embedder", **slow) | {"task": "embed", "path": str(model)},
        CLASSIFY: mock_pool(model="classifier") | {"task": "classify", "path": str(model)},
        CHAT: mock_pool(),
    }


served = served_by(pools, {"batch": "batch", "w1": EMBED, "w2": EMBED, "w3": CLASSIFY, "w4": CHAT})


def post(s: Stack, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{s.url}{path}", json={"model": "embedder"} | body, timeout=60)


def both_run(s: Stack) -> bool:
    return all(lease.load.running for lease in leases(s, EMBED))


def as_made(text: str, dimensions: int = 384) -> list[float]:
    """The vector of a text, as the engine makes it."""
    tokens = load_tokenizer(MODEL).encode(text)
    return array("f", vector(tokens, dimensions)).tolist()


def test_base64_and_floats_are_the_same_vectors_in_the_order_of_the_texts(client: OpenAI) -> None:
    """The client asks for base64 of its own accord; both are exactly what the engine made."""
    usual = client.embeddings.create(model="embedder", input=TEXTS)
    floats = client.embeddings.create(model="embedder", input=TEXTS, encoding_format="float")
    assert [d.embedding for d in usual.data] == [d.embedding for d in floats.data] == [as_made(t) for t in TEXTS]
    assert [d.index for d in usual.data] == [0, 1, 2]
    assert hypot(*usual.data[0].embedding) == pytest.approx(1)
    tokens = sum(len(load_tokenizer(MODEL).encode(t)) for t in TEXTS)
    assert (usual.usage.prompt_tokens, usual.usage.total_tokens) == (tokens, tokens)


def test_base64_is_little_endian_float32(served: Stack) -> None:
    """OpenAI encodes it so."""
    (item,) = post(served, "/v1/embeddings", input=TEXTS[0], encoding_format="base64").json()["data"]
    assert array("f", b64decode(item["embedding"])).tolist() == as_made(TEXTS[0])


def test_texts_and_their_token_ids_have_the_same_vectors(client: OpenAI) -> None:
    """All four shapes of `input`."""
    ids = [load_tokenizer(MODEL).encode(t) for t in TEXTS]
    texts = [d.embedding for d in client.embeddings.create(model="embedder", input=TEXTS).data]
    assert [d.embedding for d in client.embeddings.create(model="embedder", input=ids).data] == texts
    assert [d.embedding for d in client.embeddings.create(model="embedder", input=ids[0]).data] == texts[:1]
    assert [d.embedding for d in client.embeddings.create(model="embedder", input=TEXTS[0]).data] == texts[:1]


def test_dimensions_are_those_that_the_model_was_trained_for(client: OpenAI) -> None:
    """Others are refused by name."""
    response = client.embeddings.create(model="embedder", input=TEXTS[0], dimensions=32)
    assert response.data[0].embedding == as_made(TEXTS[0], 32)
    with pytest.raises(openai.BadRequestError, match="8, 32"):
        client.embeddings.create(model="embedder", input=TEXTS[0], dimensions=33)


def test_the_most_texts_of_a_request_are_shared_by_two_workers(served: Stack, client: OpenAI) -> None:
    """2,048 of them, each with its own vector."""
    served.wait_ready(2, "embedder")  # on a busy machine, a lease may be late
    before = metric(served, EMBED, "prefill_tokens")
    texts = [f"text {i}" for i in range(2048)]
    response = client.embeddings.create(model="embedder", input=texts)
    assert [d.index for d in response.data] == list(range(2048))
    assert all(response.data[i].embedding == as_made(texts[i]) for i in (0, 63, 64, 1023, 1500, 2047))
    prompts = httpx.get(f"{served.url}/requests/{response.id}").json()["prompts"]  # type: ignore[attr-defined]
    by_worker = [part["worker"] for prompt in prompts for part in prompt["workers"]]
    assert len(by_worker) == 32
    assert len(set(by_worker)) == 2
    wait_until(lambda: metric(served, EMBED, "prefill_tokens") - before >= response.usage.prompt_tokens, "counted")
    wait_until(lambda: all_free(served, EMBED), "nothing is left")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("embeddings", {"input": ""}, "input"),
        ("embeddings", {"input": []}, "input"),
        ("embeddings", {"input": ["a", ""]}, "input.1"),
        ("embeddings", {"input": [[1], []]}, "input.1"),
        ("embeddings", {"input": ["a"] * 2049}, "input"),
        ("embeddings", {"input": [2**31]}, "input"),
        ("embeddings", {"input": "a " * 40_000}, "input"),
        ("embeddings", {"input": ["a", "a " * 40_000]}, "input.1"),
        ("embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ("embeddings", {"input": "a", "temperature": 1}, "temperature"),
        ("embeddings", {"input": "a", "model": "mock"}, "model"),
        ("embeddings", {"input": "a", "model": "classifier"}, "model"),
        ("classify", {"input": "a"}, "model"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "model"),
        ("completions", {"prompt": "a"}, "model"),
        ("responses", {"input": "a"}, "model"),
        ("score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("rerank", {"query": "a", "documents": []}, "documents"),
        ("rerank", {"query": "", "documents": ["a"]}, "query"),
    ],
)
def test_what_can_not_be_encoded_is_refused_by_name(served: Stack, path: str, body: dict[str, Any], param: str) -> None:
    """400, with the place in the body."""
    answer = post(served, f"/v1/{path}", **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_cohere_gets_the_same_vectors_in_each_form(served: Stack) -> None:
    """The texts are as many as OpenAI's clients may send, over several jobs; the only model need not be named.

    Errors are checked too.
    """
    texts, forms = [f"text {i}" for i in range(300)], ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    answer = httpx.post(f"{served.url}/v2/embed", json={"texts": texts, "embedding_types": forms}, timeout=60)
    response = answer.json()
    assert (answer.status_code, response["texts"], list(response["embeddings"])) == (200, texts, forms)
    assert response["embeddings"]["float"] == [as_made(text) for text in texts]
    assert {len(response["embeddings"][form][299]) for form in ("int8", "uint8")} == {384}
    assert {len(response["embeddings"][form][299]) for form in ("binary", "ubinary")} == {48}
    assert array("f", b64decode(response["embeddings"]["base64"][299])).tolist() == as_made(texts[299])
    tokens = sum(len(load_tokenizer(MODEL).encode(text)) for text in texts)
    assert response["meta"]["billed_units"] == {"input_tokens": tokens, "image_tokens": 0}
    prompts = httpx.get(f"{served.url}/requests/{response['id']}").json()["prompts"]
    assert sum(prompt["prompt_tokens"] for prompt in prompts) == tokens
    short = post(served, "/v2/embed", texts=TEXTS[:1], output_dimension=32, input_type="search_query").json()
    assert short["embeddings"] == {"float": [as_made(TEXTS[0], 32)]}
    error_answer = post(served, "/v2/embed", texts=TEXTS, images=["data:image/png;base64,AA=="])
    assert (error_answer.status_code, error_answer.json()["error"]["param"]) == (400, "images")


def test_a_score_is_the_cosine_of_two_embeddings(served: Stack, client: OpenAI) -> None:
    """One text against many, or pairs."""
    vectors = [d.embedding for d in client.embeddings.create(model="embedder", input=TEXTS).data]
    cosines = [sum(a * b for a, b in zip(vectors[0], other, strict=True)) for other in vectors]
    many = post(served, "/v1/score", text_1=TEXTS[0], text_2=TEXTS).json()
    assert [d["score"] for d in many["data"]] == pytest.approx(cosines)
    pairs = post(served, "/v1/score", text_1=TEXTS, text_2=TEXTS[::-1]).json()
    assert [d["score"] for d in pairs["data"]] == pytest.approx([cosines[2], 1, cosines[2]])


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_documents_come_in_the_order_in_which_they_fit(served: Stack, path: str) -> None:
    """The answer has the texts unless they aren't wanted, and no more than `top_n` documents."""
    whole = post(served, path, query=TEXTS[0], documents=[TEXTS[2], TEXTS[1], {"text": TEXTS[0]}]).json()
    assert [r["index"] for r in whole["results"]] == [2, 1, 0]
    assert whole["results"][0]["document"] == {"text": TEXTS[0]}
    assert whole["results"][0]["relevance_score"] == pytest.approx(1)
    short = post(served, path, query=TEXTS[0], documents=TEXTS, top_n=1, return_documents=False).json()
    assert [set(r) for r in short["results"]] == [{"index", "relevance_score"}]


def test_a_classifier_tells_class_and_probabilities(served: Stack) -> None:
    """The names are the model's own."""
    answer = post(served, "/v1/classify", model="classifier", input=TEXTS).json()
    assert len(answer["data"]) == len(TEXTS)
    for item in answer["data"]:
        assert item["num_classes"] == len(item["probs"]) == 3
        assert sum(item["probs"]) == pytest.approx(1)
        assert item["label"] == ["sad", "glad", "neither"][item["probs"].index(max(item["probs"]))]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": TEXTS, "service_tier": "flex"}),
        ("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"}),
        ("/v2/embed", {"texts": TEXTS, "embedding_types": ["float", "uint8", "binary", "base64"]}),
        ("/v2/embed", {"inputs": [{"content": [{"type": "text", "text": TEXTS[0]}]}]}),
        ("/v1/score", {"text_1": TEXTS[0], "text_2": TEXTS}),
        ("/v1/rerank", {"query": TEXTS[0], "documents": TEXTS}),
        ("/v1/classify", {"input": TEXTS, "model": "classifier"}),
    ],
)
def test_answers_are_as_the_document_says(served: Stack, path: str, body: dict[str, Any]) -> None:
    """/openapi.json has the shape of each."""
    document = httpx.get(f"{served.url}/openapi.json", timeout=60).json()
    check(declared(document, path, "post"), post(served, path, **body).json())


def test_lines_of_a_batch_are_embedded(client: OpenAI) -> None:
    """The vectors are the same as online, also those of several jobs; a line that can't be embedded has an error."""
    many = [f"text {i}" for i in range(130)]
    bodies = [{"model": "embedder", "input": value} for value in (*TEXTS, many, "")]
    end_state, answers = answered(client, bodies, "/v1/embeddings")
    assert (end_state.request_counts.completed, end_state.request_counts.failed) == (4, 1)
    vectors = [[d["embedding"] for d in one["data"]] for one in answers]
    assert vectors == [*([as_made(text)] for text in TEXTS), [as_made(text) for text in many]]


@pytest.mark.parametrize(
    ("endpoint", "body", "shows"),
    [
        ("/v2/embed", {"model": "embedder", "texts": TEXTS}, "embeddings"),
        ("/v1/score", {"model": "embedder", "text_1": TEXTS[0], "text_2": TEXTS}, "data"),
        ("/v1/rerank", {"model": "embedder", "query": TEXTS[0], "documents": TEXTS}, "results"),
        ("/v1/classify", {"model": "classifier", "input": TEXTS}, "data"),
    ],
)
def test_lines_of_a_batch_are_scored_ranked_and_classified(
    served: Stack, client: OpenAI, endpoint: str, body: dict[str, Any], shows: str
) -> None:
    """The results are the same as online."""
    online = post(served, endpoint, **body).json()
    end_state, answers = answered(client, [body, body], endpoint)
    assert end_state.request_counts.failed == 0
    usage_field = "meta" if "meta" in online else "usage"
    assert [(one[shows], one[usage_field]) for one in answers] == [(online[shows], online[usage_field])] * 2


async def test_a_client_that_leaves_stops_the_engines(served: Stack) -> None:
    """Nothing is computed for nobody."""
    before = metric(served, EMBED, "prefill_tokens")
    body = {"model": "embedder", "input": ["a " * 90] * 2048, "encoding_format": "base64"}
    async with httpx.AsyncClient(timeout=60) as client:
        task = asyncio.create_task(client.post(f"{served.url}/v1/embeddings", json=body))
        await asyncio.to_thread(wait_until, lambda: both_run(served), "both work")
        task.cancel()
        await asyncio.wait([task])
    wait_until(lambda: all_free(served, EMBED), "nothing is left")
    assert metric(served, EMBED, "prefill_tokens") - before < 2048 * 90


def test_a_request_goes_on_when_a_worker_is_killed_in_its_middle(served: Stack, client: OpenAI) -> None:
    """Whole, in order, and as if nothing had been."""
    texts = [f"text {i} " + "more " * 60 for i in range(2048)]
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(client.embeddings.create, model="embedder", input=texts)
        wait_until(lambda: both_run(served), "both work")
        victim = next(x.worker for x in leases(served, EMBED))
        os.kill(victim.pid, signal.SIGKILL)
        response = future.result()
    assert [d.embedding for d in response.data[::97]] == [as_made(text) for text in texts[::97]]
    prompts = httpx.get(f"{served.url}/requests/{response.id}").json()["prompts"]  # type: ignore[attr-defined]
    assert max(prompt["attempts"] for prompt in prompts) >= 2
