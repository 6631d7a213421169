"""The table of Redis keys, `app/keys/keys.toml`: as a page, and as what the users of ops/acl/redis-acl.conf may use."""

import re
import tomllib
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).parents[2]
ACL = ROOT / "ops" / "acl" / "redis-acl.conf"
_USER = re.compile(r"^user xylem-(\w+) .*$", re.MULTILINE)
_SELECTORS = re.compile(r" \(.*")
_PATTERN = re.compile(r" (?:%R)?~xylem:(\S+)")


class Key(NamedTuple):
    name: str
    type: str
    users: dict[str, Literal["r", "rw", "few"]]  # by the names of Redis' users
    text: str

    @property
    def pattern(self) -> str:
        """The names of all such keys, as Redis' users have them."""
        return re.sub("<.*", "*", self.name)


def keys() -> list[Key]:
    return [Key(**row) for row in tomllib.loads((ROOT / "app" / "keys" / "keys.toml").read_text())["key"]]


def rows() -> list[tuple[str, str, str, str]]:
    return [
        (f"`{one.name}`", one.type, ", ".join(f"{user} {right}" for user, right in one.users.items()), _cell(one.text))
        for one in keys()
    ]


def _cell(text: str) -> str:
    """The text in a table of Markdown: outside of code a `<` would begin a tag, and a `|` another cell."""
    pieces = text.replace("|", "\\|").split("`")
    return "`".join(piece if number % 2 else piece.replace("<", "&lt;") for number, piece in enumerate(pieces))


def acl() -> str:
    """The file with its users' keys as the table has them. Their commands, and names that are not ours, stay."""
    table = keys()
    ours = {one.pattern for one in table}

    def user(match: re.Match[str]) -> str:
        line = match[0]
        selectors = "".join(_SELECTORS.findall(line))
        line = _SELECTORS.sub("", line)
        others = [pattern[0] for pattern in _PATTERN.finditer(line) if pattern[1] not in ours]
        rights = {one.pattern: one.users[match[1]] for one in table if match[1] in one.users}
        signs = {"r": "%R~", "rw": "~"}
        patterns = [f" {signs[right]}xylem:{pattern}" for pattern, right in rights.items() if right in signs]
        return _PATTERN.sub("", line) + "".join(patterns + others) + selectors

    return _USER.sub(user, ACL.read_text())
