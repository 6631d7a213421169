"""Reasons why a part is refused. The loader adds the part's name at the border, and makes it a RequestError.

A reason names the bound that was met. It never names an address that a name leads to, nor a path of this machine:
whoever sends requests could look around in our network with it.
"""


class Refused(Exception):
    """The reason, as the end of a sentence: "it has more than 16777216 bytes"."""


def too_large(most: int, setting: str = "XYLEM_MEDIA_BYTES") -> Refused:
    return Refused(f"it has more than {most} bytes ({setting})")
