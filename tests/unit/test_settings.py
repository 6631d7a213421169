"""Refusal of settings that do not parse: the process stops and names the key, the file and the value."""

import json
import re
from pathlib import Path

import pytest

from app.errors import SettingsError
from app.pools.pools_file import load_pools
from app.pools.schema import Pool
from app.settings import load_settings
from tests.models import pools_error
from tests.present import present
from tests.refusals import settings_error


@pytest.mark.parametrize(("variable", "value"), [
    ("XYLEM_PORT", "eighty"), ("XYLEM_PORT", "65536"), ("XYLEM_PORT", "-1"), ("XYLEM_MAX_BODY", "0"),
    ("XYLEM_REQUEST_TIMEOUT_S", "0"), ("XYLEM_TOKENIZE_OFF_LOOP", "-1"), ("XYLEM_MAX_QUEUED", "-1"),
    ("XYLEM_MAX_QUEUED", "1.5"), ("XYLEM_RETRY_AFTER_S", "0"), ("XYLEM_LEASE_TTL_S", "0"),
    ("XYLEM_HEARTBEAT_S", "soon"), ("XYLEM_DRAIN_TIMEOUT_S", "-3"), ("XYLEM_STREAM_BYTES", "0"),
    ("XYLEM_STREAM_TTL_S", "0"), ("XYLEM_LOG_LEVEL", "loud"), ("XYLEM_LOG_JSON", "perhaps"),
    ("XYLEM_DEPLOYMENT", "a b"), ("XYLEM_DEPLOYMENT", ""), ("XYLEM_FILE_QUOTA", "-1"), ("XYLEM_MIN_PRIORITY", "1"),
    ("XYLEM_DEPLOYMENT", "a:b"),
])  # fmt: skip
def test_a_bad_variable_is_named_with_its_value(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never swallowed in favour of a default."""
    monkeypatch.setenv(variable, value)
    assert f"{variable}={value!r}: " in settings_error()


def test_a_hook_that_would_be_asked_about_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty variable let everything go on unseen."""
    monkeypatch.setenv("XYLEM_HOOK_PARTS", "")
    assert "XYLEM_HOOK_PARTS" in settings_error()


def test_all_bad_variables_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator need not mend them one by one."""
    monkeypatch.setenv("XYLEM_PORT", "eighty")
    monkeypatch.setenv("XYLEM_LOG_LEVEL", "loud")
    assert re.search(r"XYLEM_PORT='eighty'.*XYLEM_LOG_LEVEL='loud'", settings_error())


def test_variables_and_overrides_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """An override, which the command line gives, wins."""
    monkeypatch.setenv("XYLEM_PORT", "8123")
    monkeypatch.setenv("XYLEM_LOG_JSON", "true")
    settings = load_settings()
    assert (settings.port, settings.log_json) == (8123, True)
    assert load_settings(port=9).port == 9


def test_settings_are_frozen() -> None:
    """Settings are read once and never change."""
    with pytest.raises(ValueError, match="frozen"):
        load_settings().port = 1  # type: ignore[misc]


def test_a_pool_needs_a_model_and_an_engine_only(tmp_path: Path) -> None:
    """The mock brings its own model directory."""
    (tmp_path / "pools.yaml").write_text("pools: {decode-pool-a: {model: mock, engine: mock}}")
    ((name, pool),) = load_pools(tmp_path / "pools.yaml").pools.items()
    assert (name, pool.context_len) == ("decode-pool-a", 8192)
    assert (pool.model, pool.engine, pool.role, pool.block_size) == ("mock", "mock", "both", 32)
    assert (pool.model_dir / "tokenizer.json").exists()


@pytest.mark.parametrize(("text", "names"), [
    ("pools: {p: {model: m, engine: mock, max_runing: 3}}", "pools.p.max_runing=3"),
    ("pools: {p: {model: m, engine: mock}}\nredis: here", "redis='here'"),
    ("pool: {p: {model: m, engine: mock}}", "pools: Field required"),
    ("pools: {p: {engine: mock}}", "pools.p.model: Field required"),
    ("pools: {p: {model: m}}", "pools.p.engine: Field required"),
    ("pools: {p: {model: '', engine: mock}}", "pools.p.model=''"),
    ("pools: {p: {model: m, engine: tensorflow}}", "pools.p.engine='tensorflow'"),
    ("pools: {p: {model: m, engine: mock, max_running: many}}", "pools.p.max_running='many'"),
    ("pools: {p: {model: m, engine: mock, max_running: 0}}", "pools.p.max_running=0"),
    ("pools: {p: {model: m, engine: mock, block_size: -1}}", "pools.p.block_size=-1"),
    ("pools: {p: {model: m, engine: mock, max_model_len: 0}}", "pools.p.max_model_len=0"),
    ("pools: {p: {model: m, engine: mock, role: all}}", "pools.p.role='all'"),
    ("pools: {p: {model: m, engine: mock, args: [1]}}", "pools.p.args=[1]"),
    ("pools: {p: null}", "pools.p=None"),
    ("pools: [a, b]", "pools=['a', 'b']"),
    ("pools: {p.q: {model: m, engine: mock}}", "pools.p.q"),
    ("pools: {'p q': {model: m, engine: mock}}", "pools.p q"),
    ("pools: {p: {model: m, engine: vllm}}", "pools.p.path: engine vllm needs a model directory"),
    ("pools: {p: {model: m, engine: mock, role: prefill}, d: {model: m, engine: vllm, path: /m, role: decode}}",
     "pools.d.engine=vllm: takes no KV from mock"),
    ("pools: {e: {model: m, engine: mock, role: encode}}", "pools.e.role=encode: no other pool of m decodes"),
    ("pools: {a: {model: m, engine: mock}, e: {model: m, engine: mock, role: encode, data_parallel_size: 2}}",
     "pools.e.data_parallel_size: a pool of role encode has one rank"),
    ("pools: {p: {model: m, engine: mock, tiers: {}}}", "pools.p.tiers.host_gb: Field required"),
    ("pools: {p: {model: m, engine: mock, tiers: {host_gb: 0}}}", "pools.p.tiers.host_gb=0"),
    ("pools: {p: {model: m, engine: mock, tiers: {host_gb: 1, shared: true}}}", "shared: it is of `disk`"),
    ("pools: {p: {model: m, engine: mock, scale: {most: 2}}}", "p.scale: planner.objectives has no m"),
    ("pools: {p: {model: m, engine: mock, scale: {least: 3, most: 2}}}", "least is 3, and most is 2"),
    ("pools: {p: {model: m, engine: mock, scale: {most: 2, hosts: {a: 1}}}}", "hosts have room for 1 workers"),
    ("pools: {p: {model: m, engine: mock, scale: {most: 1, hosts: {-oProxyCommand=x: 1}}}}", "p.scale.hosts"),
    ("pools: {p: {model: m, engine: mock, task: embed, scale: {most: 2}}}", "p.scale: only pools that generate"),
    ("pools: {p: {model: m, engine: mock}}\nplanner: {objectives: {m: {ttft_s: 1, itl_s: 1}}}",
     "planner.objectives.m: no pool of that model has the key scale"),
    ("pools: {p: {model: m, engine: mock, task: embed, tiers: {host_gb: 1}}}", "p.tiers: only pools that generate"),
    ("pools: {p: {model: m, engine: mock, nodes: 0}}", "pools.p.nodes=0"),
    ("pools: {p: {model: m, engine: mock, tensor_parallel_size: 0}}", "pools.p.tensor_parallel_size=0"),
    ("pools: {p: {model: m, engine: mock, nodes: 2}}", "pools.p.nodes=2: does not divide the engine's 1 devices"),
    ("pools: {p: {model: m, engine: mock, nodes: 2, tensor_parallel_size: 3}}", "(tensor_parallel_size=3, data_para"),
    ("pools: {p: {model: m, engine: mock, nodes: 4, tensor_parallel_size: 2, data_parallel_size: 2}}",
     "pools.p.data_parallel_size=2: has to be a multiple of nodes=4"),
    ("pools: {p: {model: m, engine: trtllm, path: /m, tensor_parallel_size: 2}}",
     "pools.p.tensor_parallel_size=2: here, `args` says that"),
    ("pools: {p: {model: m, engine: trtllm, path: /m, nodes: 2, data_parallel_size: 2}}",
     "pools.p.nodes=2: engines that span several hosts are mock, sglang, vllm"),
    ("pools: {p: {model: m, engine: mock, task: image, nodes: 2}}", "engines that span"),
    ("pools: {p: {model: m, engine: mock, nodes: 2, tensor_parallel_size: 2, tiers: {host_gb: 1}}}",
     "pools.p.nodes=2: without tiers"),
    ("pools: {a: {model: m, engine: mock, nodes: 2, data_parallel_size: 2, embeddings: true}}",
     "pools.a.nodes=2: without embeddings"),
    ("pools: {a: {model: m, engine: mock}, e: {model: m, engine: mock, role: encode, nodes: 2}}",
     "pools.e.nodes=2: a pool of role encode has one host"),
    ("pools: {batch: {model: m, engine: mock}}", "pools.batch: the name is taken"),
    ("", "None"),
    ("just text", "'just text'"),
    ("pools: {}", "pools={}"),
    ("pools:\n  a: {model: m, engine: mock}\n  a: {model: n, engine: mock}", "'a' is there twice"),
    ("pools: {a: {model: m, engine: mock, max_running: 1:30}}", "pools.a.max_running='1:30'"),
    ("pools: {a: {model: m, engine: mock, max_running: 2027-01-31}}", "pools.a.max_running='2027-01-31'"),
    ("pools:\n  a: {model: !!int m, engine: mock}", "'m' is no int"),
    ("pools:\n  a: {model: !!bool m, engine: mock}", "line 2, column 14"),
    (f"pools: {'[' * 2000}{']' * 2000}", "not YAML: it is nested too deep"),
    (f"pools: {{a: {{model: m, engine: mock, max_running: {'9' * 5000}}}}}", "is no int"),
    ("pools: {a: !!map m}", "expected a mapping node"),
    ("pools: {a: {model: m, engine: mock, busy: {active_blocks: 95}}}", "pools.a.busy.active_blocks=95"),
    ("pools: {a: {model: m, engine: mock, routing: {policy: best}}}", "pools.a.routing.policy='best'"),
    ("pools: {a: {model: m, engine: mock}}\nselect: {m: {decode: {tokens: [5], pools: [[a]]}}}", "1 rows of 2 pools"),
    ("pools: {a: {model: m, engine: mock}}\nselect: {m: {decode: {pools: [[b]]}}}", "select.m.decode.pools='b'"),
    ("pools:\n  a: {model: m, engine: mock}\n  b: {model: m, engine: mock, routing: {policy: random}}",
     "pools.b.routing: differs from a's"),
])  # fmt: skip
def test_a_bad_pools_file_is_named_with_the_key_and_the_value(text: str, names: str, tmp_path: Path) -> None:
    """A typo costs a minute, not an afternoon."""
    assert names in pools_error(tmp_path, text)


def test_files_of_a_pool_may_be_in_the_home_or_beside_the_pools_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are where the process runs, as they always were."""
    (tmp_path / "home/model").mkdir(parents=True)
    (tmp_path / "pools/model").mkdir(parents=True)
    (tmp_path / "pools/my.jinja").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    file = tmp_path / "pools/pools.yaml"
    for path, place in (
        ("~/model", tmp_path / "home/model"),
        ("model", tmp_path / "pools/model"),
        ("./model", tmp_path / "pools/model"),
        ("elsewhere/model", Path("elsewhere/model")),
        ("/models/m", Path("/models/m")),
    ):
        file.write_text(f"pools: {{a: {{model: m, engine: vllm, path: '{path}', chat_template: my.jinja}}}}")
        (pool,) = load_pools(file).pools.values()
        assert (pool.path, pool.chat_template) == (place, tmp_path / "pools/my.jinja")


def test_a_missing_pools_file_is_named_with_its_variable(tmp_path: Path) -> None:
    """An operator who starts a first worker sees what to set."""
    missing = tmp_path / "nowhere.yaml"
    with pytest.raises(SettingsError, match=rf"XYLEM_POOLS_FILE={missing}: No such file"):
        load_pools(missing)


@pytest.mark.parametrize(
    "content", [b"pools: {", b"a: b: c", b"\t- x", b"pools: \xff\xfe", b"pools: !!python/object:os.x"]
)
def test_a_pools_file_that_is_not_yaml_is_named(content: bytes, tmp_path: Path) -> None:
    """The content may not even be text, or may be YAML that would run code."""
    file = tmp_path / "pools.yaml"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=f"{file}: not YAML"):
        load_pools(file)


@pytest.mark.parametrize("config", [None, "", "{", "[]", "{}", '{"max_position_embeddings": null}'])
def test_a_model_directory_without_a_readable_config_is_named(config: str | None, tmp_path: Path) -> None:
    """The context's length has to come from somewhere."""
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(SettingsError, match=f"path={tmp_path}: no readable config.json"):
        _ = Pool(model="m", engine="vllm", path=tmp_path).context_len


def test_a_pools_own_length_wins_over_the_models(tmp_path: Path) -> None:
    """A pool's length may be shorter, so that the cache holds it."""
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    assert Pool(model="m", engine="vllm", path=tmp_path).context_len == 4096
    assert Pool(model="m", engine="vllm", path=tmp_path, max_model_len=77).context_len == 77


def test_a_secret_that_signs_nothing_is_refused_at_the_start_and_not_shown() -> None:
    for bad in ("whsec_not base64", "whsec_", "any other one"):
        message = settings_error(webhook_secret=bad)
        assert "XYLEM_WEBHOOK_SECRET" in message
        assert bad.removeprefix("whsec_") not in message or bad == "whsec_"
    good = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    secret = present(load_settings(webhook_secret=good).webhook_secret)
    assert secret.get_secret_value() == good
