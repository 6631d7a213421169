"""The benchmarks that there are, and the figures that each declares."""

from importlib import import_module
from pathlib import Path

_HERE = Path(__file__).parent
_NONE = {"flames", "loadgen", "simulator"}  # they measure nothing themselves
# How a reason of the smallest size may begin besides: of so little there is none, or it isn't installed.
NO_CROSSOVER = "between no two of the loads does the aggregated fleet become the faster one"
NO_LINE_ENDED = "no line of the batch ended while its tokens were counted without requests"
OF_LITTLE = (NO_CROSSOVER, NO_LINE_ENDED)  # why there may be no figure of so little as the smallest size has
NOT_INSTALLED = ("no helm", "no NVIDIA Dynamo")


def benchmarks() -> dict[str, Path]:
    """The file that is run, by benchmark: all that `make bench NAME=…` finds."""
    modules = {path.stem: path for path in _HERE.glob("*.py") if '\nif __name__ == "__main__"' in path.read_text()}
    packages = {path.parent.name: path for path in _HERE.glob("*/__main__.py")}
    return {name: path for name, path in sorted((packages | modules).items()) if name not in _NONE}


def figures(name: str) -> list[str]:
    """The keys of its line of JSON."""
    if (_HERE / name).is_dir():
        return [figure for of in import_module(f"ops.bench.{name}.report").TARGETS.values() for figure in of]
    return [*import_module(f"ops.bench.{name}").FIGURES]
