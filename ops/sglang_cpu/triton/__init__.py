"""Stands in for Triton, a gigabyte of compiler for GPUs: kernels can be defined, and are never launched.

Every name of it, in every module below it, can be imported, called as a decorator and used as an annotation.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__version__ = "3.0.0"


class _Anything(ModuleType):
    """A module, a decorator, a type: whatever is made of it at import."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # What is written large is subclassed or called with anything, as `Config` is.
        value = type(name, (_Instance,), {}) if name[0].isupper() else _Anything(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`@jit` or `@jit(…)`: the function stays what it is."""
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else lambda function: function


class _Instance:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs


class _Modules:
    """Finds and makes whatever is imported below `triton`."""

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None) -> Any:
        return ModuleSpec(name, self, is_package=True) if name.startswith("triton.") else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Anything(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "triton.backends":
            module.backends = {}  # type: ignore[attr-defined]  # vLLM and torch ask it whether there is a device


sys.meta_path.insert(0, _Modules())
_anything = _Anything("triton")


def cdiv(a: int, b: int) -> int:
    return -(a // -b)


def next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 0 else 1


def __getattr__(name: str) -> Any:
    return getattr(_anything, name)
