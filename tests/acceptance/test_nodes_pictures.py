"""Large pictures for workers on other hosts: each is a network namespace. `make nodes`, as root."""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.nodes import MODEL, POOL, Hosts, on_hosts
from tests.pictures import asked, png
from tests.serving import client_of, outlived
from tests.stack import leases, mock_pool, wait_until
from tests.vlm import random_vlm

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """A worker on each of two hosts; API and Redis are on this one."""
    pool = mock_pool(max_model_len=8192, block_size=16, step_ms=15.0)
    pool |= {"path": str(random_vlm("idefics3", weights=False)), "model": MODEL}
    with on_hosts(tmp_path_factory.mktemp("pictures"), pool, 2) as hosts:
        wait_until(lambda: len(leases(hosts.stack, POOL)) == 2, "both take requests", 120)
        hosts.stack.wait_ready(2, MODEL)
        yield hosts


def answer(client: OpenAI, seed: int, **fields: Any) -> Any:
    """An answer about a picture whose pixels are 4.5 MB."""
    messages, more = asked(png(seed, 1500, 1000)), {"ignore_eos": True}
    return client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=120, seed=1, extra_body=more, **fields
    )


def test_a_worker_on_another_host_collects_a_photo(hosts: Hosts) -> None:
    """The address is the one of this host's that reaches Redis."""
    with client_of(hosts.stack.url) as client:
        one, again, other = (answer(client, seed).choices[0].message.content for seed in (1, 1, 2))
    assert one == again != other
    assert not any("media_not_collected" in hosts.log(host) for host in hosts.hosts)


def test_a_host_that_dies_with_a_photo_loses_no_request(hosts: Hosts) -> None:
    with client_of(hosts.stack.url) as client:
        whole = answer(client, 3).choices[0].message.content
        assert outlived(hosts.stack, POOL, answer(client, 3, stream=True))[0] == whole
