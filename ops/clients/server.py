"""The server that clients are tried against: a mock engine that plays what a model would write to each of them."""

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ops.bench.load import System
from ops.bench.systems import fleet, xylem

_TEMPLATE = Path(__file__).with_name("template.jinja")  # of it, the dialect is concluded


def _call(name: str, /, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


# The alphabetically first key found in a prompt is answered, so a tool's result comes before the question.
PLAYS = {
    "21 degrees": "It is 21 degrees in Paris.",
    "31 degrees": _call("final_result", city="Rome", degrees=31),
    "42 is in the note": "The note says 42.",
    "Call it for Oslo": _call("City", name="Oslo", people=700_000),
    "Call it in part for Oslo": _call("PartialCity", name="Oslo", people=700_000),
    "How large is Paris": json.dumps({"name": "Paris", "people": 2_100_000}),
    "Look at the note": "<think>Look.</think>" + _call("exec_command", cmd="echo $((40+2)) is in the note"),
    "Report on Rome": "<think>A tool knows.</think>" + _call("get_weather", city="Rome"),
    "Run the note": _call("Bash", command="echo $((40+2)) is in the note", description="Reads it."),
    "Tell me about Paris": json.dumps({"name": "Paris", "people": 2_100_000}),  # of examples/
    "weather in Paris": "<think>A tool knows.</think>Let me see." + _call("get_weather", city="Paris"),
    # Questions of llm-comply.
    "15 * 37": "<think>15 * 37 = 555</think>It is 555.",
    "weather in San Francisco": _call("get_weather", location="San Francisco"),
}


def served(
    run_dir: Path, model: str = "mock", grpc_port: int | None = None, *, another: bool = False
) -> AbstractContextManager[System]:
    """One worker, and with `grpc_port` one more, that embeds, and a batch worker.

    Coding agents send prompts of 30,000 tokens.
    `another`: with a second model, so that requests have to name theirs.

    Raises: Unavailable.
    """
    args = {"step_ms": 1.0, "answer_tokens": 16, "script": PLAYS, "total_blocks": 2**15}
    pool = {"model": model, "engine": "mock", "args": args, "max_model_len": 2**17, "chat_template": str(_TEMPLATE)}
    if another:
        return fleet(
            run_dir, {"decode-pool-a": pool, "decode-pool-b": {**pool, "model": "another"}}, {"decode-pool-a": 1}
        )
    if grpc_port is None:
        return xylem(run_dir, pool, 1)
    pools = {"decode-pool-a": pool, "embed-pool": {"model": "embedder", "engine": "mock", "task": "embed"}}
    return fleet(run_dir, pools, dict.fromkeys(pools, 1), batch=1, more_env={"XYLEM_GRPC_PORT": str(grpc_port)})
