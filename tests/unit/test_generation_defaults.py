"""A model's generation_config.json: read once, used where a request says nothing."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.dispatch.asking import Asking
from app.dispatch.models.generation_defaults import generation_defaults
from app.errors import SettingsError
from app.ids import PoolId
from app.messages.job import Sampling
from app.openai import chat, completions
from app.openai.responses import generation as responses
from app.openai.responses.schemas import ResponseRequest
from app.schemas.validation import parse
from tests.models import asking, mock, model, models_of

POOL = mock()
FILE = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05, "max_new_tokens": 64}
SAID = {"eos_token_id": [1, 2], "do_sample": True, "presence_penalty": None}


def known(**defaults: Any) -> Asking:
    return asking({"m": model(context_len=1000, defaults=defaults)}, {PoolId("p"): POOL})


async def sampling(endpoint: Any, body: dict[str, Any], **defaults: Any) -> Sampling:
    _, plan = await endpoint.understand(known(**defaults), orjson.dumps({"model": "m"} | body))
    sampling: Sampling = plan.sampling[0]
    return sampling


def test_the_file_is_read_as_far_as_it_is_about_sampling(tmp_path: Path) -> None:
    assert generation_defaults(tmp_path) == {}
    (tmp_path / "generation_config.json").write_text(json.dumps(FILE | SAID))
    assert generation_defaults(tmp_path) == FILE


@pytest.mark.parametrize(("text", "said"), [
    ("{", "generation_config.json"), ("[]", "generation_config.json"), ('{"top_p": 7}', "top_p=7"),
    ('{"temperature": "hot"}', "temperature='hot'"),
])  # fmt: skip
def test_a_file_that_is_none_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(SettingsError, match=said):
        generation_defaults(tmp_path)


def test_a_pool_can_do_without_the_models_defaults() -> None:
    assert models_of(a=mock(generation_config="none"))["m"].defaults == {}


def test_pools_of_a_model_agree_about_it(tmp_path: Path) -> None:
    for path in POOL.model_dir.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "generation_config.json").write_text(json.dumps(FILE))
    auto, none = mock(path=tmp_path), mock(path=tmp_path, generation_config="none")
    assert models_of(a=auto)["m"].defaults == FILE
    with pytest.raises(SettingsError, match=r"pools\.b: .*generation_config"):
        models_of(a=auto, b=none)


CHAT = {"messages": [{"role": "user", "content": "?"}]}


@pytest.mark.parametrize(
    ("endpoint", "body"), [(chat, CHAT), (completions, {"prompt": "?"}), (responses, {"input": "?"})]
)
async def test_generation_defaults_are_used_by_every_endpoint(endpoint: Any, body: dict[str, Any]) -> None:
    parameters = await sampling(endpoint, body, **FILE)
    assert [getattr(parameters, name) for name in FILE if name != "max_new_tokens"] == [0.6, 0.95, 20, 0.1, 1.05]
    assert parameters.max_tokens == (16 if endpoint is completions else 64)  # OpenAI's own default stays


@pytest.mark.parametrize(("name", "value"), [
    ("temperature", 0), ("top_p", 1.0), ("top_k", 0), ("min_p", 0), ("repetition_penalty", 1.0), ("max_tokens", 200),
])  # fmt: skip
async def test_what_a_request_says_wins(name: str, value: float) -> None:
    """A request's value wins even if it is the usual default."""
    assert getattr(await sampling(chat, CHAT | {name: value}, **FILE), name) == value


async def test_a_default_length_ends_where_the_context_does() -> None:
    prompt = {"messages": [{"role": "user", "content": "a b " * 400}]}
    assert 1 <= (await sampling(chat, prompt, max_new_tokens=900)).max_tokens < 900


async def test_what_is_kept_of_a_request_has_the_values_that_are_used() -> None:
    """The request is answered and shown in the same way later, and is parsed again as it was."""
    body, _ = await responses.understand(known(**FILE), b'{"model": "m", "input": "?"}')
    again = parse(ResponseRequest, body.understood())
    assert again == body
    assert (again.temperature, again.top_p) == (0.6, 0.95)
