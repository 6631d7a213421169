"""Protocols of model families: what one has to tell about pictures and sound in its prompts."""

from typing import Protocol


class PictureFamily(Protocol):
    """A family's pictures. Equal if they expand all pictures alike."""

    @property
    def marker(self) -> str:
        """A template's text for one picture, with what it writes around it."""

    @property
    def token_id(self) -> int:
        """The marker's token, which `tokens` replaces."""

    @property
    def takes_videos(self) -> bool:
        """Whether frames of a video may be written as pictures, in the notation of `smolvlm_video.py`."""

    def tokens(self, height: int, width: int) -> list[int]:
        """Tokens for a picture of so many pixels. Raises: ValueError for a shape that the model can't take."""


class Sounds(Protocol):
    """A family's sounds. Equal if they expand all sounds alike."""

    @property
    def marker(self) -> str:
        """The marker, as of pictures; the same goes for what is below."""

    @property
    def token_id(self) -> int: ...

    def tokens(self, samples: int) -> list[int]:
        """Tokens for so many samples, 16,000 a second. Raises: ValueError if the model can't take so many."""
