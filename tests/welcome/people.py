"""Steps of each of the six, as its guide says them."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import httpx

from tests.stack import valkey
from tests.welcome.hour import Hour

_HOSTS = 10
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
    hour.asks("small")


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


def _workers(hour: Hour) -> int:
    try:
        return int(hour.ask("/ready").json()["workers"].get("small", 0))
    except httpx.TransportError:
        return 0


PEOPLE = (
    Person("a laptop", laptop, commands=2, edits=0, seconds=60),
    Person("an application", developer, commands=2, edits=1, seconds=60),
    Person("ten hosts", platform, commands=3 * _HOSTS, edits=1, seconds=120),
)
