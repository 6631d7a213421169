"""Aliases: the model that answers under one, and the endpoints that a model has."""

from pathlib import Path

import pytest

from app.anthropic.schemas import MessagesRequest
from app.dispatch.asking import Asking
from app.dispatch.models.aliases import Aliases, AliasTurn, choose, shared
from app.dispatch.runtime import Deployment
from app.errors import RequestError, SettingsError
from app.messages.kinds import Task
from app.openai.schemas import ChatRequest
from app.pools.schema import Alias
from app.schemas.validation import parse
from app.settings import load_settings
from tests.models import mock, models_of, pools_error

CHAT = Alias(primary="big", fallback="small", split={"new": 0.05})
TASKS: dict[str, Task] = {"big": "generate", "small": "generate", "new": "generate", "vectors": "embed"}
MODELS = {name: mock(model=name, task=task) for name, task in TASKS.items()}
KEYS = [f"session-{number}" for number in range(4000)]


def everything(_: str) -> bool:
    return True


def test_a_share_gets_about_its_part_of_all_sessions() -> None:
    new = sum(shared("chat", CHAT, key) == "new" for key in KEYS)
    assert 0.04 * len(KEYS) < new < 0.06 * len(KEYS)


def test_a_session_keeps_its_version_and_a_growing_share_takes_none_back() -> None:
    larger = CHAT.model_copy(update={"split": {"new": 0.3}})
    for key in KEYS:
        assert shared("chat", CHAT, key) == shared("chat", CHAT, key)
        if shared("chat", CHAT, key) == "new":
            assert shared("chat", larger, key) == "new"


def test_two_aliases_do_not_send_the_same_sessions_to_their_new_versions() -> None:
    half = CHAT.model_copy(update={"split": {"new": 0.5}})
    same = sum(shared("one", half, key) == shared("two", half, key) for key in KEYS)
    assert 0.4 * len(KEYS) < same < 0.6 * len(KEYS)


@pytest.mark.parametrize(
    ("gone", "answers"),
    [
        (set(), "new"),
        ({"new"}, "big"),
        ({"new", "big"}, "small"),
        ({"new", "big", "small"}, "new"),  # whose error tells why
    ],
)
def test_a_model_without_room_is_passed_over(gone: set[str], answers: str) -> None:
    alias = Alias(primary="big", fallback="small", split={"new": 1.0})
    assert choose("chat", alias, "x", lambda model: model not in gone) == answers


def test_without_a_fallback_the_primary_model_is_chosen_whatever_happens() -> None:
    assert choose("chat", Alias(primary="big"), "x", lambda _: False) == "big"


def test_a_request_that_was_refused_goes_elsewhere_unless_it_may_be_a_repeated_one() -> None:
    aliases = Aliases({"chat": Alias(primary="big", fallback="small")}, MODELS)
    assert aliases.model("chat", None, AliasTurn(refused="big")) == "small"
    aliases = aliases.with_usable(lambda model: model != "big")
    assert aliases.model("chat", None, AliasTurn()) == "small"
    assert aliases.model("chat", None, AliasTurn(key="body", fixed=True)) == "big"
    assert aliases.model("big", None, AliasTurn()) == "big"  # a model's own name stands for itself
    aliases = aliases.with_usable(lambda _: False)  # as of a fraction of a second ago: the other model is tried anyway
    assert aliases.model("chat", None, AliasTurn(refused="big")) == "small"
    assert aliases.has_other("chat", "big")
    assert not aliases.has_other("big", "big")


def test_the_table_follows_redis_and_survives_what_it_does_not_understand() -> None:
    aliases = Aliases({"chat": CHAT}, MODELS)
    alias = Alias(primary="small")
    aliases.changed({b"chat": alias.model_dump_json().encode(), b"bad": b"{", b"big": alias.model_dump_json().encode()})
    assert aliases.table == {"chat": alias}
    aliases.changed({})
    assert aliases.table == {"chat": CHAT}


def test_an_adapter_may_stand_under_an_alias_and_its_fallback_answers_when_it_is_removed() -> None:
    """The same holds for requests that may be repeated, and for the limits of a batch."""
    models = dict(MODELS) | {"tuned": MODELS["big"]}
    aliases = Aliases({}, models, usable=models.__contains__)
    alias = Alias(primary="big", split={"tuned": 1.0})
    assert aliases.problem("chat", alias) is None
    aliases.changed({b"chat": alias.model_dump_json().encode(), b"only": b'{"primary":"tuned","fallback":"small"}'})
    names = [(name, turn) for name in ("chat", "only") for turn in (AliasTurn(), AliasTurn(key="body", fixed=True))]
    assert [aliases.model(name, None, turn) for name, turn in names] == ["tuned"] * 4
    assert (aliases.primary("only"), aliases.has_other("only", "tuned")) == ("tuned", True)
    del models["tuned"]
    assert [aliases.model(name, None, turn) for name, turn in names] == ["big", "big", "small", "small"]
    assert (aliases.primary("only"), aliases.has_other("only", "small")) == ("small", False)
    assert "'tuned' is no model" in (aliases.problem("chat", alias) or "")
    models["only"] = MODELS["small"]
    aliases.changed({b"only": b'{"primary":"small"}'})
    assert aliases.table == {}  # a model's own name stands for itself


@pytest.mark.parametrize(
    ("alias", "problem"),
    [
        ("big: {primary: small}", "aliases.big: there is a model of that name"),
        ("x: {primary: other}", "aliases.x: primary: 'other' is no model"),
        ("x: {primary: big, fallback: vectors}", "aliases.x: fallback: 'vectors' does embed"),
        ("x: {primary: big, split: {nope: 0.1}}", "aliases.x: split: 'nope' is no model"),
        ("x: {primary: big, split: {small: 0.6, big: 0.6}}", "aliases.x: the shares of split are 1.2"),
        ("x: {primary: big, split: {small: 0}}", "aliases.x.split.small"),
        ("'': {primary: big}", "aliases"),
    ],
)
def test_a_wrong_alias_is_named(alias: str, problem: str, tmp_path: Path) -> None:
    tasks = {"big": "generate", "small": "generate", "vectors": "embed"}
    pools = ", ".join(f"{name}: {{model: {name}, engine: mock, task: {task}}}" for name, task in tasks.items())
    assert problem in pools_error(tmp_path, f"pools: {{{pools}}}\naliases: {{{alias}}}")


def asking(**aliases: Alias) -> Asking:
    models = models_of(a=mock(model="big"), b=mock(model="small", endpoints=["completions"]))
    return Asking(Deployment(load_settings(), {}, models, aliases=Aliases(aliases, models)))


async def test_a_body_names_the_model_that_answers_and_remembers_the_alias() -> None:
    request = asking(chat=Alias(primary="big"))
    body = parse(ChatRequest, b'{"model": "chat", "messages": [{"role": "user", "content": "x"}]}')
    served_body = await request.served(body, "chat")
    assert (served_body.model, served_body.asked, body.model) == ("big", "chat", "chat")
    assert b'"big"' in served_body.understood()


async def test_what_was_derived_from_a_body_names_the_model_too() -> None:
    request = asking(chat=Alias(primary="big"))
    raw = b'{"model": "chat", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}'
    body = parse(MessagesRequest, raw)
    assert body.chat.model == "chat"
    assert (await request.served(body, "messages")).chat.model == "big"


async def test_an_endpoint_that_a_pool_does_not_name_is_refused() -> None:
    request = asking(chat=Alias(primary="small"))
    for name in ("small", "chat"):
        body = parse(ChatRequest, b'{"model": "%b", "messages": [{"role": "user", "content": "x"}]}' % name.encode())
        with pytest.raises(RequestError, match="The model 'small' is served for completions only, not for chat"):
            await request.served(body, "chat")
        assert (await request.served(body, "completions")).model == "small"


def test_pools_of_one_model_have_the_same_endpoints() -> None:
    with pytest.raises(SettingsError, match="endpoints"):
        models_of(a=mock(), b=mock(endpoints=["chat"]))
