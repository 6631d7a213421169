"""Pinned prefixes: which workers have them, what these compute, and what the tokens of a prefix are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.ids import PrefixId, WorkerId
from app.kv.blocks import prompt_hashes
from app.messages.lease import Lease
from app.messages.wanted import Prefix, decode_prefix
from app.messages.wire import encode
from app.openai.chat import chat_plan
from app.openai.prefix import NewPrefix, prefix_tokens
from app.openai.schemas import ChatRequest
from app.routing.prefixes import keepers, kept_by, parts, prompt, room
from tests import leases
from tests.models import asking, mock, models_of
from tests.refusals import refused
from tests.values import structs

SIZE = 16
PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<go>{% endif %}"
)
MERGES = (
    "{% if not messages or messages[-1].role == 'system' %}{{ raise_exception('no question') }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' %}{% elif m.role == 'user' %}"
    "[INST] {% if loop.index0 == 1 and messages[0].role == 'system' %}<<SYS>>{{ messages[0].content }}<</SYS>>"
    "{% endif %}"
    "{{ m.content }} [/INST]{% else %} {{ m.content }}{% endif %}{% endfor %}"
)
LAST_THINKS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}"
    "{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant><think>{% endif %}"
)


def lease(name: str, **of_worker: Any) -> Lease:
    return leases.lease(name, prefixes=True, **of_worker)


def prefix(name: str, copies: int | None = None, length: int = 40, **fields: Any) -> Prefix:
    return Prefix(PrefixId(name), "m", [*range(length)], 0.0, 1.0, copies, **fields)


def names(leases: Sequence[Lease]) -> list[str]:
    return [one.worker.id for one in leases]


@given(structs(Prefix))
def test_a_prefix_comes_out_as_it_went_in(one: Prefix) -> None:
    assert decode_prefix(encode(one)) == one


@given(st.lists(st.text("abc", min_size=1), min_size=2, max_size=9, unique=True), st.integers(1, 9), st.text("xyz"))
def test_when_a_worker_leaves_only_what_it_had_moves(workers: list[str], copies: int, name: str) -> None:
    one, fleet = prefix(name, copies), [lease(worker) for worker in workers]
    before = names(keepers(one, fleet))
    after = names(keepers(one, fleet[1:]))
    assert len(before) == min(copies, len(workers))
    if workers[0] in before:
        assert set(before) - {workers[0]} <= set(after)
    else:
        assert after == before


@given(
    st.lists(st.text("abc", min_size=1), max_size=6, unique=True), st.lists(st.none() | st.integers(1, 4), max_size=6)
)
def test_each_worker_decides_for_itself_what_all_decide(workers: list[str], copies: list[int | None]) -> None:
    fleet = [lease(worker) for worker in workers]
    many = [prefix(str(number), one) for number, one in enumerate(copies)]
    decisions = {(one.id, worker) for worker in workers for one in kept_by(WorkerId(worker), many, fleet)}
    assert decisions == {(one.id, worker) for one in many for worker in names(keepers(one, fleet))}


def test_only_workers_that_can_have_it_do() -> None:
    able = lease("able", adapters=["sql@7"])
    fleet = [able, replace(able, draining=True), leases.changed(able, id="older", prefixes=False), lease("without")]
    assert names(keepers(prefix("p", adapter="sql"), fleet)) == ["able"]
    assert names(keepers(prefix("p", 1, adapter="sql"), fleet)) == ["able"]
    assert sorted(names(keepers(prefix("p"), fleet))) == ["able", "without"]


def test_prefixes_leave_half_of_a_cache_to_requests_and_the_oldest_stay() -> None:
    fleet = [lease("w")]
    many = [replace(prefix(str(n), length=200 * SIZE), created=10.0 - n) for n in range(4)]
    prefixes = kept_by(WorkerId("w"), many, fleet)
    assert [one.id for one in prefixes] == ["3", "2"]
    assert sum(len(one.tokens) // SIZE for one in prefixes) <= room(fleet[0].worker) == 500


@given(st.integers(SIZE, 12_000))
def test_parts_make_one_chunk_each_of_whole_blocks(length: int) -> None:
    one = prefix("p", length=length)
    tokens = prompt(one, SIZE)
    assert tokens[:-1] == one.tokens[: length // SIZE * SIZE]
    assert prompt_hashes(tokens, SIZE) == prompt_hashes([*one.tokens, 0], SIZE)
    chunks = [*parts(tokens, SIZE)]
    assert chunks[-1] == tokens
    lengths = [0, *(len(part) - 1 for part in chunks)]
    for before, after, part in zip(lengths, lengths[1:], chunks, strict=False):
        assert part == tokens[: len(part)]
        assert after % SIZE == 0
        assert 0 < after - before <= 2048


@pytest.mark.parametrize("template", [PLAIN, MERGES, LAST_THINKS])
@pytest.mark.parametrize("begin", [["system"], ["system", "user"], ["system", "user", "assistant"]])
def test_messages_are_what_all_chats_that_begin_with_them_have_in_common(
    tmp_path: Path, template: str, begin: list[str]
) -> None:
    """Templates differ: one merges messages, one refuses some, one shows the last one differently."""
    (tmp_path / "template").write_text(template)
    models = models_of(p=mock(chat_template=tmp_path / "template"))
    asks = asking(models)
    messages = [{"role": role, "content": f"These are the {role}'s long words."} for role in begin]
    shared_tokens = prefix_tokens(asks, NewPrefix.model_validate({"model": "m", "messages": messages}))
    text = models["m"].tokenizer.decode(shared_tokens, skip_special_tokens=False)
    assert all(message["content"][:-1] in text for message in messages)

    following = ["assistant", "user"] if begin[-1] == "user" else ["user", "assistant", "user"]
    chats = [messages] if begin[-1] == "user" else []
    for word in ("Yes", "1 no", "…"):
        next_messages = [{"role": role, "content": f"{word} {role}"} for role in following]
        chats += [messages + next_messages[:count] for count in (1, 3) if next_messages[count - 1 : count]]
    for chat in chats:
        body = ChatRequest.model_validate({"model": "m", "messages": chat})
        (prompt_tokens,) = chat_plan(asks, "chatcmpl-", body, "messages").prompts
        assert prompt_tokens[: len(shared_tokens)] == shared_tokens


def test_a_template_that_clients_may_not_send_is_refused() -> None:
    messages = [{"role": "system", "content": "a"}]
    body = NewPrefix.model_validate({"model": "m", "messages": messages, "chat_template": PLAIN})
    with refused("chat_template"):
        prefix_tokens(asking(models_of(p=mock())), body)
