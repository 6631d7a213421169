"""The suites, and which of their files ask for what this API has.

What needs an engine for pictures, sound or video is in `make media`; what OpenAI and Anthropic have and we don't
(assistants, fine-tuning, vector stores …) is not asked for.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class SourceSuite:
    """A client's own tests, from its source package."""

    package: str
    files: tuple[str, ...]  # below `tests/api_resources`
    base: str = ""  # of the API's address, what follows the host
    more: str = "$^"  # a regular expression for models in the client's `_data` that tests ask for


SOURCE_SUITES = (
    SourceSuite(
        "openai",
        (
            "chat", "responses", "conversations", "test_batches.py", "test_completions.py", "test_conversations.py",
            "test_embeddings.py", "test_files.py", "test_models.py", "test_responses.py",
        ),
        "/v1",
    ),
    SourceSuite(
        "anthropic", ("messages", "test_messages.py", "test_models.py"),
        more=r'"(claude-[^"]+)":',
    ),
)  # fmt: skip
OWN_SUITES = ("langchain", "types")  # files `with_<name>.py` beside this one
NAMES = (*(suite.package for suite in SOURCE_SUITES), *OWN_SUITES, "document")
