"""ops/redis-acl.conf knows every key: a process with a user of its own must not find out in production."""

import re

import app.keys
from tests.stack import ROOT

_ACL = (ROOT / "ops/redis-acl.conf").read_text()
_DOCUMENTED = re.findall(r"^([a-z][a-z-]+)(?=[:\s<])", app.keys.__doc__ or "", re.MULTILINE)


def test_each_kind_of_key_may_be_used_by_somebody() -> None:
    assert len(_DOCUMENTED) > 50
    patterns = re.findall(r"~xylem:([a-z-]+)", _ACL)
    assert {name for name in _DOCUMENTED if not any(_covers(pattern, name) for pattern in patterns)} == {"queue"}


def _covers(pattern: str, name: str) -> bool:
    """`batch*` has those that begin so."""
    return name == pattern or (f"~xylem:{pattern}* " in _ACL and name.startswith(pattern))
