"""The LoRA adapters that an engine has, by name."""

from itertools import count
from pathlib import Path
from typing import Generic, TypeVar

from app.errors import AdapterFailed

T = TypeVar("T")


class LoadedAdapters(Generic[T]):
    """Adapters, each with its name in the engine; never more than that holds, since it would evict one unasked."""

    def __init__(self, most: int, model: Path | None = None) -> None:
        """`model`: its folder, for engines that are to check adapters against it."""
        self.most, self._model = most, model or Path()
        self._by_name: dict[str, T] = {}
        self._ids = count(1)  # no number is given twice: under an old one there would be the old weights, or their KV

    def is_new(self, name: str) -> bool:
        """Whether it is to be loaded: it is not there. Raises: AdapterFailed, if there is no room."""
        if name in self._by_name:
            return False
        if len(self._by_name) >= self.most:
            raise AdapterFailed(f"This engine holds {self.most} adapters, and has as many.")
        return True

    def find(self, name: str | None) -> T | None:
        """None: the model as it is. Raises: AdapterFailed for one that is not there."""
        if name is None:
            return None
        if name not in self._by_name:
            raise AdapterFailed(f"The adapter '{name}' is not loaded here.")
        return self._by_name[name]
