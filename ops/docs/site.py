"""The pages of the site besides docs/: pages from elsewhere in the repository. A hook of `mkdocs.yml`.

Every page keeps its path in the repository, so that one link works in the site and on a code host.
"""

import posixpath
import re
from importlib.metadata import files as packaged
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
_SHOWN = (
    "*.md",
    "llms.txt",
    "examples/*.md",
    "app/**/README.md",
    "docs/**/*.md",
    "ops/bench/*.md",
    "ops/decisions/*.md",
    "ops/pictures/*",
)
_MERMAID = re.compile(r'<script src="[^"]*mermaid\.min\.js"></script>')
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:\s]+)\)")


def on_config(config: MkDocsConfig) -> None:
    """The decisions, in order; and mermaid.js, which the theme would otherwise load from a CDN."""
    assert config.nav is not None
    (decisions,) = (entry for entry in config.nav if "Decisions" in entry)
    decisions["Decisions"] = [decisions["Decisions"], *_paths("ops/decisions/*.md")]
    config.extra_javascript.append("mermaid.min.js")


def on_files(files: Files, config: MkDocsConfig) -> None:
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    for pattern in _SHOWN:
        for path in _paths(pattern):
            files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls))
    # The package is installed only for this file, mermaid's own; nothing of it is imported.
    (mermaid,) = (path for path in packaged("mermaidx") or () if path.name == "mermaid.js")
    files.append(File.generated(config, "mermaid.min.js", abs_src_path=str(mermaid.locate())))


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    folder = posixpath.dirname(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        """A link to a source or a folder, which the site doesn't have: its name only."""
        path = posixpath.normpath(posixpath.join(folder, found[2]))
        return found[1] if files.get_file_from_path(path) is None and (ROOT / path).exists() else found[0]

    return _LINK.sub(link, markdown)


def on_post_page(output: str, **_: object) -> str:
    """Only pages with a diagram load mermaid.js, which has 3.5 MB."""
    return output if 'class="mermaid"' in output else _MERMAID.sub("", output)


def _paths(pattern: str) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob(pattern))]
