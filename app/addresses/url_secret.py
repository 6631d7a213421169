"""Passwords in the URLs of settings: one that is written as it is may end elsewhere, and be shown or connected to."""

import re

ENCODE = "in a user's name or password, '/', '?', '#' and '@' have to be percent-encoded"


def check_encoded(url: str) -> None:
    """Raises: ValueError, without any part of the URL, if what belongs before an '@' seems to stand behind it."""
    scheme, _, rest = url.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    behind = rest.partition("?")[2] if scheme == "unix" else rest[len(authority) :]  # a socket's path may have one
    if "#" in rest or "@" in behind:
        raise ValueError(ENCODE)
