"""Prefill and decode apart, each over two hosts, and beside them one engine on one host.

`make nodes`, as root: each host is a network namespace, and loading takes minutes.
"""

import pytest

from tests.apart_on_hosts import DECODE, ENGINES, PREFILL, answers, apart_on_hosts
from tests.stack import leases

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_roles_over_two_hosts_each_answer_as_one_host_does(
    engine: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each host of the decode group takes its tensors' part of the KV from the other group."""
    with apart_on_hosts(tmp_path_factory.mktemp(engine), engine) as hosts:
        (prefills,), (decodes,) = leases(hosts.stack, PREFILL), leases(hosts.stack, DECODE)
        for number in range(4):
            apart, alone, workers = answers(hosts, number)
            assert apart == alone
            assert workers == [prefills.worker.id, decodes.worker.id]
