"""Keys that a script, a transaction or a command of several keys touches have one slot of a Redis Cluster."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.addresses.redis_url import cluster
from app.ids import ApiId, BatchId, ConversationId, FileId, KeyId, PlaceId, PoolId, RequestId, RunId, WorkerId
from app.keys import Keys
from app.store import scripts
from app.store.cluster_nodes import slot_of
from tests.present import present

LUA = scripts._FOLDER
IDS = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.", min_size=1, max_size=12)
# Names that a script makes up, or reads from Redis: all have the slot of its keys.
MADE_UP = {
    "batch/create": {"ARGV[6] .. id"},  # batch:<id>, of the key's older ones
    "batch/hand_out_parts": {"ARGV[2] .. worker"},  # api:<worker>, of those that have parts
    "batch/lock": {"ARGV[3] .. holder"},  # api:<holder>
    "ledger/admit": {"ARGV[5] .. holder"},  # api:<holder>, of those that have places among parallel requests
    "files/add_file": {"ARGV[8] .. id"},  # file:<id>, once for each API key of an older version
    "media/held": {"KEYS[3] .. hash"},  # media:<sha256>
    "media/hold": {"KEYS[3] .. ARGV[i]", "KEYS[3] .. hash"},  # media:<sha256>
    "media/renew": {"KEYS[3] .. hash"},  # media:<sha256>
    "resumable/locked": {"holder"},  # kept:<response>, as the conversation names it
}
_NO_KEY = {"TIME"}
_CALL = re.compile(r"\bcall\('(\w+)'(?:, *((?:[^,()]|\([^()]*\))+))?")


def groups(k: Keys, a: str, b: str) -> Iterator[list[str]]:
    """The groups of keys that are touched together, for two workers, replicas, pools and so on."""
    worker, api, pool, run = WorkerId(a), ApiId(a), PoolId(a), RunId(a)
    loras, version = k.loras()
    fleet = [
        k.home, k.wire_versions(), k.pool(pool), k.seen(pool), k.worker(worker), k.metrics(worker), k.api(api),
        k.lost(pool), k.reservations(worker), k.loads(pool), k.load(worker), k.request(run), k.api_keys(),
        loras, version,
        k.tenants(), k.prices(), k.tenants_version(), k.audit(), k.key_owners(), *k.erasures(), k.erased_salts(),
        k.aliases(), k.limits(pool), k.prefixes(pool), k.pool_state(pool), k.pool_lock(pool), k.service(a),
        k.charged(RequestId(a)), k.spent(a), k.spent(b), k.budget(a), k.budget(b), k.running(a),
        k.running(b), k.reserved(a, "tokens"), k.reserved(b, "money"),
        k.changed(pool), k.watched(pool), k.cache_numbers(), k.sweeping(pool), k.prefilling(worker), k.starting(pool),
        k.commands(worker), k.reply(a), k.recording(), k.recorded(a), k.media(a), k.embedding(a, b), k.encoded(run),
        k.expansions(a),
        k.member(worker), k.member(WorkerId(b)), k.group(worker), k.group(WorkerId(b)), k.gathering(pool),
        k.group_epoch(pool), *k.release(run, worker, pool),
        k.planning(), k.traffic(1), k.traffic_of(a, 300), k.planner_leader(), k.planner_speeds(), k.desired(pool),
        k.usage(), k.usage_leader(), k.usage_aside(), *k.media_held(),
        k.budgets(), k.budget_notices(), k.budget_leader(),
    ]  # fmt: skip
    others = [k.worker(WorkerId(b)), k.loads(PoolId(b)), k.starting(PoolId(b)), k.request(RunId(b)), k.api(ApiId(b))]
    batch, key, part = BatchId(a), KeyId(b), 3
    batches = [
        k.batch(batch), k.batches_of(key), k.batches(), k.todo(batch), k.taken(batch), k.done(batch, part),
        k.batch_leader(), k.batch_workers(), k.batch_ports(), k.batch_counts(), k.batch_totals(), k.api(ApiId(b)),
        k.handling(a),
    ]  # fmt: skip
    yield fleet + others + batches
    yield [
        k.file(FileId(a)),
        k.file(FileId(b)),
        k.files_of(key),
        k.file_bytes(key),
        k.file_bytes_in_all(),
        k.files_expiring(),
    ]
    yield [
        k.kept(RequestId(a)), k.kept(RequestId(b)), k.log(RequestId(a)), k.kept_of(api), k.kept_of(ApiId(b)),
        k.answer_owners(), k.untold(), k.chats_of(key), k.videos_of(key),
        *k.kept_account(), k.joined(a), *k.conversation(ConversationId(b)),
    ]  # fmt: skip
    yield [
        *k.cached(pool),
        *k.tiered(pool),
        k.stores(pool),
        k.stored(pool),
        k.cleaning(pool),
        k.predicted(pool, PlaceId(a)),
        k.predicted(pool, PlaceId(b)),
    ]
    yield [k.out(api), k.out_marks(api)]


@given(IDS, IDS)
def test_keys_that_are_touched_together_have_one_slot(a: str, b: str) -> None:
    for group in groups(Keys("test", clustered=True), a, b):
        assert len({slot_of(key) for key in group}) == 1, group


def test_every_key_is_in_a_group() -> None:
    """A new one belongs where it is touched with others."""
    source = inspect.getsource(groups)
    methods = {name for name, _ in inspect.getmembers(Keys, callable) if not name.startswith("_")}
    methods -= {"queue"}  # Celery's, whose broker is a single server
    assert {name for name in methods if f"k.{name}(" not in source} == set()


def test_tokens_indices_and_kept_answers_are_spread() -> None:
    """The heaviest data is spread by replica and by pool, not all on one node."""
    keys = Keys("test", clustered=True)
    assert len({slot_of(keys.out(ApiId(f"{i}"))) for i in range(20)}) > 15
    assert len({slot_of(keys.cached(PoolId(f"pool-{i}"))[0]) for i in range(20)}) > 15
    assert len({slot_of(key) for key in (keys.home, keys.kept(RequestId("a")))}) == 2


def test_without_a_cluster_names_are_those_of_before() -> None:
    for group in groups(Keys("test"), "a", "b"):
        assert all(key.startswith("test:") for key in group)


def test_scripts_touch_declared_keys_only() -> None:
    """A key that isn't declared may be on another node of a cluster."""
    undeclared_keys: dict[str, set[str]] = {}
    for path in sorted(LUA.rglob("*.lua")):
        name = str(path.relative_to(LUA).with_suffix(""))
        for command, key in _CALL.findall(re.sub(r"--[^\n]*", "", path.read_text())):
            if command not in _NO_KEY and not _is_declared(path.read_text(), key.strip()):
                undeclared_keys.setdefault(name, set()).add(key.strip())
    assert undeclared_keys == MADE_UP


def _is_declared(source: str, key: str) -> bool:
    """`KEYS[…]`, or an argument of a function, whose callers are looked at by themselves."""
    if re.fullmatch(r"KEYS\[[^\]]+\]", key):
        return True
    if (table := re.fullmatch(r"(\w+)\[\w+\]", key)) and re.search(rf"\b{table[1]}\[.+\] = KEYS\[", source):
        return True
    as_argument = re.search(rf"function \w+\([^)]*\b{re.escape(key)}\b[^)]*\)", source)
    return bool(as_argument) or bool(re.search(rf"for _, {re.escape(key)} in ipairs\((KEYS\)|\{{KEYS)", source))


def test_a_url_of_a_cluster_names_nodes_and_may_have_tls() -> None:
    address = present(cluster("clusters://me:p%40ss@one:1,two?ssl_ca_certs=/ca.pem"))
    assert (address.nodes, address.user, address.password) == ([("one", 1), ("two", 6379)], "me", "p@ss")
    assert address.tls == {"ssl_cert_reqs": "required", "ssl_ca_certs": "/ca.pem"}
    assert cluster("redis://h") is None


def test_the_tag_is_what_redis_takes_for_it() -> None:
    assert slot_of("{a}:x") == slot_of("{a}:y") == slot_of("a")
    hashed_parts: Any = {"{}a": "{}a", "a{b": "a{b", "a{b}{c}": "b"}
    for key, part in hashed_parts.items():
        from redis.crc import key_slot

        assert slot_of(key) == key_slot(part.encode())
