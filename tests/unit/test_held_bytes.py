"""Bytes of clients' data that wait for a turn."""

from contextlib import ExitStack

import pytest

from app.bounded.held_bytes import HeldBytes
from app.bounded.turns import CLIENT
from app.errors import Saturated


def test_a_client_has_half_and_no_more_than_is_left_after_that() -> None:
    """Nobody who holds nothing is refused: what is larger than all is for its own bound."""
    held_bytes, refusals = HeldBytes(100), []
    with ExitStack() as all_of_it:
        for client, size in (("a", 30), ("a", 20), ("a", 1), ("b", 20), ("b", 10), ("c", 200), ("c", 1)):
            CLIENT.set(client)
            try:
                all_of_it.enter_context(held_bytes.room(size))
            except Saturated:
                refusals.append((client, size))
    assert refusals == [("a", 1), ("b", 10), ("c", 1)]
    with held_bytes.room(30), held_bytes.room(20):
        pass  # what was held is given back


def test_what_fails_is_given_back() -> None:
    held_bytes = HeldBytes(100)
    for _ in range(3):
        with pytest.raises(ValueError, match="broken"), held_bytes.room(40), held_bytes.room(10):
            raise ValueError("broken")


def test_what_grows_is_given_back_whole() -> None:
    """The bytes of one that was refused more are given back, too."""
    held_bytes = HeldBytes(100)
    CLIENT.set("a")
    with held_bytes.growing() as one:
        one.grow(30)
        one.grow(20)
        with pytest.raises(Saturated):
            one.grow(1)
    with held_bytes.room(50):
        pass
