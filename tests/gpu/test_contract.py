"""The suite that all engines go through, on the engines that are installed here with a GPU."""

import pytest

from tests.contract.test_engine_contract import *  # noqa: F403 (it has tests only)

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),  # the first test of an engine loads it
    pytest.mark.filterwarnings("ignore"),
]
