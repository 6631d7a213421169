"""Findings about a pools file, each with the line of the key that it is about."""

import re
from pathlib import Path

import yaml
from pydantic import ValidationError

from app.errors import SettingsError
from app.pools.pools_file import load_pools
from app.pools.schema import PoolsFile
from app.pools.without_effect import without_effect
from app.settings import explanations


class Findings:
    """Sentences about what is wrong with the file, and what in it changes nothing."""

    def __init__(self, path: Path) -> None:
        self.path, self.problems, self.warnings = path, list[str](), list[str]()
        self.pools_file: PoolsFile | None = None  # if nothing is wrong
        self._root = _root_of(path)
        try:
            self.pools_file = load_pools(path)
        except SettingsError as exc:
            cause = exc.__cause__
            of_keys = explanations(cause, ".".join) if isinstance(cause, ValidationError) else None
            self.problems = [self._at(text) for text in of_keys or [exc.message.removeprefix(f"{path}: ")]]
        else:
            idle = without_effect(self.pools_file)
            self.warnings = [self._at(f"{key} {why}") for key, why in idle.items() if self._stands(key)]

    def _at(self, text: str) -> str:
        line = self._line(text) if self._root else None
        return f"{self.path}{f':{line}' if line else ''}: {text}"

    def _line(self, text: str) -> int | None:
        """The line of the key with which the text begins, or of the last one above it that is there."""
        return self._walk(text)[1]

    def _stands(self, key: str) -> bool:
        """Whether the key itself is there: else it comes from what several pools share, some of which need it."""
        return not self._walk(key)[0]

    def _walk(self, text: str) -> tuple[str, int | None]:
        """The rest of the text that is no key, and the line of the last one that is."""
        node, rest, line = self._root, text, None
        while node is not None:
            node, rest, line = _below(node, rest) or (None, rest, line)
        return rest, line


def _below(node: yaml.Node, text: str) -> tuple[yaml.Node, str, int] | None:
    """The value of the key, or the entry of the list, with which the text begins; the rest of the text; the line."""
    if isinstance(node, yaml.SequenceNode):
        match = re.match(r"(\d+)(?=[.=: ]|$)", text)
        if match is None or int(match[1]) >= len(node.value):
            return None
        entry = node.value[int(match[1])]
        return entry, text[match.end() :].removeprefix("."), entry.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        return None
    pairs = [(key, value) for key, value in node.value if re.match(rf"{re.escape(str(key.value))}(?=[.=: ]|$)", text)]
    if not pairs:
        return None
    key, value = max(pairs, key=lambda pair: len(pair[0].value))  # names may have dots
    return value, text[len(key.value) :].removeprefix("."), key.start_mark.line + 1


def _root_of(path: Path) -> yaml.Node | None:
    """None: it can't be read, which `load_pools` tells, with the line."""
    try:
        return yaml.compose(path.read_text(), Loader=yaml.SafeLoader)
    except (OSError, yaml.YAMLError, UnicodeDecodeError):
        return None
