"""vLLM's arguments, and the sockets of its processes. No engine is loaded here."""

import inspect
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import structlog
import yaml

from app.engines.base import Configured, EngineInfo, Node
from app.engines.interface import interface_environment
from app.errors import RequestError, SettingsError
from app.messages.job import Sampling
from app.pools.engine_args import masked
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine
from ops.models.architectures import written
from tests.contract.conftest import make_pool
from tests.shallow import shallow_model
from tests.stack import ROOT
from tests.unit.test_pool_examples import POOLS

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"max_num_sequences": 3}, "args.max_num_sequences=3"),
        ({"max_num_seqs": 3}, "the pool's own settings"),
        ({"env": {"A": 1}}, "args.env"),
        ({"kv_events_config": {"port": 1}}, "args.kv_events_config"),
    ],
)
def test_an_unknown_argument_is_named(args: dict[str, object], message: str) -> None:
    """A typing error stops the worker before it loads anything."""
    with pytest.raises(SettingsError, match=message):
        create_engine(make_pool("vllm", args=args))


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_speculation_is_refused_where_kv_is_handed_over(role: str) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 3}
    with pytest.raises(SettingsError, match="speculative_config"):
        create_engine(make_pool("vllm", role=role, args={"speculative_config": config}))


async def test_a_bad_value_is_a_settings_error() -> None:
    """The words are vLLM's own for what its configuration refuses."""
    with pytest.raises(SettingsError, match="dtype"):
        await create_engine(make_pool("vllm", args={"dtype": "int3"})).start()


NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
OFFLOADING = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
SEVERAL = {"kv_connector": "MultiConnector", "kv_role": "kv_both"}


@pytest.mark.parametrize(
    ("transfer", "tells"),
    [
        (None, False),
        (NIXL, False),
        (OFFLOADING, True),
        ({"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}, True),
        (SEVERAL | {"kv_connector_extra_config": {"connectors": [NIXL, OFFLOADING]}}, True),
        (SEVERAL | {"kv_connector_extra_config": {"connectors": [NIXL]}}, False),
    ],
)
async def test_new_weights_are_refused_where_a_connector_keeps_kv_of_the_old_ones(
    transfer: dict[str, Any] | None, *, tells: bool
) -> None:
    """One that the pool's args bring. What only hands KV over keeps none."""
    from vllm.config import KVTransferConfig

    from app.engines.vllm.control import VllmControl
    from app.engines.vllm.tiers.config import tells_of_tiers

    config: Any = SimpleNamespace(kv_transfer_config=transfer and KVTransferConfig(**transfer))
    assert tells_of_tiers(config) is tells
    engine: Any = SimpleNamespace(
        vllm_config=config, pause_generation=AsyncMock(), collective_rpc=AsyncMock(),
        reset_prefix_cache=AsyncMock(return_value=True), update_weight_version=AsyncMock(),
    )  # fmt: skip
    control = VllmControl(lambda: engine, "/model")
    await control.pause("wait")
    if not tells:
        await control.update_weights("v1", None)
        engine.update_weight_version.assert_awaited_once_with("v1")
        return
    with pytest.raises(RequestError, match=r"args\.kv_transfer_config"):
        await control.update_weights("v1", None)
    engine.collective_rpc.assert_not_awaited()


HOLD = """
import runpy
print(runpy.run_path("app/engines/vllm/sockets.py")["socket_folder"](), flush=True)  # without importing vLLM
input()
"""


def test_sockets_of_a_killed_worker_are_gone_after_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sockets of a living worker stay, and its folder goes with it when it ends by itself."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("VLLM_RPC_BASE_PATH", raising=False)
    with ExitStack() as stack:

        def started() -> tuple["subprocess.Popen[str]", Path]:
            pipe = subprocess.PIPE
            argv = [sys.executable, "-W", "ignore", "-c", HOLD]
            process = stack.enter_context(subprocess.Popen(argv, cwd=ROOT, stdin=pipe, stdout=pipe, text=True))
            stack.callback(process.kill)
            assert process.stdout is not None
            folder = Path(process.stdout.readline().strip())
            (folder / "socket").touch()
            return process, folder

        first_process, first_folder = started()
        first_process.kill()
        first_process.wait()
        assert first_folder.exists()
        second_process, second_folder = started()
        assert {first_folder.exists(), second_folder.parent} == {False, tmp_path}
        _, last = started()
        assert second_folder.exists()
        second_process.communicate("\n", timeout=20)
        assert list(tmp_path.glob("xylem-vllm-*")) == [last]


def given_to_vllm(monkeypatch: pytest.MonkeyPatch, *, cpu: bool, role: str, pictures: str = "", **given: Any) -> Any:
    """The arguments that vLLM gets on a machine with or without a GPU, for a pool of that role.

    `pictures`: their folder.
    """
    from app.engines.vllm import args

    monkeypatch.setattr(args, "current_platform", SimpleNamespace(is_cpu=lambda: cpu))
    pool = {"model": "m", "engine": "vllm", "path": "/models/m", "max_model_len": 512, "role": role, "args": given}
    return args.engine_args(Pool.model_validate(pool), "127.0.0.1", pictures)


OWN = {"ec_connector": "ECExampleConnector", "ec_role": "ec_both", "ec_buffer_size": 7.0}


def test_an_operators_own_connector_is_given_to_vllm_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for role in ("both", "prefill"):
        config = given_to_vllm(monkeypatch, cpu=True, role=role, ec_transfer_config=OWN).fields["ec_transfer_config"]
        assert {name: getattr(config, name) for name in OWN} == OWN
        assert config.ec_connector_extra_config == {}


@pytest.mark.parametrize(
    ("role", "pictures", "given", "message"),
    [
        ("both", "/folder", OWN, "set the pool's embeddings: false"),
        ("prefill", "/folder", None, "set the pool's embeddings: false"),
        ("encode", "/folder", OWN, "a pool of role encode has no other one"),
        ("both", "", OWN | {"ec_role": "ec_producer"}, "such an engine answers nothing"),
        ("both", "", {"ec_connector": "ECExampleConnector"}, "ec_role"),
        ("both", "", {"no_such": 1}, "no_such"),
    ],
)
def test_a_connector_beside_ours_or_that_cannot_answer_is_refused(
    monkeypatch: pytest.MonkeyPatch, role: str, pictures: str, given: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        given_to_vllm(monkeypatch, cpu=True, role=role, pictures=pictures, ec_transfer_config=given)


def test_vllm_joins_no_connectors_of_encoded_pictures_and_a_producer_of_them_has_no_language_model() -> None:
    """Reasons for refusing both. Of KV, it joins several (MultiConnector)."""
    from vllm.config.ec_transfer import ECTransferConfig
    from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    assert not [name for name in ECConnectorFactory._registry if "Multi" in name]
    assert "MultiConnector" in KVConnectorFactory._registry
    assert ECTransferConfig(**OWN | {"ec_role": "ec_producer"}).is_encode_only
    assert "does not run the language model" in (inspect.getdoc(ECTransferConfig.is_encode_only) or "")


@pytest.mark.parametrize(("connector", "folder"), [("LMCacheMPConnector", "/folder"), ("OffloadingConnector", None)])
def test_metrics_of_a_connector_in_the_engine_core_can_be_read_by_the_worker(
    monkeypatch: pytest.MonkeyPatch, connector: str, folder: str | None
) -> None:
    from app.engines.vllm.args import metrics_environment

    config = {"kv_connector": connector, "kv_role": "kv_both"}
    fields = given_to_vllm(monkeypatch, cpu=True, role="both", kv_transfer_config=config).fields
    assert metrics_environment(fields, "/folder").get("PROMETHEUS_MULTIPROC_DIR") == folder


@pytest.mark.parametrize(
    ("cpu", "role", "given", "executor"),
    [
        (False, "prefill", {}, "mp"),
        (False, "decode", {}, "mp"),
        (False, "both", {}, None),  # vLLM's own choice
        (False, "prefill", {"tensor_parallel_size": 2}, None),
        (False, "prefill", {"distributed_executor_backend": "ray"}, "ray"),
        (True, "prefill", {}, "app.engines.vllm.one_process.OneProcess"),
    ],
)
def test_one_gpu_that_hands_kv_over_computes_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, cpu: bool, role: str, given: dict[str, Any], executor: str | None
) -> None:
    fields = given_to_vllm(monkeypatch, cpu=cpu, role=role, **given).fields
    assert fields.get("distributed_executor_backend") == executor


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_our_log_level_is_vllms_unless_the_pool_says_another(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setenv("XYLEM_LOG_LEVEL", level)
    arguments = given_to_vllm(monkeypatch, cpu=False, role="both")
    assert arguments.environment["VLLM_LOGGING_LEVEL"] == level.upper()
    own = given_to_vllm(monkeypatch, cpu=False, role="both", env={"VLLM_LOGGING_LEVEL": "ERROR"})
    assert own.environment["VLLM_LOGGING_LEVEL"] == "ERROR"


@pytest.mark.parametrize("pool", [pool for pool in POOLS.values() if pool.engine == "vllm"])
def test_the_arguments_of_the_examples_are_vllms_own(pool: Pool) -> None:
    """The examples of ops/pools give their length, so no model is read. `xylem worker --show-config` can print them."""
    engine = create_engine(pool.model_copy(update={"path": make_pool("vllm").path}))
    assert isinstance(engine, Configured)
    shown_args = yaml.safe_load(yaml.safe_dump(masked(engine.configuration())))["AsyncEngineArgs"]
    assert shown_args["max_model_len"] == pool.max_model_len
    assert pool.args.keys() <= shown_args.keys()


class Elastic:
    """An AsyncLLM, as far as the adapter has it; scaling ends as it is told."""

    def __init__(self, ends: Exception | None = None, **parallel: Any) -> None:
        defaults = {"enable_elastic_ep": True, "data_parallel_backend": "ray"}
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(**defaults | parallel))
        self.logger_manager, self._logger_ref = "vLLM's", ["vLLM's"]
        self.ends, self.asked = ends, dict[str, Any]()

    async def scale_elastic_ep(self, **asked: Any) -> None:
        self.asked = asked
        if self.ends is not None:
            raise self.ends


async def scaled(engine: Elastic, ranks: int, monkeypatch: pytest.MonkeyPatch) -> EngineInfo:
    from app.engines.vllm import elastic

    monkeypatch.setattr(elastic, "StatLoggerManager", lambda *given, **settings: (*given, settings))
    adapter: Any = create_engine(make_pool("vllm"))
    adapter._engine, adapter._info = engine, EngineInfo(32, 100, 4, 512)
    info: EngineInfo = await adapter.scale(ranks)
    return info


async def test_ranks_change_while_vllm_runs_and_its_figures_still_come_to_us(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.loggers import StatLoggerManager

    engine = Elastic()
    assert (await scaled(engine, 4, monkeypatch)).ranks == 4
    inspect.signature(AsyncLLM.scale_elastic_ep).bind(None, **engine.asked)
    assert engine.asked == {"new_data_parallel_size": 4}
    *arguments, settings = engine.logger_manager
    inspect.signature(StatLoggerManager).bind(*arguments, **settings)
    assert arguments == [engine.vllm_config, [0, 1, 2, 3]]
    assert engine._logger_ref == [engine.logger_manager]


@pytest.mark.parametrize("engine", [Elastic(enable_elastic_ep=False), Elastic(data_parallel_backend="mp")])
async def test_ranks_that_vllm_can_not_change_are_refused(engine: Elastic, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="enable_elastic_ep"):
        await scaled(engine, 4, monkeypatch)
    assert not engine.asked
    with pytest.raises(RequestError, match="minimum"):
        await scaled(Elastic(ValueError("minimum is 2")), 1, monkeypatch)


@pytest.mark.parametrize(("kind", "name"), [("image", "pictures"), ("audio", "sounds")])
def test_too_many_pictures_are_refused_in_our_words(kind: str, name: str) -> None:
    """vLLM's own say what to give to its command line."""
    from vllm.exceptions import VLLMClientError
    from vllm.multimodal.processing.context import BaseProcessingInfo

    from app.engines.vllm.convert import translate

    limits: Any = SimpleNamespace(supported_mm_limits={kind: None}, allowed_mm_limits={kind: 64})
    with pytest.raises(VLLMClientError) as vllms:
        BaseProcessingInfo.validate_num_items(limits, kind, 65)
    error = translate(vllms.value)
    assert isinstance(error, RequestError)
    assert error.message == f"This model's engine takes at most 64 {name} in a prompt (args.limit_mm_per_prompt)."


def test_each_of_several_ranks_publishes_at_a_place_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same holds where there will be several only later."""
    assert given_to_vllm(monkeypatch, cpu=False, role="both").fields["kv_events_config"].endpoint.startswith("ipc://")
    elastic = given_to_vllm(monkeypatch, cpu=False, role="both", **{"enable-elastic-ep": True}).fields
    assert elastic["kv_events_config"].endpoint == "tcp://*:0"
    assert elastic["enable_elastic_ep"] is True


def test_compiled_stages_are_refused_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its engine would end while it loads."""
    with pytest.raises(SettingsError, match=r"args\.enforce_eager=False: on a CPU"):
        create_engine(make_pool("vllm", args={"pipeline_parallel_size": 2, "enforce_eager": False}))
    for cpu in (True, False):
        arguments = given_to_vllm(monkeypatch, cpu=cpu, role="both", pipeline_parallel_size=2)
        assert arguments.fields["pipeline_parallel_size"] == 2
        assert ("worker_extension_cls" in arguments.fields) is cpu


def engine_fields(node: Node | None = None, **changes: Any) -> dict[str, Any]:
    from app.engines.vllm import args

    return args.engine_args(make_pool("vllm", **changes), "10.0.0.2", node=node).fields


def test_devices_of_three_hosts_compute_together_and_find_each_other_at_the_leader() -> None:
    pool = {"nodes": 3, "tensor_parallel_size": 3}
    first, last = (engine_fields(Node(rank, f"10.0.0.{rank}", "10.0.0.0", 20_000), **pool) for rank in (0, 2))
    assert {key for key in first if first[key] != last[key]} == {"node_rank", "kv_events_config"}
    assert (first["nnodes"], first["master_addr"], first["master_port"]) == (3, "10.0.0.0", 20_000)
    assert first["distributed_executor_backend"] == "mp"
    assert last["node_rank"] == 2


def test_ranks_of_a_follower_publish_on_its_own_host_at_ports_that_it_knows() -> None:
    """vLLM adds a rank's number to the port, and tells nobody but the leader which port was free."""
    pool = {"nodes": 2, "data_parallel_size": 4}
    follower = engine_fields(Node(1, "10.0.0.2", "10.0.0.1", 20_000), **pool)
    assert (follower["data_parallel_start_rank"], follower["data_parallel_size_local"]) == (2, 2)
    endpoint = follower["kv_events_config"].endpoint
    assert endpoint.startswith("tcp://127.0.0.1:")
    assert int(endpoint.rpartition(":")[2]) > 0
    leader = engine_fields(Node(0, "10.0.0.1", "10.0.0.1", 20_000), **pool)
    assert "data_parallel_start_rank" not in leader


def test_gloo_and_nccl_are_told_the_interface_that_has_the_address() -> None:
    assert interface_environment("127.0.0.1") == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    assert interface_environment("192.0.2.123") == {}


@pytest.mark.parametrize(("name", "layers"), [("gemma3", 1), ("lfm2", 1), ("gpt_oss", 2), ("mistral", 2)])
def test_a_transfer_is_priced_by_the_layers_whose_kv_grows_with_the_prompt(
    name: str, layers: int, tmp_path: Path
) -> None:
    from app.engines.vllm.args import vllm_config
    from app.engines.vllm.handoff import block_bytes

    fields = {
        "model": str(written(name, tmp_path, shallow_model())),
        "dtype": "float32",
        "block_size": 32,
        "skip_tokenizer_init": True,
    }
    config = vllm_config(fields)
    assert block_bytes(config) == 2 * 32 * layers * 2 * 32 * 4  # keys and values, tokens, heads, their size, bytes


@pytest.mark.parametrize(("name", "caches"), [
    ("granite_hybrid", False), ("falcon_h1", False), ("nemotron_h", False), ("bamba", False), ("zamba2", False),
    ("mamba2", False), ("jamba", True), ("lfm2", True), ("qwen3_5", True), ("llama", True),
])  # fmt: skip
def test_a_model_with_mamba_2_has_no_prefix_cache_on_a_cpu_and_the_worker_says_why(
    name: str, caches: bool, tmp_path: Path
) -> None:
    """Its engine would end at the first request. What the pool's own args say goes before."""
    path = written(name, tmp_path, shallow_model())
    for args, has_cache in (({}, caches), ({"enable_prefix_caching": True}, True)):
        with structlog.testing.capture_logs() as logs:
            engine = create_engine(make_pool("vllm", path=path, args=args))
        assert isinstance(engine, Configured)
        assert engine.configuration()["AsyncEngineArgs"]["enable_prefix_caching"] is has_cache
        log_lines = [log for log in logs if log["event"] == "prefix_caching_off"]
        assert [log["setting"] for log in log_lines] == ([] if has_cache else ["args.enable_prefix_caching: false"])


def test_a_model_of_a_mamba_2_family_that_only_attends_keeps_its_cache(tmp_path: Path) -> None:
    path = written("granite_hybrid", tmp_path, shallow_model())
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"layer_types": ["attention"] * 4}))
    engine = create_engine(make_pool("vllm", path=path))
    assert isinstance(engine, Configured)
    assert engine.configuration()["AsyncEngineArgs"]["enable_prefix_caching"] is True


def test_several_choices_without_sampling_are_refused_by_name() -> None:
    """vLLM's own message names no field of a request."""
    from app.engines.vllm.convert import sampling_params

    with pytest.raises(RequestError, match="one choice where 'temperature' is 0") as refusal:
        sampling_params(Sampling(max_tokens=1, n=2, temperature=0.0))
    assert refusal.value.param == "n"
    assert sampling_params(Sampling(max_tokens=1, n=2, temperature=0.5)).n == 2
