"""Reservations at places, written as tests need them."""

from pathlib import Path
from typing import Any

from app.store import scripts

_LOAD = (Path(scripts.__file__).parent / "lua/requests/load.lua").read_text()
_SET = _LOAD + "local _, to = sums_of(KEYS[1], ARGV[1]) write_sums(KEYS[1], to, {unpack(ARGV, 2)})"


async def set_load(redis: Any, key: str, place: str, *sums: float) -> None:
    """`key`: loads:<pool>. `sums`: in the order of an entry, as far as they are not 0."""
    await redis.eval(_SET, 1, key, place, *sums, *[0] * (8 - len(sums)))
