"""Steps of each of the six, as its guide says them."""

import json
import sys
from collections.abc import Callable
from hashlib import sha256
from typing import Any, NamedTuple

import httpx
import yaml
from psutil import Process

from tests.stack import valkey
from tests.welcome.hour import Hour

_HOSTS = 10
_ROWS = 300
_MESSAGE = [{"role": "user", "content": "hello"}]
_PROGRAM = """\
from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key="none")
for chunk in client.chat.completions.create(model="small", messages={messages}, max_tokens=8, stream=True):
    print(chunk.choices[0].delta.content or "", end="")
"""


class Person(NamedTuple):
    name: str
    does: Callable[[Hour], None]
    commands: int  # at most
    edits: int  # at most
    seconds: float  # at most, on a quiet machine


def laptop(hour: Hour) -> None:
    """An engineer with a laptop: a first token of a model that there is nothing to fetch for."""
    hour.serve("xylem serve small --engine mock")
    hour.ask_as_told()


def developer(hour: Hour) -> None:
    """An application developer: a program for OpenAI's API, with one address changed."""
    hour.serve("xylem serve small --engine mock")
    hour.write("program.py", _PROGRAM.format(url=hour.url, messages=_MESSAGE))
    assert hour.run(f"{sys.executable} program.py").strip()


def platform(hour: Hour) -> None:
    """A platform engineer: ten hosts that share a Redis and a pools file, a worker on each."""
    with valkey(hour.folder) as redis:
        env = {"XYLEM_REDIS_URL": redis, "XYLEM_POOLS_FILE": str(hour.folder / "pools.yaml")}
        hour.write("pools.yaml", hour.run("xylem serve small --engine mock --print-pools"))
        hour.start("xylem api", **env, XYLEM_PORT=str(hour.port))
        for number in range(_HOSTS):
            hour.start("xylem worker decode-pool-a", **env, XYLEM_ADDRESS=f"127.0.0.{number + 1}")
        hour.until(lambda: _workers(hour) == _HOSTS, "all workers are in routing")
        assert hour.ask("/v1/chat/completions", model="small", messages=_MESSAGE, max_tokens=8).status_code == 200


def table(hour: Hour) -> None:
    """Somebody with a table: one command answers its rows, and goes on after it was killed."""
    hour.serve("xylem serve small --engine mock")
    rows = [{"number": number, "text": f"row {number}"} for number in range(_ROWS)]
    hour.write("in.jsonl", "\n".join(map(json.dumps, rows)))
    command = "xylem batch run in.jsonl --model small --prompt '{{text}}' --max-tokens 4 --output out.jsonl"
    killed_run = hour.start(command)
    hour.until(lambda: hour.ask("/v1/batches").json()["data"], "the rows are on their way")
    killed_run.kill()
    killed_run.wait()
    hour.run(command)
    answers = [json.loads(line) for line in (hour.folder / "out.jsonl").read_text().splitlines()]
    assert [answer["number"] for answer in answers] == [*range(_ROWS)]
    assert all(answer["answer"] and not answer["error"] for answer in answers)


def teams(hour: Hour) -> None:
    """A team lead of five teams: a file has their keys and budgets, and a command makes them so."""
    hour.serve("xylem serve small --engine mock", XYLEM_REQUIRE_KEYS="true")
    keys = {f"team-{number}": f"sk-of-team-{number}" for number in range(5)}
    tenants = {
        team: {"budget": "20tokens/day", "keys": {team: {"sha256": sha256(key.encode()).hexdigest()}}}
        for team, key in keys.items()
    }
    hour.write("teams.yaml", yaml.safe_dump({"tenants": tenants}))
    hour.run("xylem tenants apply teams.yaml --yes")

    def status(key: str) -> int:
        return hour.ask("/v1/completions", key, model="small", prompt="hello", max_tokens=20).status_code

    hour.until(lambda: [status(key) for key in keys.values()] == [429] * 5, "each budget is spent")
    assert status("sk-of-nobody") == 401
    assert hour.ask("/admin/keys", keys["team-0"]).status_code == 403, "a team makes itself no keys"


def on_call(hour: Hour) -> None:
    """An engineer on call: a worker dies, and the page of the fleet, by the link that is printed, says which."""
    process = hour.serve("xylem serve small --engine mock --workers 2")
    [_, key] = next(word for word in hour.output.split() if "/console#" in word).split("#admin-key=")

    def fleet() -> dict[str, Any]:
        [pool] = hour.ask("/admin/fleet", key).json()["pools"]
        assert isinstance(pool, dict)
        return pool

    hour.until(lambda: len(fleet()["workers"]) == 2, "both are there")
    victim = next(p for p in Process(process.pid).children(recursive=True) if "decode-pool-a" in " ".join(p.cmdline()))
    victim.kill()
    dead_workers = hour.until(lambda: fleet()["lost"], "the dead one is shown")
    assert (fleet()["pool"], len(dead_workers)) == ("decode-pool-a", 1)
    assert dead_workers[0]["id"] not in [worker["id"] for worker in fleet()["workers"]]


def _workers(hour: Hour) -> int:
    try:
        return int(hour.ask("/ready").json()["workers"].get("small", 0))
    except httpx.TransportError:
        return 0


PEOPLE = (
    Person("a laptop", laptop, commands=2, edits=0, seconds=60),
    Person("an application", developer, commands=2, edits=1, seconds=60),
    Person("a table of rows", table, commands=3, edits=1, seconds=60),
    Person("five teams", teams, commands=2, edits=1, seconds=60),
    Person("on call", on_call, commands=1, edits=0, seconds=90),
    Person("ten hosts", platform, commands=3 * _HOSTS, edits=1, seconds=120),
)
