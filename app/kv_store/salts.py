"""The salt of a prompt: its tenant's, if that shares no KV with others, and the client's own. Pure.

A store has the blocks of a tenant's salt in a folder of their own, so that they can be removed without their prompts.
"""

import hashlib
import re
import secrets
from collections.abc import Collection

_SALT = re.compile("tenant-[0-9a-f]{32}", re.ASCII)
_FOLDER = "salt-"


def new_salt() -> str:
    """A new salt for a tenant. It is random: nobody else can ask for its blocks."""
    return f"tenant-{secrets.token_hex(16)}"


def salted(tenant: str, own: str | None) -> str | None:
    """The salt of a prompt's blocks. `tenant`: its tenant's salt, or ""; `own`: the client's `cache_salt`."""
    if tenant:
        return f"{tenant}:{own}" if own else tenant
    if own and _SALT.match(own):
        return f"client:{own}"  # no client gets a tenant's blocks by naming its salt
    return own


def label_of(salt: str | None) -> str:
    """The label that a store has for the blocks of the tenant's salt in it; "" without one.

    It doesn't tell the salt.
    """
    match = _SALT.match(salt or "")
    return hashlib.sha256(match[0].encode()).hexdigest()[:16] if match else ""


def folder(label: str) -> str:
    """The folder in which a store has the blocks of that label, with a slash at its end; "" without one."""
    return f"{_FOLDER}{label}/" if label else ""


def is_of(path: str, labels: Collection[str]) -> bool:
    """Whether a store's file belongs to one of these labels."""
    return any(part.startswith(_FOLDER) and part.removeprefix(_FOLDER) in labels for part in path.split("/")[:-1])
