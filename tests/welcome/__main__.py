"""`python -m tests.welcome`: all of them, one after the other; a table, and one line of JSON."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from tests.welcome.hour import hour
from tests.welcome.people import PEOPLE

if __name__ == "__main__":
    console, figures = Console(), {}
    table = Table("who", "commands", "of", "files edited", "of", "seconds", "of", title="The first hours")
    for person in PEOPLE:
        with console.status(person.name), TemporaryDirectory() as folder, hour(Path(folder)) as one:
            person.does(one)
            effort = one.effort
        figures[person.name] = effort._asdict() | {"typed": one.typed}
        counts = zip(effort, (person.commands, person.edits, person.seconds), strict=True)
        table.add_row(person.name, *(f"{number:.0f}" for pair in counts for number in pair))
    console.print(table)
    console.out(json.dumps(figures))
