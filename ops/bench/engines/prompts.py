"""Prompts of ordinary text, each different from its first words on."""

from itertools import islice, product

_KINDS = (
    "story", "letter", "report", "dialogue", "recipe", "speech", "diary entry", "news article", "fable", "lecture",
)  # fmt: skip
_ABOUT = (
    "a fox", "the sea", "ten old men", "a lighthouse", "the first snow", "a broken clock", "two sisters", "bread",
    "a long war", "the moon", "a lost letter", "bees", "an empty house", "a river", "the last train",
)  # fmt: skip
MOST = len(_KINDS) * len(_ABOUT)


def prompts(count: int) -> list[str]:
    """The first `count`, of `MOST`."""
    return [f"About {about}: a short {kind}.\n\n" for about, kind in islice(product(_ABOUT, _KINDS), count)]
