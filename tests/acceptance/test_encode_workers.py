"""Pictures that other workers encode, and each fault on the way: the answer is that of a worker with eyes of its own.

The mock engine dies of an encoded picture of another shape, as real engines do.
"""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from openai import OpenAI

from app.media.picture import picture_of
from app.messages.handoff import EmbeddingHandle, decode_embedding
from app.messages.wire import encode
from app.settings import Settings
from tests.encode_counts import settled, wait_for
from tests.pictures import asked, png
from tests.serving import Pools, served_by
from tests.stack import Stack, indexed_blocks, leases, metric, mock_pool, timeline, wait_until
from tests.vlm import random_vlm

POOL, EYES = "both-pool", "eyes-pool"
APART = {"encode": "eyes-apart", "prefill": "prefill-apart", "decode": "decode-apart"}
MEETING = {"encode": "eyes-meeting", "prefill": "prefill-meeting", "decode": "decode-meeting"}
ODD, BLIND = "odd-eyes", "no-eyes"
STAGES = ["placement", "encode_pictures", "prefill", "decode", "hop", "resume"]
DEADLY = 77  # a picture of this colour kills the odd encoder


def pools(_: Path) -> Pools:
    """Models with two encoders; encode, prefill and decode apart, in sequence and at once; bad encoders and none."""
    path = {"path": str(random_vlm("idefics3", weights=False))}
    args: dict[str, Any] = {"max_model_len": 2048, "block_size": 16, "step_ms": 15.0, "encode_tokens_per_s": 250.0}

    def pool(model: str, role: str = "both", **more: Any) -> dict[str, Any]:
        return mock_pool(model=model, **args | more) | path | {"role": role}

    split = {"disagg": {"remote_tokens": 64, "remote_wait_s": 60.0}}
    return {
        POOL: pool("sees"),
        EYES: pool("sees", "encode"),
        "alone-pool": pool("alone"),
        **{name: pool("apart", role) | (split if role != "encode" else {}) for role, name in APART.items()},
        **{
            name: pool("meeting", role, handoff={"shape": "at_once"}) | (split if role != "encode" else {})
            for role, name in MEETING.items()
        },
        "odd-pool": pool("odd"),
        ODD: pool("odd", "encode", embedding_rows=1, dies_on_picture=DEADLY),
        BLIND: pool("eyeless", "encode"),
        "eyeless-pool": pool("eyeless"),
    }


LIVE = (POOL, EYES, "alone-pool", *APART.values(), *MEETING.values(), "odd-pool", ODD, "eyeless-pool")
served = served_by(pools, {name: name for name in LIVE} | {"second-eyes": EYES})


def answer(client: OpenAI, model: str, messages: list[Any], **fields: Any) -> Any:
    options: dict[str, Any] = {"seed": 1, "max_tokens": 12} | fields
    return client.chat.completions.create(model=model, messages=messages, **options)


def text(client: OpenAI, model: str, messages: list[Any]) -> str:
    return str(answer(client, model, messages).choices[0].message.content)


def entry(s: Stack, model: str, seed: int) -> tuple[str, EmbeddingHandle]:
    """The index's entry for the picture `png(seed)`: its key, and where the encoded picture is."""
    name = picture_of(90, 120, bytes((seed, 255 - seed, 7)) * 120 * 90).sha256
    key = f"{s.deployment}:embedding:{model}:{name}"
    return key, decode_embedding(s.redis.get(key))


def test_the_answer_is_the_same_and_the_second_question_needs_no_encoder(served: Stack, client: OpenAI) -> None:
    messages, before = asked(png(1)), settled(served)
    assert text(client, "sees", messages) == text(client, "alone", messages)
    wait_for(served, before, encoded=1, found=0, fetched=1, lost=0, missing=0)
    again = asked(png(1), text="And what else?")
    assert text(client, "sees", again) == text(client, "alone", again)
    wait_for(served, before, encoded=1, found=0, fetched=2, lost=0, missing=0)


def test_a_question_whose_pictures_kv_is_there_needs_no_encoder(served: Stack, client: OpenAI) -> None:
    """The picture's encoded rows are forgotten by then."""
    messages, before, blocks = asked(png(5)), settled(served), indexed_blocks(served, POOL)
    messages.append(
        {"role": "user", "content": "All of the picture is in whole blocks of KV if a text is behind it. " * 2}
    )
    response = answer(client, "sees", messages)
    blocks += response.usage.prompt_tokens // 16
    wait_until(lambda: indexed_blocks(served, POOL) >= blocks, "its KV is in the index")
    served.redis.delete(entry(served, "sees", 5)[0])
    more = [*messages, {"role": "assistant", "content": "I see."}, {"role": "user", "content": "And what else?"}]
    assert text(client, "sees", more) == text(client, "alone", more)
    wait_for(served, before, encoded=1, found=0, fetched=1, lost=0, missing=1)


def test_several_pictures_are_spread_over_the_encoders(served: Stack, client: OpenAI) -> None:
    workers = {lease.worker.id for lease in leases(served, EYES)}
    messages = asked(png(11), png(12), png(13), png(14), png(11))
    assert text(client, "sees", messages) == text(client, "alone", messages)
    assert {entry(served, "sees", seed)[1].worker for seed in (11, 12, 13, 14)} == workers


def test_what_counts_a_requests_encoders_is_gone_at_its_deadline(served: Stack, client: OpenAI) -> None:
    """The counts expire half a minute after it, as the request's record does."""
    text(client, "sees", asked(png(15), png(16)))
    lives = [served.redis.ttl(name) for name in served.redis.scan_iter(f"{served.deployment}:encoded:*")]
    assert lives
    assert max(lives) <= Settings().request_timeout_s + 30


def test_encode_prefill_and_decode_on_three_workers(served: Stack, client: OpenAI) -> None:
    """The decode worker gets the prompt's KV, and no picture."""
    messages, before = asked(png(21)), settled(served)
    response = answer(client, "apart", messages)
    assert response.choices[0].message.content == text(client, "alone", messages)
    wait_for(served, before, encoded=1, fetched=1, lost=0, missing=0)
    roles = {lease.worker.id: lease.worker.role for lease in leases(served)}
    parts = timeline(served, response.id)
    assert [roles[part["worker"]] for part in parts["workers"]] == ["prefill", "decode"]
    assert [name for name in parts["stages"] if name != "transfer"] == STAGES


def test_where_prefill_and_decode_meet_both_begin_with_the_encoded_picture(served: Stack, client: OpenAI) -> None:
    messages, before = asked(png(22), png(23)), settled(served)
    response = answer(client, "meeting", messages)
    assert response.choices[0].message.content == text(client, "alone", messages)
    wait_for(served, before, encoded=2, fetched=2, lost=0, missing=0)
    roles = {lease.worker.id: lease.worker.role for lease in leases(served)}
    assert [roles[part["worker"]] for part in timeline(served, response.id)["workers"]] == ["prefill", "decode"]


def test_a_lost_transfer_is_encoded_where_the_answer_is(served: Stack, client: OpenAI) -> None:
    """Other bytes are in its place, as after another picture has taken it."""
    messages = asked(png(31))
    before = settled(served)
    text(client, "sees", messages)
    wait_for(served, before, fetched=1)
    key, handle = entry(served, "sees", 31)
    served.redis.set(key, encode(replace(handle, checksum=handle.checksum ^ 1)))
    more = asked(png(31), text="Again?")
    assert text(client, "sees", more) == text(client, "alone", more)
    wait_for(served, before, fetched=1, lost=1, missing=0)


def test_a_wrong_shape_never_reaches_the_engine(served: Stack, client: OpenAI) -> None:
    messages, before = asked(png(41)), settled(served)
    [living] = leases(served, "odd-pool")
    assert text(client, "odd", messages) == text(client, "alone", messages)
    wait_for(served, before, encoded=1, fetched=0, lost=1)
    assert [lease.worker.pid for lease in leases(served, "odd-pool")] == [living.worker.pid]


def test_without_an_encoder_a_worker_encodes_itself(served: Stack, client: OpenAI) -> None:
    messages, before = asked(png(51)), settled(served)
    assert text(client, "eyeless", messages) == text(client, "alone", messages)
    wait_for(served, before, encoded=0, fetched=0, lost=0, missing=1)


def test_an_encoder_killed_while_it_encodes_and_before_it_begins(served: Stack, client: OpenAI) -> None:
    """One request is being encoded, and one waits behind it: each gets one answer, the right one."""
    first, second = asked(png(61), png(62), png(63), png(64)), asked(png(65), png(66), png(67), png(68))
    reference_texts = [text(client, "alone", messages) for messages in (first, second)]
    victim = leases(served, EYES)[0].worker
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(text, client, "sees", messages) for messages in (first, second)]
        key = f"{served.deployment}:reservations:{victim.id}"
        wait_until(lambda: served.redis.hlen(key) == 2, "both are at the victim")
        _kill(served, victim.pid)
        assert [one.result() for one in answers] == reference_texts
    _restart(served, EYES, victim.pid)


def test_an_encoder_killed_before_its_picture_is_fetched(served: Stack, client: OpenAI) -> None:
    before = settled(served)
    text(client, "sees", asked(png(71)))
    wait_for(served, before, fetched=1)  # an encoder may still encode what the test before no longer waited for
    holder = entry(served, "sees", 71)[1].worker
    victim = next(lease.worker for lease in leases(served, EYES) if lease.worker.id == holder)
    before = {name: metric(served, POOL, f"pictures_{name}") for name in ("lost", "fetched")}
    _kill(served, victim.pid)
    more = asked(png(71), text="Again?")
    assert text(client, "sees", more) == text(client, "alone", more)
    wait_until(lambda: metric(served, POOL, "pictures_lost") == before["lost"] + 1, "counted")
    assert metric(served, POOL, "pictures_fetched") == before["fetched"]
    _restart(served, EYES, victim.pid)


def test_a_picture_that_kills_encoders_kills_one(served: Stack, client: OpenAI) -> None:
    messages = asked(png(DEADLY))
    [victim] = [lease.worker.pid for lease in leases(served, ODD)]
    assert text(client, "odd", messages) == text(client, "alone", messages)
    _restart(served, ODD, victim)


def test_an_answer_goes_on_elsewhere_and_a_batchlike_one_waits_with_its_picture(served: Stack, client: OpenAI) -> None:
    """The worker that answers is killed amid the answer; another one gets the encoded picture, too."""
    served.worker(POOL, "second-both")
    wait_until(lambda: len(leases(served, POOL)) == 2, "a second worker")
    messages = asked(png(81))
    reference = answer(client, "alone", messages, max_tokens=250).choices[0].message.content
    assert answer(client, "sees", messages, max_tokens=250, service_tier="flex").choices[0].message.content == reference
    content, victim = "", 0
    for chunk in answer(client, "sees", messages, max_tokens=250, stream=True):
        content += chunk.choices[0].delta.content or ""
        if not victim and content:
            busy = next(lease for lease in leases(served, POOL) if _reserved(served, lease.worker.id))
            victim = busy.worker.pid
            _kill(served, victim)
    assert content == reference
    _restart(served, POOL, victim)


def _reserved(s: Stack, worker: str) -> int:
    return int(s.redis.hlen(f"{s.deployment}:reservations:{worker}"))


def _kill(s: Stack, pid: int) -> None:
    next(proc for proc in s.procs if proc.pid == pid).send_signal(signal.SIGKILL)


def _restart(s: Stack, pool: str, victim: int) -> None:
    wait_until(lambda: victim not in [lease.worker.pid for lease in leases(s, pool)], "its lease has ended")
    count = len(leases(s, pool))
    s.worker(pool, f"{pool}-{victim}")
    wait_until(lambda: len(leases(s, pool)) == count + 1, "another one")
