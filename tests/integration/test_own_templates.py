"""Chat templates of requests: programs that may run for ever, or take all memory, and are then refused."""

import asyncio
import json
import resource
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from app.bounded.turn_threads import TurnThreads
from app.bounded.turns import CLIENT
from app.dispatch.asking import Asking
from app.dispatch.models.models import Model
from app.dispatch.runtime import Deployment
from app.errors import RequestError
from app.ids import PoolId
from app.openai import chat as chat_endpoint
from app.pools.schema import Pool
from app.settings import load_settings
from app.telemetry import Meters
from app.tokenizing.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(Pool(model="m", engine="mock").model_dir)
MODEL = Model("m", (PoolId("p"),), (), None, TOKENIZER, 100, Meters("own-templates"))
TRUSTING = Deployment(load_settings(request_chat_templates=True), {}, {"m": MODEL})
ONE_THREAD = replace(TRUSTING, waiting=TurnThreads(1, "one"))
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


async def prompt(template: str, served: Deployment = TRUSTING) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "chat_template": template}
    _, plan = await chat_endpoint.understand(Asking(served), json.dumps(body).encode())
    return TOKENIZER.decode([*plan.prompts[0]])


@pytest.mark.parametrize(("template", "param", "said"), [
    (LOOPS, "chat_template", "takes more than 2 s"),
    ("{{ 'a' * 2**33 }}", "messages", "memory"),
    ("{% set a = ['a' * 2**20] %}{{ (a * 2**20)|join }}", "messages", "memory"),
    ("{{ 'a' * 2**25 }}", "messages", "it makes more than 16777216 characters"),
    ("{{ '\\ud800' }}", "messages", "surrogates not allowed"),
    ("{{ messages.x.y }}", "messages", "no attribute"),
    ("{% if %}", "chat_template", "Expected an expression"),
    ("{{ raise_exception('No.') }}", "messages", "No."),
])  # fmt: skip
async def test_what_a_template_may_cost_is_bounded(template: str, param: str, said: str) -> None:
    """The next template is rendered."""
    with pytest.raises(RequestError, match=said) as refusal:
        await prompt(template)
    assert refusal.value.param == param
    assert await prompt("{{ messages[0].content }}!") == "hello!"


async def test_all_that_is_tried_with_a_template_is_within_the_same_seconds() -> None:
    """Calls, reasoning and tools are shown in one form after the other: of a template that takes none of them, too."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}
    call_message = {"role": "assistant", "reasoning": "so", "tool_calls": [call]}
    messages = [{"role": "user", "content": "?"}, call_message, {"role": "tool", "tool_call_id": "1", "content": ""}]
    body = {"model": "m", "messages": messages, "chat_template": "{# is none #}" + LOOPS}
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with pytest.raises(RequestError, match="takes more than 2 s"):
        await chat_endpoint.understand(Asking(TRUSTING), json.dumps(body).encode())
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 8


async def test_clients_wait_in_turn_however_many_templates_one_has() -> None:
    """One client's templates would otherwise have all threads for them, and all others wait."""
    order: list[str] = []

    async def asked(client: str) -> None:
        CLIENT.set(client)
        await prompt("{{ messages[0].content }}", ONE_THREAD)
        order.append(client)

    async with asyncio.TaskGroup() as tasks:
        for client in [*["busy"] * 6, "small"]:
            tasks.create_task(asked(client))
    assert order.index("small") <= 2


async def test_the_loop_goes_on_meanwhile() -> None:
    """Other work is not held up: templates have threads of their own."""
    times = [time.monotonic()]
    loops = asyncio.create_task(prompt(LOOPS))
    while not loops.done():
        await asyncio.sleep(0.01)
        times.append(time.monotonic())
    with pytest.raises(RequestError):
        await loops
    assert max(b - a for a, b in pairwise(times)) < 1.5, "it takes two seconds of CPU time"
