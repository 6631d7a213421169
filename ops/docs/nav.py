"""The documentation's pages, as `mkdocs.yml` orders them; and `llms.txt`, which lists them for language models."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

_ROOT = Path(__file__).parents[2]
LLMS = _ROOT / "llms.txt"
_HEAD = """# Xylem

> Distributed LLM inference: an OpenAI-compatible server of FastAPI, Celery and Redis, with vLLM, SGLang and others.

Agents that install, tune or extend it: [AGENTS.md](AGENTS.md) says how. The paths below are of the repository. A
running server has its OpenAPI document at `/openapi.json`. This list is made from mkdocs.yml by `make reference`.
"""


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without the Python objects in it."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def navigation() -> list[dict[str, Any]]:
    nav: list[dict[str, Any]] = yaml.load((_ROOT / "mkdocs.yml").read_text(), Loader=_Loader)["nav"]
    return nav


def pages(entries: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Titles and paths of all pages in these entries, at whatever depth."""
    for entry in entries:
        for title, target in entry.items():
            if isinstance(target, str):
                yield title, target
            else:
                yield from pages(target)


def llms_text() -> str:
    """The list in the form of llmstxt.org."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for entry in navigation():
        ((title, target),) = entry.items()
        if isinstance(target, str):
            sections.setdefault("Start", []).append((title, target))
            continue
        for inner in target:
            ((name, below),) = inner.items()
            section = title if isinstance(below, str) else f"{title}: {name}"
            sections.setdefault(section, []).extend(pages([inner]))
    blocks = [
        f"## {section}\n\n" + "\n".join(f"- [{title}]({path})" for title, path in entries) + "\n"
        for section, entries in sections.items()
    ]
    return "\n".join([_HEAD, *blocks])
