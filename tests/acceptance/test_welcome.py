"""The first hours of newcomers, as `tests/welcome` has them."""

from pathlib import Path

import pytest

from tests.welcome.hour import hour
from tests.welcome.people import PEOPLE, Person


@pytest.mark.parametrize("person", PEOPLE, ids=lambda person: person.name)
def test_a_newcomer_gets_there_with_few_commands_and_edits(tmp_path: Path, person: Person) -> None:
    with hour(tmp_path) as one:
        person.does(one)
        commands, edits, _ = one.effort
    assert commands <= person.commands, one.typed
    assert edits <= person.edits
