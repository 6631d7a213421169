"""The real TensorRT-LLM, where it is installed: what its double rehearses."""

import pytest

from tests.gpu.place import installed
from tests.gpu.trtllm_cases import *  # noqa: F403 (it has tests only)

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore"), *installed("trtllm")[0].marks]
