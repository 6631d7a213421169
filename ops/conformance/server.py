"""The server that the suites are run against: a mock engine that plays what a model would write to each of them."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from ops.bench.load import System
from ops.bench.systems import fleet

_TEMPLATE = Path(__file__).parents[1] / "clients" / "template.jinja"  # of it, the dialect is concluded


def _call(name: str, /, **arguments: Any) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


_JOKE = {"setup": "Why do cats sit on keyboards?", "punchline": "They mind the mouse."}
# The first key that a prompt contains is answered, in the order of the alphabet: results come before questions.
PLAYS = {
    '"name": "Joke"': _call("Joke", **_JOKE),
    "123-result": "It is 123.",
    "Hello Corporation": _call("unicode_customer", customer_name="こんにちは株式会社", description="Hello Corporation"),
    "Hello Group": _call("unicode_customer", customer_name="你好啊集团", description="Hello Group"),
    "Hello!": _call("magic_function", input=3),
    "a Pirate greeting": _call("greeting_generator", answer_style="Pirate"),
    "a joke about cats": json.dumps(_JOKE),
    "magic_function(3)": _call("magic_function", input=3),
    "magic_function_no_args()": _call("magic_function_no_args"),
    "weather in San Francisco": _call("get_weather", location="San Francisco"),
}


@contextmanager
def served(run_dir: Path, names: Iterable[str]) -> Iterator[System]:
    """One worker that writes, one that embeds, one for batches. `names`: of models that tests ask for.

    Raises: Unavailable.
    """
    args = {"step_ms": 1.0, "answer_tokens": 16, "script": PLAYS}
    pools = {
        "decode-pool-a": {
            "model": "mock", "engine": "mock", "args": args, "max_model_len": 2**12, "chat_template": str(_TEMPLATE),
        },
        "embed-pool": {"model": "embedder", "engine": "mock", "task": "embed"},
    }  # fmt: skip
    aliases = {name: {"primary": "embedder" if "embed" in name else "mock"} for name in names}
    with fleet(run_dir, pools, dict.fromkeys(pools, 1), batch=1) as system:
        httpx.patch(f"{system.url}/admin/aliases", json={"aliases": aliases}, trust_env=False).raise_for_status()
        yield system
