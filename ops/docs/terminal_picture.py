"""Records README's picture of a terminal: each command is run against a simulated engine, and its answer is its own.

Run as `python -m ops.docs.terminal_picture`.
"""

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from app.cli.probes import http_ok
from tests.stack import free_port, stop, wait_until

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "ops" / "pictures" / "terminal.svg"
_WIDTH = 100
_SERVE = "xylem serve my-model --engine mock"
_COMMANDS = (
    "curl -s http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' "
    """-d '{"model": "my-model", "max_tokens": 8, "messages": [{"role": "user", "content": "Hello!"}]}'""",
    "xylem convert 'vllm serve Qwen/Qwen3-0.6B -tp 2 --max-num-seqs 32 --tool-call-parser hermes --api-key sesame'",
)
_FONTS = re.compile(r"@font-face \{.*?\}", re.DOTALL)  # fetched from elsewhere; the reader's own will do


def main() -> None:
    port, flower_port = free_port(), free_port()
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": str(_WIDTH)}
    console = Console(record=True, width=_WIDTH, file=io.StringIO())
    _type(console, _SERVE)
    ports = ["--port", str(port), "--flower-port", str(flower_port)]
    with subprocess.Popen(
        [*shlex.split(_SERVE), *ports], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as serving:
        try:
            wait_until(lambda: http_ok(f"http://127.0.0.1:{port}/ready"), "the API is ready", 60)
            answers = [
                subprocess.run(
                    command.replace(":8000/", f":{port}/"), shell=True, check=True, env=environment,
                    capture_output=True, text=True,
                ).stdout
                for command in _COMMANDS
            ]  # fmt: skip
        finally:
            stop(serving)
        welcome = serving.stdout.read() if serving.stdout else ""
    console.print(Text(_as_for_a_reader(welcome, port, flower_port)))
    for command, answer in zip(_COMMANDS, answers, strict=True):
        _type(console, command)
        console.print(Text(answer.rstrip()))
    svg = console.export_svg(title="xylem", theme=MONOKAI)
    PICTURE.write_text(_FONTS.sub("", svg))


def _type(console: Console, command: str) -> None:
    console.print(Text("$ ", style="bold green") + Text(command, style="bold"))


def _as_for_a_reader(text: str, port: int, flower_port: int) -> str:
    """The start of what `xylem serve` said, with the usual ports and folder, and no key."""
    text = text.partition("\nTry:")[0].replace(str(port), "8000").replace(str(flower_port), "5555")
    text = re.sub(r"(admin-key=)\S+", r"\1…", text.replace(str(ROOT / ".xylem"), "~/.local/share/xylem"))
    return "\n".join(line.rstrip() for line in text.splitlines())


if __name__ == "__main__":
    main()
