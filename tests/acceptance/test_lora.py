"""LoRA adapters over real processes: two API replicas, two workers that come and go, the official client."""

import hashlib
import http.server
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from redis import Redis
from typer.testing import CliRunner

from app.cli.main import cli
from app.ids import BATCH_QUEUE
from app.messages.wire import encode
from app.tenants.records import ApiKey
from tests.batching import answered
from tests.lora import tiny_adapter
from tests.serving import Pools, replica_of, served_by
from tests.stack import Stack, free_port, leases, mock_pool, wait_until

POOL = "decode-pool-a"
PROMPT = [{"role": "user", "content": "Tell me a story of a cat, please, and make it long enough to fill some blocks."}]
WORKERS = 2


_WEB, _OTHER = free_port(), free_port()


def pools(path: Path) -> Pools:
    for name in ("one", "two", "three"):
        tiny_adapter(path / "sources" / name, f"weights {name}")
    tiny_adapter(path / "sources" / "large", "w", rank=65)
    tiny_adapter(path / "elsewhere", "secret")
    return {POOL: mock_pool(block_size=16, step_ms=1.0, max_adapters=3, adapter_load_s=0.05, fails_on_adapter="broken")}


fleet = served_by(
    pools, {"w1": POOL, "w2": POOL}, XYLEM_LORA_STORE="{path}/store", XYLEM_LORA_NETWORKS="127.0.0.1/32",
    XYLEM_LORA_SOURCES=f"{{path}}/sources,http://127.0.0.1:{_WEB}/public", XYLEM_PATIENCE_S="20",
)  # fmt: skip


@pytest.fixture(scope="module")
def served(fleet: Stack) -> Stack:
    """Two replicas."""
    replica_of(fleet, "other", _OTHER)
    return fleet


@pytest.fixture
def clean(served: Stack) -> Iterator[Stack]:
    yield served
    aliases = httpx.get(f"{served.url}/admin/aliases").json()["aliases"]
    alias(served, **dict.fromkeys(aliases)).raise_for_status()
    for one in httpx.get(f"{served.url}/admin/loras").json()["data"]:
        httpx.delete(f"{served.url}/admin/loras/{one['name']}", timeout=90).raise_for_status()


def alias(s: Stack, **aliases: Any) -> httpx.Response:
    return httpx.patch(f"{s.url}/admin/aliases", json={"aliases": aliases})


def client(port: int, key: str = "-") -> OpenAI:
    return OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0)


def ask(s: Stack, model: str, port: int | None = None, c: OpenAI | None = None) -> str:
    with nullcontext(c) if c is not None else client(port or s.port) as c:
        answer = c.chat.completions.create(model=model, messages=PROMPT, max_tokens=12, temperature=0)  # type: ignore[arg-type]
    assert answer.model == model
    text = answer.choices[0].message.content
    assert text
    return text


def models(port: int) -> dict[str, openai.types.Model]:
    with client(port) as c:
        return {model.id: model for model in c.models.list()}


def source(s: Stack, name: str) -> str:
    return str(s.directory / "sources" / name)


def add(s: Stack, name: str, of: str, **more: Any) -> httpx.Response:
    body = {"name": name, "source": source(s, of), "model": "mock", **more}
    return httpx.post(f"{s.url}/admin/loras", json=body, timeout=90)


def xylem(s: Stack, *args: str) -> str:
    result = CliRunner().invoke(cli, ["lora", *args, "--url", s.url])
    assert result.exit_code == 0, result.output
    return result.output


def having(s: Stack, name: str) -> list[str]:
    """Workers that answer with any version of it."""
    return [one.worker.id for one in leases(s) if any(a.startswith(f"{name}@") for a in one.worker.adapters)]


def test_another_replica_knows_an_adapter_or_an_alias_as_soon_as_it_was_added(clean: Stack) -> None:
    """Each of several in a row is asked for at once, though the replica looks for changes only a few times a second."""
    for number in range(4):
        name, other = f"new-{number}", f"alias-{number}"
        assert add(clean, name, "one").status_code == 200
        assert ask(clean, name, _OTHER)
        alias(clean, **{other: {"primary": name}}).raise_for_status()
        with client(_OTHER) as c:
            assert c.models.retrieve(other).id == other


def test_an_adapter_is_a_model_of_its_own(clean: Stack) -> None:
    """The adapter goes from the command line to the answer, at each replica; the model itself answers as before."""
    plain = ask(clean, "mock")
    assert "sql" in xylem(clean, "add", "sql", source(clean, "one"), "--model", "mock", "--min-workers", "2")
    assert len(having(clean, "sql")) == WORKERS
    answer = ask(clean, "sql")
    assert answer != plain
    wait_until(lambda: "sql" in models(_OTHER), "the other replica knows it")
    assert ask(clean, "sql", _OTHER) == answer
    assert ask(clean, "mock") == plain
    assert (models(clean.port)["sql"].model_extra or {})["parent"] == "mock"
    assert 'xylem_requests_total{model="sql",outcome="ok"}' in httpx.get(f"{clean.url}/metrics").text
    output = xylem(clean, "list")
    assert "sql" in output
    assert "mock" in output


def test_batches_name_it_or_an_alias_as_their_model(clean: Stack) -> None:
    add(clean, "lined", "one").raise_for_status()
    alias(clean, named={"primary": "lined", "fallback": "mock"}).raise_for_status()
    chat = {"messages": PROMPT, "max_tokens": 12, "temperature": 0}
    clean.worker(BATCH_QUEUE, "batch")
    with client(clean.port) as c:
        _, bodies = answered(c, [{"model": name, **chat} for name in ("lined", "named")])
    assert [(a["model"], a["choices"][0]["message"]["content"]) for a in bodies] == [("lined", ask(clean, "lined"))] * 2


def test_its_prompts_are_cached_apart_and_found_again(clean: Stack) -> None:
    """Each adapter finds its own KV, and neither the model's nor another adapter's."""
    for name, of in (("a1", "one"), ("a2", "two")):
        add(clean, name, of).raise_for_status()

    def cached(model: str) -> int:
        body = {"model": model, "messages": PROMPT, "max_tokens": 2}
        usage = httpx.post(f"{clean.url}/v1/chat/completions", json=body).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    ask(clean, "mock")
    assert cached("a1") == 0
    assert cached("a2") == 0
    wait_until(lambda: cached("a1") > 0, "the prefix is found by its adapter")


def test_after_a_swap_no_answer_is_stale(clean: Stack) -> None:
    """Both replicas are under load: a request after the acknowledgement gets the new weights."""
    add(clean, "hot", "one", min_workers=2).raise_for_status()
    answers = {}
    for name in ("one", "two"):
        add(clean, f"sure-{name}", name).raise_for_status()
        answers[name] = ask(clean, f"sure-{name}")
        httpx.delete(f"{clean.url}/admin/loras/sure-{name}", timeout=90).raise_for_status()
    wait_until(lambda: "hot" in models(_OTHER), "the other replica knows it")
    over, swap_times = threading.Event(), [0.0]
    samples: list[tuple[float, str]] = []

    def load(port: int) -> None:
        with client(port) as c:
            while not over.is_set():
                began = time.monotonic()
                samples.append((began, ask(clean, "hot", c=c)))

    with ThreadPoolExecutor(8) as threads:
        running = [threads.submit(load, port) for port in (clean.port, _OTHER) * 4]
        try:
            wait_until(lambda: len(samples) > 20, "load")
            swap = httpx.post(f"{clean.url}/admin/loras/hot", json={"source": source(clean, "two")}, timeout=90)
            swap_times[0] = time.monotonic()
            swap.raise_for_status()
            after = len(samples)
            wait_until(lambda: len(samples) > after + 60, "load after the swap", 60)
        finally:
            over.set()
        for one in running:
            one.result()
    assert len(swap.json()["workers"]) == WORKERS
    before = {text for began, text in samples if began < swap_times[0]}
    assert answers["one"] in before
    assert before <= set(answers.values())
    assert {text for began, text in samples if began > swap_times[0]} == {answers["two"]}


def test_a_worker_that_starts_anew_loads_by_itself(clean: Stack) -> None:
    add(clean, "kept", "three", min_workers=2).raise_for_status()
    answer = ask(clean, "kept")
    clean.names["w2"].kill()
    clean.wait_ready(1)
    assert ask(clean, "kept") == answer
    clean.worker(POOL, "w2")
    wait_until(lambda: len(having(clean, "kept")) == WORKERS, "both have it")
    clean.wait_ready(WORKERS)


def test_what_nobody_has_is_loaded_when_it_is_asked_for(clean: Stack) -> None:
    """The adapter that was used longest ago goes where no slot is left."""
    for i, of in enumerate(("one", "two", "three", "one", "two", "three", "one", "two")):
        add(clean, f"cold-{i}", of, min_workers=0).raise_for_status()
    assert not having(clean, "cold-0")
    answers = [ask(clean, f"cold-{i}") for i in range(8)]
    assert answers[0] == answers[3] == answers[6] != answers[1] == answers[4] == answers[7] != answers[2] == answers[5]
    assert all(len(one.worker.adapters) <= 3 for one in leases(clean))


def test_one_that_cannot_be_loaded_is_its_own_trouble(clean: Stack) -> None:
    """Its requests are told why, and soon; never the model's own answer; all else goes on."""
    adapter = add(clean, "broken", "one").json()
    assert not adapter["workers"]
    assert len(adapter["failed"]) == WORKERS
    assert add(clean, "rank", "large").json()["failed"]
    assert add(clean, "missing", "nowhere").json()["failed"]
    reasons = {one["name"]: str(one["failed"]) for one in httpx.get(f"{clean.url}/admin/loras").json()["data"]}
    for name, why in (("broken", "fails to load"), ("rank", "rank is 65"), ("missing", "has no ")):
        assert why in reasons[name]
        with pytest.raises(openai.APIStatusError, match="can't be loaded") as exc_info:
            ask(clean, name)
        assert exc_info.value.status_code == 503
        assert exc_info.value.code == "adapter_failed"
    assert ask(clean, "mock")
    clean.wait_ready(WORKERS)
    # In place of a good one it serves nobody, and another swap helps.
    add(clean, "good", "one").raise_for_status()
    answer = ask(clean, "good")
    swap = httpx.post(f"{clean.url}/admin/loras/good", json={"source": source(clean, "nowhere")}, timeout=90).json()
    assert not swap["workers"]
    with pytest.raises(openai.APIStatusError, match="can't be loaded"):
        ask(clean, "good")
    httpx.post(f"{clean.url}/admin/loras/good", json={"source": source(clean, "one")}, timeout=90).raise_for_status()
    assert ask(clean, "good") == answer


def test_a_removed_one_is_no_model_any_more(clean: Stack) -> None:
    add(clean, "gone", "one").raise_for_status()
    ask(clean, "gone")
    xylem(clean, "remove", "gone")
    assert not having(clean, "gone")
    with pytest.raises(openai.NotFoundError):
        ask(clean, "gone")
    assert httpx.delete(f"{clean.url}/admin/loras/gone").status_code == 404


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"source": "/etc"}, "source"), ({"source": "elsewhere"}, "source"), ({"source": "s3://bucket/x"}, "source"),
        ({"source": "http://127.0.0.1/public/a.tar", "sha256": "0" * 64}, "source"), ({"name": "mock"}, "name"),
        ({"name": "a@b"}, "name"), ({"name": "../x"}, "name"), ({"pools": ["nobody"]}, "pools"),
        ({"model": "nobody"}, "model"), ({"sha256": "x"}, "sha256"), ({"colour": 1}, "colour"),
    ],
)  # fmt: skip
def test_what_may_not_be_is_refused_by_name(served: Stack, changes: dict[str, Any], param: str) -> None:
    """The refusal comes before anything is written down."""
    if changes.get("source") == "elsewhere":
        changes = {"source": str(served.directory / "sources" / ".." / "elsewhere")}
    answer = add(served, "x", "one") if not changes else add(served, **({"name": "x", "of": "one"} | changes))
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == param
    assert httpx.get(f"{served.url}/admin/loras").json() == {"data": []}


def test_links_lead_nowhere(clean: Stack) -> None:
    """A link in an allowed folder may lead to anything on the worker's disk."""
    link = clean.directory / "sources" / "link"
    link.symlink_to(clean.directory / "elsewhere")
    assert "not allowed" in str(add(clean, "linked", "link").json()["failed"])


def test_it_comes_by_http_with_a_checksum(clean: Stack) -> None:
    """The archive comes from an allowed host, with the promised checksum, and not from where that host redirects."""
    public = clean.directory / "web" / "public"
    public.mkdir(parents=True)
    with tarfile.open(public / "a.tar.gz", "w:gz") as tar:
        tar.add(source(clean, "one"), "one")
    digest = hashlib.sha256((public / "a.tar.gz").read_bytes()).hexdigest()
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=clean.directory / "web")
    with http.server.ThreadingHTTPServer(("127.0.0.1", _WEB), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{_WEB}/public/a.tar.gz"
        answer = add(clean, "web", "", source=url)
        assert answer.json()["error"]["param"] == "sha256"
        adapter = add(clean, "web", "", source=url, sha256=digest).json()
        wrong = add(clean, "wrong", "", source=url, sha256="0" * 64).json()
        server.shutdown()
    assert adapter["workers"]
    assert "SHA-256" in str(wrong["failed"])
    add(clean, "file", "one").raise_for_status()
    assert ask(clean, "web") == ask(clean, "file")


def test_vllms_endpoints_do_the_same(clean: Stack) -> None:
    def post(what: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{clean.url}/v1/{what}_lora_adapter", json=body, timeout=90)

    answer = post("load", lora_name="v", lora_path=source(clean, "one"))
    assert (answer.status_code, "Success" in answer.text) == (200, True)
    first = ask(clean, "v")
    assert post("load", lora_name="v", lora_path=source(clean, "two")).status_code == 400
    assert post("load", lora_name="v", lora_path=source(clean, "two"), load_inplace=True).status_code == 200
    assert ask(clean, "v") != first
    assert post("unload", lora_name="v").status_code == 200
    assert post("unload", lora_name="v").status_code == 404
    assert post("load", lora_name="broken", lora_path=source(clean, "one")).json()["error"]["code"] == "adapter_failed"
    assert httpx.get(f"{clean.url}/admin/loras").json() == {"data": []}


def test_no_adapter_has_the_name_of_an_alias(clean: Stack) -> None:
    """An alias of that name would answer for it."""
    add(clean, "taken", "one").raise_for_status()
    answer = alias(clean, taken={"primary": "mock"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "aliases.taken")
    alias(clean, other={"primary": "mock"}).raise_for_status()
    answer = add(clean, "other", "one")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "name")


def test_an_alias_stands_for_it_and_its_fallback_answers_when_it_is_removed(clean: Stack) -> None:
    """Each replica does so, for a request that may be repeated too; an alias of nothing is no model."""
    assert alias(clean, stands={"primary": "tuned"}).status_code == 400
    add(clean, "tuned", "one").raise_for_status()
    alias(clean, stands={"primary": "tuned", "fallback": "mock"}, alone={"primary": "tuned"}).raise_for_status()
    wait_until(lambda: {"stands", "alone"} <= models(_OTHER).keys(), "the other replica knows them")

    def answering(port: int, **headers: str) -> str:
        with client(port) as c:
            fields: Any = {"model": "stands", "messages": PROMPT, "max_tokens": 2, "extra_headers": headers}
            return c.chat.completions.create(**fields).model

    assert [answering(port) for port in (clean.port, _OTHER)] == ["tuned"] * 2
    assert answering(clean.port, **{"Idempotency-Key": "a"}) == "tuned"
    xylem(clean, "remove", "tuned")
    # The other replica may not know yet that it is gone.
    assert [answering(port) for port in (_OTHER, clean.port)] == ["mock"] * 2
    add(clean, "tuned", "one").raise_for_status()
    wait_until(lambda: "tuned" in models(_OTHER), "the other replica knows it")
    xylem(clean, "remove", "tuned")
    assert answering(_OTHER, **{"Idempotency-Key": "c"}) == "mock"
    assert answering(clean.port, **{"Idempotency-Key": "b"}) == "mock"
    assert {"stands", "alone"} & models(clean.port).keys() == {"stands"}
    with pytest.raises(openai.NotFoundError):
        ask(clean, "alone")


def test_only_an_admin_changes_adapters(clean: Stack) -> None:
    """The admin's key is needed whether clients' keys are asked for or not.

    A client's key is good for the adapter as for its model.
    """
    token, port = "xyl-client", free_port()
    record = ApiKey("client", hashlib.sha256(token.encode()).digest(), 0.0)
    with Redis.from_url(clean.redis_url) as redis:
        redis.hset(f"{clean.deployment}:keys:api", "client", encode(record))
    clean.api("locked", port, XYLEM_REQUIRE_KEYS="true", XYLEM_ADMIN_KEY="boss")
    url = f"http://127.0.0.1:{port}"
    clean.wait_ready(WORKERS, url=url)
    adapter = {"name": "mine", "source": source(clean, "one"), "model": "mock"}
    vllms = {"lora_name": "theirs", "lora_path": source(clean, "one")}
    tries: list[tuple[str, str, dict[str, Any] | None]] = [
        ("GET", "/admin/loras", None), ("POST", "/admin/loras", adapter),
        ("POST", "/admin/loras/mine", {"source": "/x"}), ("DELETE", "/admin/loras/mine", None),
        ("POST", "/v1/load_lora_adapter", vllms), ("POST", "/v1/unload_lora_adapter", {"lora_name": "mine"}),
    ]  # fmt: skip
    for key in ("", token, "wrong"):
        for method, path, body in tries:
            headers = {"authorization": f"Bearer {key}"} if key else {}
            answer = httpx.request(method, url + path, json=body, headers=headers)
            assert answer.status_code == 403, (key, method, path)
    boss = {"authorization": "Bearer boss"}
    httpx.post(f"{url}/admin/loras", json=adapter, headers=boss, timeout=90).raise_for_status()
    httpx.post(f"{url}/v1/load_lora_adapter", json=vllms, headers=boss, timeout=90).raise_for_status()
    with client(port, token) as c:
        assert c.chat.completions.create(model="mine", messages=PROMPT, max_tokens=2).choices  # type: ignore[arg-type]
    with client(port, "boss") as c, pytest.raises(openai.AuthenticationError):
        c.chat.completions.create(model="mine", messages=PROMPT, max_tokens=2)  # type: ignore[arg-type]
