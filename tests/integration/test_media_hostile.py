"""Bad input is refused by the bound that it meets, and reaches nothing."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.media.hostile import Guards, guards
from tests.media.hostile_cases import CASES, Case

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded() -> AsyncIterator[Guards]:
    async with guards() as instance:
        yield instance


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_it_is_refused_for_its_reason(case: Case, guarded: Guards) -> None:
    """The refusal has the part's name, and not a word about our network."""
    assert await guarded.let_through(case) is None
