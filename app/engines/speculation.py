"""Speculation: how much of what was drafted was accepted."""

from collections.abc import Sequence


class Speculation:
    """Sums since the start."""

    def __init__(self) -> None:
        self.drafts = self.drafted = 0  # how often tokens were drafted, and how many
        self.accepted: list[int] = []  # of them, by position in the draft

    def add(self, drafts: int, guesses: int, accepts: Sequence[int]) -> None:
        self.drafts += drafts
        self.drafted += guesses
        self.accepted += [0] * (len(accepts) - len(self.accepted))
        for position, count in enumerate(accepts):
            self.accepted[position] += count
