"""llm-comply's findings about our three APIs, with models that answer by a script."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ops.bench.parts import Say
from ops.bench.processes import Unavailable
from ops.bench.size import Size
from ops.clients.server import served

_FORMATS = ("open-responses", "openai-chat", "anthropic")
# By this name, llm-comply takes it for a reasoning model in all three APIs.
_MODEL = "claude-sonnet-4-gpt-5-mock"
IMAGES = ("image-input", "chat-image-input", "anth-image-input")  # no model here takes images
_LIMIT_S = 300.0


def measured(out_dir: Path, _size: Size, say: Say) -> dict[str, Any]:
    """Raises: Unavailable."""
    statuses: dict[str, str] = {}
    with served(out_dir / "server", _MODEL, another=True) as system:
        for name in _FORMATS:
            say(f"llm-comply: {name}")
            report = _report(name, f"{system.url}/v1")
            (out_dir / f"{name}.json").write_text(report)
            statuses |= {check["id"]: check["status"] for check in json.loads(report)["results"]}
    return summed(statuses)


def summed(checks: Mapping[str, str]) -> dict[str, Any]:
    """`checks`: passed, failed or skipped, by id."""
    failed_checks = [check for check, status in checks.items() if status == "failed" and check not in IMAGES]
    return {"llm_comply_failed": len(failed_checks), "llm_comply": dict(checks)}


def _report(name: str, url: str) -> str:
    command = [str(Path(sys.executable).parent / "llm-comply"), "--json", "--format", name, "--base-url", url]
    try:
        run = subprocess.run(
            [*command, "--api-key", "none", "--model", _MODEL],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise Unavailable(f"llm-comply: {exc}") from exc
    if not run.stdout:
        raise Unavailable(f"llm-comply: {run.stderr.strip()[-300:]}")
    return run.stdout
