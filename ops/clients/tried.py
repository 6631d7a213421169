"""The clients to try, and their versions."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
Place = Literal["clients", "examples", "npm"]
# What each environment has: lists of packages from PyPI, of which some need other versions of the same, and npm's.
LISTS: Mapping[Place, Path] = {
    "clients": ROOT / "requirements" / "clients.txt",
    "examples": ROOT / "requirements" / "examples.txt",
    "npm": HERE / "package.json",
}


@dataclass(frozen=True)
class Client:
    """One script, run by the clients' own Python; `package`: the package whose version is reported."""

    script: str  # with_<script>.py, or a file of examples/
    package: str
    tried: str
    place: Place = "clients"

    @property
    def path(self) -> Path:
        return ROOT / "examples" / self.script if "." in self.script else HERE / f"with_{self.script}.py"

    @property
    def version(self) -> str:
        return pinned(self.place)[self.package]


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
    Client("codex", "@openai/codex", "`codex exec` with a command that it runs; Responses", place="npm"),
    Client(
        "claude_code", "@anthropic-ai/claude-code", "`claude -p` with a command that it runs; Messages", place="npm"
    ),
)

# Files of examples/ whose packages `make test` lacks; it runs the others, in tests/acceptance/test_examples.py.
EXAMPLES = (
    Client("langchain_chat.py", "langchain-openai", "`examples/langchain_chat.py`"),
    Client("pydantic_ai_agent.py", "pydantic-ai-slim", "`examples/pydantic_ai_agent.py`"),
    Client("llamaindex_chat.py", "llama-index-llms-openai-like", "`examples/llamaindex_chat.py`", place="examples"),
    Client("batch_from_pandas.py", "pandas", "`examples/batch_from_pandas.py`", place="examples"),
    Client("notebook.ipynb", "nbclient", "`examples/notebook.ipynb`", place="examples"),
    Client("ai_sdk.mjs", "ai", "`examples/ai_sdk.mjs`", place="npm"),
)


def pinned(place: Place) -> Mapping[str, str]:
    """The version of each package in the place's list."""
    text = LISTS[place].read_text()
    if place == "npm":
        versions: dict[str, str] = json.loads(text)["dependencies"]
        return versions
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE))
