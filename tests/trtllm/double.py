"""A package `tensorrt_llm`, made from its contract when it is asked for."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.trtllm.contract import Contract, contract
from tests.trtllm.generated import Package
from tests.trtllm.metrics import Collector
from tests.trtllm.model import MOCK, Model
from tests.trtllm.pictures import PictureModel, shared
from tests.trtllm.visual import Visual

_ENGINES = {
    "LLM": Model,
    "MetricsCollector": Collector,
    "MultimodalEncoder": PictureModel,
    "SharedTensorContainer": shared,
    "VisualGen": Visual,
}
_OURS = ("app.engines.trtllm", "app.painters.trtllm")


def made(of: Contract | None = None) -> Package:
    return Package(of or contract(), _ENGINES)


@contextmanager
def installed(of: Contract | None = None) -> Iterator[Package]:
    """The package in this process, while the block runs; the adapter is imported anew."""
    package = made(of)
    names = [name for name in sys.modules if name.split(".")[0] == "tensorrt_llm" or name.startswith(_OURS)]
    before = {name: sys.modules.pop(name) for name in names}
    sys.modules.update(package.modules)
    try:
        with pytest.MonkeyPatch.context() as env:  # engines set it for their process
            env.delenv(MOCK, raising=False)
            yield package
            os.environ.pop(MOCK, None)
    finally:
        for model in package.models:
            if isinstance(model, Collector):
                model.close()
        for name in [n for n in sys.modules if n.split(".")[0] == "tensorrt_llm" or n.startswith(_OURS)]:
            del sys.modules[name]
        sys.modules.update(before)
