"""Keys of the media in requests: samples, encoded pictures, and the tokens that they become."""

from app.ids import RunId
from app.keys.names import KeyNames


class MediaKeys(KeyNames):
    def media(self, sha256: str) -> str:
        return f"{self._fleet}media:{sha256}"

    def media_held(self) -> tuple[str, str, str]:
        """The keys of the scripts that count samples."""
        return f"{self._fleet}media:held", f"{self._fleet}media:ends", f"{self._fleet}media:"

    def embedding(self, model: str, sha256: str) -> str:
        return f"{self._fleet}embedding:{model}:{sha256}"

    def expansions(self, digest: str) -> str:
        return f"{self._fleet}expansions:{digest}"

    def encoded(self, run: RunId) -> str:
        return f"{self._fleet}encoded:{run}"
