"""Keys of a pools file that change nothing where they stand, and what `xylem check` says of each."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

from ops.bench.parts import Say
from ops.bench.size import Size
from tests.stack import BIN

_TEMPLATE = "{{ messages[0]['content'] }}"
_TEXT: dict[str, Any] = {"endpoints": ["completions"]}
_EMBEDS = {"task": "embed"}
# A key with its value, and the other keys of its pool, which make it useless.
_IDLE: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("chat_template", _TEMPLATE, _TEXT),
    ("chat_template", _TEMPLATE, _EMBEDS),
    ("reasoning", {"begin": "<think>", "end": "</think>"}, _TEXT),
    ("dialect", "hermes", _TEXT),
    ("dialect", "hermes", _EMBEDS),
    ("reasoning_field", "reasoning", _TEXT),
    ("generation_config", "none", _EMBEDS),
    ("prompt_embeds", True, {"endpoints": ["chat"]}),
    ("disagg", {"remote_tokens": 64}, {}),
    ("painting", {"steps": 4}, {}),
    ("routing", {"policy": "random", "prefill_weight": 2.0}, {}),
    ("routing", {"policy": "random", "predicted_ttl_s": 5.0}, {}),
    ("max_model_len", 512, {"task": "image"}),
    ("block_size", 16, {"task": "image"}),
)


def keys(directory: Path, size: Size, say: Say) -> dict[str, Any]:
    """Checks a file for each of them: a warning has to name the key and its line."""
    count = 0
    for number, (key, value, beside) in enumerate(_IDLE[: size.of(None, None, 2)]):
        path = directory / f"{number}.yaml"
        pool = {"model": "m", "engine": "mock"} | beside | {key: value}
        path.write_text(yaml.safe_dump({"pools": {"a": pool}}, sort_keys=False))
        output = subprocess.run([BIN / "xylem", "check", path], check=False, capture_output=True, text=True).stderr
        if f"pools.a.{key}" not in output or "has no effect" not in output:
            count += 1
            say(f"{path.name}, {key}: {output or 'nothing'}")
    return {"keys_without_effect_unreported": count}
