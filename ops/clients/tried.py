"""The clients to try, and their versions."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = HERE.parents[1] / "requirements" / "clients.txt"
PACKAGES = HERE / "package.json"


@dataclass(frozen=True)
class Client:
    """One script, run by the clients' own Python; `package`: the package whose version is reported."""

    script: str
    package: str
    tried: str
    npm: bool = False


CLIENTS = (
    Client("openai", "openai", "`.parse`, the stream helper, tools and their results; chat and Responses"),
    Client("anthropic", "anthropic", "the stream helper, tools and their results, the tool runner, `.parse`"),
    Client(
        "langchain", "langchain", "`bind_tools`, `create_agent`, `with_structured_output`; chat, Responses and Messages"
    ),
    Client(
        "pydantic_ai",
        "pydantic-ai-slim",
        "agents with tools and output types, `run_stream`; chat and Responses",
    ),
    Client("instructor", "instructor", "response models in six modes, partial ones; chat, Responses and Messages"),
    Client(
        "openai_agents",
        "openai-agents",
        "agents with `function_tool` and `output_type`, whole and streamed; chat and Responses",
    ),
    Client("tritonclient", "tritonclient", "infers, streams and embeds, over HTTP and gRPC; metadata; an error"),
    Client("codex", "@openai/codex", "`codex exec` with a command that it runs; Responses", npm=True),
    Client("claude_code", "@anthropic-ai/claude-code", "`claude -p` with a command that it runs; Messages", npm=True),
)


def pinned(requirements: str, packages: str) -> Mapping[str, str]:
    """The version of each package in the two files."""
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", requirements, re.MULTILINE)) | json.loads(packages)["dependencies"]
