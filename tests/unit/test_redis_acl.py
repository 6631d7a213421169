"""The table of Redis keys has each, and ops/acl/redis-acl.conf its users' rights: nobody finds out in production."""

import inspect
import re
from collections.abc import Iterator

from app.keys import Keys
from ops.docs.redis_keys import ACL, acl, keys


def named(name: str) -> str:
    """A key's name, whatever its parts that differ are called."""
    return re.sub("<[^>]*>", "<>", name)


def made() -> Iterator[str]:
    """The names that all methods make."""
    names = Keys("x")
    for name, method in inspect.getmembers(names, inspect.ismethod):
        if not name.startswith("_") and name != "queue":
            parameters = inspect.signature(method).parameters
            keys_of_one = method(**{name: "tokens" if name == "unit" else "<>" for name in parameters})
            yield from (keys_of_one,) if isinstance(keys_of_one, str) else keys_of_one


def test_each_key_is_a_row_of_the_table_and_each_row_a_key() -> None:
    beginnings_and_all_keys = {"media:", "file-bytes:*"}
    assert {name.removeprefix("x:") for name in made()} - beginnings_and_all_keys == {named(one.name) for one in keys()}


def test_each_user_has_the_rights_of_the_table_and_no_more() -> None:
    """`make reference` writes them anew."""
    assert ACL.read_text() == acl()


def test_somebody_writes_each_key_and_a_user_with_few_commands_has_them() -> None:
    lines = {line.split()[1].removeprefix("xylem-"): line for line in ACL.read_text().splitlines() if "user xy" in line}
    for one in keys():
        assert {"rw", "few"} & set(one.users.values()), one.name
        for user in (user for user, right in one.users.items() if right == "few"):
            assert f"~xylem:{one.pattern}" in lines[user].partition("(")[2].replace(")", " "), (one.name, user)
