"""Embeddings, scores and classes: inputs become jobs, and vectors become an answer."""

import asyncio
import json
import shutil
from array import array
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from math import hypot
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.openai.encodings import dumped
from app.dispatch.asking import Asking
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models.models import find_model
from app.engines.base import Encoder, EncodeRequest
from app.engines.mock.encoding import vector
from app.errors import ModelNotFound, PromptTooLong, RequestError, SettingsError
from app.ids import PoolId, RequestId, RunId
from app.messages.job import Inputs
from app.openai import classify, cohere_embeddings, embeddings, rerank, score
from app.openai.encoding import EncodingWriter, cosine, job_slices
from app.routing.candidates import Ask, Option
from app.routing.cost import new_blocks
from app.runner.engine_factory import create_engine
from app.tenants.limit_table import TenantLimits
from tests.leases import candidate
from tests.models import asking, mock, models_of, pools_error
from tests.refusals import refused


@pytest.fixture(scope="module")
def known() -> Asking:
    """A model for each task; those that encode take 100 tokens."""
    tasks = ("generate", "embed", "classify")
    pools = {PoolId(task): mock(model=task, task=task, max_model_len=100) for task in tasks}
    return asking(models_of(**pools), pools)


class Made(GenerationBase):
    """A generation whose vectors are given instead of made by workers."""

    def __init__(self, plan: GenerationPlan, vectors: Sequence[Sequence[float]]) -> None:
        super().__init__(RequestId("x-1"), 0.0, plan)
        rest = iter(vectors)
        for number, job in enumerate(plan.inputs):
            self.vectors[number] = b"".join(array("f", next(rest)).tobytes() for _ in job.lengths)

    async def deltas(self) -> list[Any]:
        return []


def understood(known: Asking, module: Any, **body: Any) -> tuple[Any, GenerationPlan]:
    result: tuple[Any, GenerationPlan] = asyncio.run(module.understand(known, orjson.dumps({"model": "embed"} | body)))
    return result


def answered(writer: EncodingWriter) -> Any:
    return orjson.loads(orjson.dumps(asyncio.run(writer.whole())))


@given(st.lists(st.integers(1, 9000), min_size=1, max_size=300))
def test_jobs_have_all_inputs_in_their_order_and_are_bounded(lengths: list[int]) -> None:
    """A job has at most 64 inputs, and 8,192 tokens unless a single input has more."""
    slices = job_slices(lengths)
    assert [i for part in slices for i in range(len(lengths))[part]] == list(range(len(lengths)))
    for part in slices:
        job = lengths[part]
        assert 1 <= len(job) <= 64
        assert len(job) == 1 or sum(job) <= 8192


@pytest.mark.parametrize(("inputs", "jobs"), [(1, [1]), (64, [64]), (65, [33, 32]), (256, [64] * 4), (129, [43] * 3)])
def test_jobs_of_short_inputs_are_as_even_as_it_gets(inputs: int, jobs: list[int]) -> None:
    """No worker gets a single one behind a full job of another."""
    lengths = [5] * inputs
    assert [len(lengths[part]) for part in job_slices(lengths)] == jobs


def test_a_plan_has_the_inputs_of_each_job_behind_each_other(known: Asking) -> None:
    """Their lengths let the worker tell them apart, and nothing is to be generated."""
    _, plan = understood(known, embeddings, input=[[i, i + 1] for i in range(70)], priority=3, service_tier="flex")
    assert [len(job.lengths) for job in plan.inputs] == [35, 35]
    assert plan.prompts[1][:4] == [35, 36, 36, 37]
    assert plan.inputs[0] == Inputs([2] * 35, "embed")
    assert [s.max_tokens for s in plan.sampling] == [0, 0]
    assert (plan.priority, plan.aside, plan.model.name) == (3, True, "embed")


@pytest.mark.parametrize(
    ("module", "body", "param"),
    [
        (embeddings, {"input": ["a", "b" * 1000]}, "input.1"),
        (embeddings, {"input": [1] * 101}, "input"),
        (rerank, {"query": "a", "documents": ["b", "c " * 200]}, "documents.1"),
        (score, {"text_1": "a " * 200, "text_2": "b"}, "text_1"),
        (cohere_embeddings, {"texts": ["a", "b " * 200], "truncate": "NONE"}, "texts.1"),
    ],
)
def test_an_input_that_is_too_long_is_named(known: Asking, module: Any, body: dict[str, Any], param: str) -> None:
    """The words are OpenAI's, by which clients shorten their texts."""
    with refused(param, "maximum context length is 100 tokens", kind=PromptTooLong):
        understood(known, module, **body)


def test_an_input_may_fill_the_context(known: Asking) -> None:
    """Nothing is generated behind it."""
    assert len(understood(known, embeddings, input=[1] * 100)[1].prompts[0]) == 100


def test_floats_and_base64_are_of_the_vectors_in_order(known: Asking) -> None:
    """The order also holds across the borders of jobs."""
    vectors = [[float(i), i / 3] for i in range(70)]
    body, plan = understood(known, embeddings, input=[[1]] * 70)
    answer = answered(embeddings.EmbeddingWriter(Made(plan, vectors), body))
    assert [d["embedding"] for d in answer["data"]] == [array("f", v).tolist() for v in vectors]
    assert [d["index"] for d in answer["data"]] == list(range(70))
    assert answer["usage"] == {"prompt_tokens": 70, "total_tokens": 70}
    body, plan = understood(known, embeddings, input=[1], encoding_format="base64")
    answer = answered(embeddings.EmbeddingWriter(Made(plan, [[1.0, -2.0]]), body))
    assert answer["data"][0]["embedding"] == "AACAPwAAAMA="


@pytest.mark.parametrize("answer", [
    {"object": "list", "data": [{"index": 0, "embedding": orjson.Fragment(b"[0.5]")}, {"index": 1}], "usage": {"n": 1}},
    {"id": "rerank-1", "results": [{"index": 0}]},
    {"embeddings": {"float": [orjson.Fragment(b"[0.5]")], "base64": ["AA=="], "int8": []}, "texts": ["a"], "meta": {}},
], ids=["data", "results", "embeddings"])  # fmt: skip
def test_what_is_written_an_item_at_a_time_is_the_same_json(answer: dict[str, Any]) -> None:
    assert orjson.loads(dumped(answer)) == orjson.loads(orjson.dumps(answer))


def test_ranks_are_by_cosine_whatever_the_lengths(known: Asking) -> None:
    """The best first, as many as were asked for."""
    body, plan = understood(known, rerank, query="a", documents=["b", "c", "d"], top_n=2)
    ranking = answered(rerank.RerankWriter(Made(plan, [[2, 0], [0, 1], [3, 0.1], [-1, 0]]), body))
    assert [(r["index"], r["document"]["text"]) for r in ranking["results"]] == [(1, "c"), (0, "b")]
    assert ranking["results"][1]["relevance_score"] == 0


def test_scores_pair_texts_or_compare_one_with_all(known: Asking) -> None:
    """The number of scores is that of the second texts."""
    body, plan = understood(known, score, text_1=["a", "b"], text_2=["c", "d"])
    answer = answered(score.ScoreWriter(Made(plan, [[1, 0], [0, 1], [1, 0], [1, 0]]), body))
    assert [d["score"] for d in answer["data"]] == [1, 0]
    assert cosine([0.0, 0.0], [1.0, 1.0]) == 0


def test_a_class_has_the_name_that_the_model_gives_it(known: Asking) -> None:
    """The likeliest one's."""
    body, plan = understood(known, classify, model="classify", input="a")
    (entry,) = answered(classify.ClassifyWriter(Made(plan, [[0.25, 0.75]]), body))["data"]
    assert entry == {"index": 0, "label": "LABEL_1", "probs": [0.25, 0.75], "num_classes": 2}


@pytest.mark.parametrize("field", [{"use_activation": True}, {"truncate_prompt_tokens": None}, {"user": "me"}])
def test_parameters_that_change_nothing_are_taken(known: Asking, field: dict[str, Any]) -> None:
    """vLLM's and OpenAI's."""
    plain, same = (understood(known, embeddings, input="a", **more)[1] for more in ({}, field))
    assert same.prompts == plain.prompts


def test_a_model_is_found_for_what_it_does(known: Asking) -> None:
    """A model is refused by name for anything else."""
    assert find_model(known.serving.models, "embed", None).task == "embed"
    with pytest.raises(RequestError, match=r"'embed' makes embeddings .* this endpoint there are: generate"):
        find_model(known.serving.models, "embed")


@pytest.mark.parametrize(
    ("config", "dimensions"),
    [
        ({}, ()),
        ({"is_matryoshka": True, "hidden_size": 3}, range(1, 4)),
        ({"matryoshka_dimensions": [64, 128], "hidden_size": 512}, [64, 128]),
    ],
)
def test_dimensions_are_those_of_its_configuration(tmp_path: Path, config: dict[str, Any], dimensions: Any) -> None:
    """A pool may put another configuration in its place."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert mock(path=tmp_path).dimensions == dimensions
    (tmp_path / "config.json").write_text("{}")
    assert mock(path=tmp_path, args={"hf_overrides": config}).dimensions == dimensions


def test_an_input_is_as_long_as_sentence_transformers_have_it(tmp_path: Path) -> None:
    """Only where the pool encodes: the same folder may generate."""
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 512}')
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')
    assert mock(path=tmp_path, task="embed").context_len == 256
    assert mock(path=tmp_path).context_len == 512


def test_pools_that_encode_have_no_stages_and_agree_on_their_task(tmp_path: Path) -> None:
    """Contradictions are named when the file is read."""
    text = "pools: {a: {model: m, engine: mock, task: embed, role: decode}}"
    assert "pools.a.role=decode" in pools_error(tmp_path, text)
    with pytest.raises(SettingsError, match="other task"):
        models_of(a=mock(task="embed"), b=mock(task="classify"))


def test_an_engine_that_only_generates_does_not_start_for_another_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal comes before the model is loaded."""
    monkeypatch.setattr("app.runner.engine_factory.load_engine", lambda _name: lambda *_: object())
    with pytest.raises(SettingsError, match="task=embed"):
        create_engine(mock(task="embed"))


async def test_the_mock_embeds_each_input_for_itself() -> None:
    """The same text has the same vector beside any others, of length 1, and those with words in common are near."""
    engine = create_engine(mock(task="embed", args={"speedup": float("inf")}))
    assert isinstance(engine, Encoder)
    await engine.start()
    inputs = [[5, 6, 7], [5, 6, 8], [100, 101, 102]]
    raw = array("f", await engine.encode(EncodeRequest(RunId("r.0"), inputs, "embed")))
    near, other, far = (raw[i : i + 384].tolist() for i in range(0, len(raw), 384))
    assert near == array("f", vector([5, 6, 7], 384)).tolist()
    assert hypot(*near) == pytest.approx(1)
    assert cosine(near, other) > 0.5 > cosine(near, far)
    with pytest.raises(RequestError, match="dimensions=7"):
        await engine.encode(EncodeRequest(RunId("r.1"), inputs, "embed", dimensions=7))
    assert engine.stats().prefill_tokens == 9
    await engine.close()


async def test_the_mock_encodes_on_the_rank_that_it_is_told() -> None:
    """Two ranks work side by side, and one does one thing after the other; there is no third."""
    engine = create_engine(mock(task="embed", data_parallel_size=2, args={"step_ms": 60e3}))
    assert isinstance(engine, Encoder)
    await engine.start()
    running = [asyncio.ensure_future(engine.encode(encode_request(rank, rank=rank % 2))) for rank in range(3)]
    await asyncio.sleep(0)
    assert (engine.stats().running, engine.stats().waiting) == (2, 1)
    for one in running:
        one.cancel()
    await asyncio.wait(running)
    with pytest.raises(RequestError, match="rank=2"):
        await engine.encode(encode_request(4, rank=2))
    await engine.close()


def encode_request(number: int, rank: int) -> EncodeRequest:
    return EncodeRequest(RunId(f"r.{number}"), [[5, 6]], "embed", rank=rank)


def test_inputs_hold_no_blocks() -> None:
    """Nothing of them stays in an engine."""
    option = Option(candidate())
    assert new_blocks(Ask(320, 0), option) > new_blocks(Ask(320, 0, holds=False), option) == 0


def test_a_refusal_names_only_models_that_its_client_may_ask_for(known: Asking) -> None:
    """Names are the operator's secret."""
    bound = replace(known, within=TenantLimits(models=["embed", "other", "generate"]))
    with pytest.raises(ModelNotFound, match=r"Served: embed, generate\.$"):
        bound.find_model("other")
    with pytest.raises(RequestError, match=r"this endpoint there are: generate\.$"):
        bound.find_model("embed")
    with pytest.raises(RequestError, match=r"and nothing else\.$"):
        replace(known, within=TenantLimits(models=["embed"])).find_model("embed")
    with pytest.raises(ModelNotFound, match=r"not served here\.$"):
        replace(known, within=TenantLimits(models=[])).find_model("other")


def test_a_model_need_not_be_named_where_it_can_only_be_one(known: Asking) -> None:
    """The one is the only model of the endpoint's task that the client may ask for."""
    body, _ = asyncio.run(embeddings.understand(known, b'{"input": "a"}'))
    assert body.model == "embed"
    bound = replace(known, within=TenantLimits(models=["classify"]))
    with refused("model", "'model' is missing"):
        asyncio.run(embeddings.understand(bound, b'{"input": "a"}'))


@pytest.mark.parametrize("sides", [("queries", "documents"), ("queries", "items"), ("data_1", "data_2")])
def test_the_sides_of_a_score_have_vllms_names_too(known: Asking, sides: tuple[str, str]) -> None:
    """Names come in pairs; errors have the client's."""
    one, two = sides
    plain = understood(known, score, text_1="a", text_2=["b", "c"])[1]
    assert understood(known, score, **{one: "a", two: ["b", "c"]})[1].prompts == plain.prompts
    for fields, wrong in (({one: "a"}, ("documents", "data_2")), ({one: ["a", "b"], two: "c"}, (one,))):
        with pytest.raises(RequestError) as error:
            understood(known, score, **fields)
        assert error.value.param in wrong
    with refused("text_2"):
        understood(known, score, **{one: "a", two: "b", "text_2": "c"})


def test_as_many_dimensions_as_the_model_has_are_its_own(known: Asking) -> None:
    """Clients that name them want nothing else."""
    _, plan = understood(known, embeddings, input="a", dimensions=384)
    assert [job.dimensions for job in plan.inputs] == [None]
    with pytest.raises(RequestError, match="not of 383"):
        understood(known, embeddings, input="a", dimensions=383)


def test_each_form_of_a_vector_is_of_the_same_numbers(known: Asking) -> None:
    """Each form comes once, however often it is asked for.

    Bytes are 127 times the unit vector, and bits its signs, the first one high. The last byte of bits is filled up.
    """
    forms = ["base64", "int8", "uint8", "binary", "ubinary", "float", "int8"]
    body, plan = understood(known, cohere_embeddings, texts=["a"], embedding_types=forms)
    answer = answered(cohere_embeddings.CohereEmbeddingWriter(Made(plan, [[6, -8, 0, *[0] * 6]]), body))
    assert answer["embeddings"] == {
        "float": [[6, -8, 0, *[0] * 6]],
        "base64": [b64encode(array("f", [6, -8, 0, *[0] * 6]).tobytes()).decode()],
        "int8": [[76, -102, 0, *[0] * 6]],
        "uint8": [[204, 26, 128, *[128] * 6]],
        "ubinary": [[0b10111111, 0b10000000]],
        "binary": [[0b10111111 - 128, 0]],
    }
    assert (answer["id"], answer["response_type"], answer["texts"]) == ("x-1", "embeddings_by_type", ["a"])
    billed_units, token_counts = answer["meta"]["billed_units"], answer["meta"]["tokens"]
    assert billed_units["input_tokens"] == token_counts["input_tokens"] == len(plan.prompts[0])


def test_cohere_cuts_what_is_too_long_at_the_end_that_it_is_told(known: Asking) -> None:
    """The cut is at the model's length or at a shorter one; the texts are those of the embeddings endpoint."""
    text = " ".join(f"word{i}" for i in range(400))
    whole = known.serving.models["embed"].tokenizer.encode(text)
    assert len(whole) > 1000
    for options, tokens in (
        ({}, whole[:100]), ({"truncate": "END", "max_tokens": 7}, whole[:7]), ({"truncate": "START"}, whole[-100:]),
        ({"truncate": "START", "max_tokens": 7}, whole[-7:]), ({"max_tokens": 5000}, whole[:100]),
    ):  # fmt: skip
        assert understood(known, cohere_embeddings, texts=[text], **options)[1].prompts == [tokens]
    with refused("texts", "'max_tokens' is 7", kind=PromptTooLong):
        understood(known, cohere_embeddings, texts=["a " * 20], truncate="NONE", max_tokens=7)


def test_the_parts_of_a_text_are_its_lines(known: Asking) -> None:
    """A message of a chat treats them in the same way."""
    parts = [{"type": "text", "text": text} for text in ("a", "b")]
    _, plan = understood(known, cohere_embeddings, inputs=[{"content": parts}, {"content": parts[1:]}])
    assert plan.prompts == understood(known, embeddings, input=["a\nb", "b"])[1].prompts


@pytest.mark.parametrize(("fields", "param"), [
    ({}, "texts"),
    ({"texts": []}, "texts"),
    ({"texts": ["a"] * 2049}, "texts"),
    ({"texts": ["a", ""]}, "texts.1"),
    ({"texts": ["a"], "inputs": [{"content": [{"type": "text", "text": "a"}]}]}, "inputs"),
    ({"inputs": []}, "inputs"),
    ({"inputs": [{"content": []}]}, "inputs.0.content"),
    ({"inputs": [{"content": [{"type": "text", "text": ""}]}]}, "inputs"),
    ({"inputs": [{"content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}, "inputs.0.content.0.type"),
    ({"images": ["data:image/png;base64,AA=="]}, "images"),
    ({"texts": ["a"], "input_type": "image"}, "input_type"),
    ({"texts": ["a"], "embedding_types": ["float", "int4"]}, "embedding_types.1"),
    ({"texts": ["a"], "output_dimension": 5}, "output_dimension"),
    ({"texts": ["a"], "max_tokens": 0}, "max_tokens"),
    ({"texts": ["a"], "truncate": "MIDDLE"}, "truncate"),
    ({"texts": ["a"], "model": "generate"}, "model"),
])  # fmt: skip
def test_what_cohere_takes_and_cant_be_is_refused_by_its_name(
    known: Asking, fields: dict[str, Any], param: str
) -> None:
    with refused(param):
        understood(known, cohere_embeddings, **fields)


def test_a_limit_of_answers_is_none_of_texts(known: Asking) -> None:
    """Both have the name `max_tokens`."""
    bound = replace(known, within=TenantLimits(max_tokens=3))
    _, plan = understood(bound, cohere_embeddings, texts=["a b c d e f g h"], max_tokens=6)
    assert len(plan.prompts[0]) == 6


@pytest.mark.parametrize(("file", "doc"), [
    ("config.json", {"max_position_embeddings": 100, "task_instructions": {"query": "Q: ", "passage": "P: ", "n": 5}}),
    ("config_sentence_transformers.json", {"prompts": {"query": "Q: ", "passage": "P: "}}),
])  # fmt: skip
def test_a_text_begins_with_what_the_model_wants_for_its_kind(tmp_path: Path, file: str, doc: dict[str, Any]) -> None:
    """The kind has the model's own name or Cohere's; the instruction stays where the text loses its beginning."""
    shutil.copytree(mock().model_dir, tmp_path / "m")
    (tmp_path / "m" / file).write_text(json.dumps(doc))
    pools = {PoolId("p"): mock(model="embed", task="embed", path=tmp_path / "m", max_model_len=100)}
    asks = asking(models_of(**pools), pools)
    encode = asks.serving.models["embed"].tokenizer.encode

    def prompt(text: str, **asked: Any) -> list[int]:
        (tokens,) = understood(asks, cohere_embeddings, texts=[text], **asked)[1].prompts
        return tokens

    for kind, begins in (("query", "Q: "), ("search_query", "Q: "), ("search_document", "P: "), ("clustering", "")):
        assert prompt("a fish", input_type=kind) == encode(f"{begins}a fish")
    long = " ".join(f"word{i}" for i in range(400))
    assert prompt(long, input_type="query") == encode(f"Q: {long}")[:100]
    begins = encode("Q: ")
    assert prompt(long, input_type="query", truncate="START") == begins + encode(long)[len(begins) - 100 :]
    with refused("input_type", r"Unsupported input_type 'fish'.*passage, query"):
        prompt("a", input_type="fish")
