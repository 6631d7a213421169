import socket

import pytest

from app.bounded.pool import ProcessPool
from app.errors import NoProcess


async def test_a_process_that_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    sockets: list[socket.socket] = []
    make_pair = socket.socketpair

    def recorded_pair() -> tuple[socket.socket, socket.socket]:
        pair = make_pair()
        sockets.extend(pair)
        return pair

    pool = ProcessPool("app.tokenizing.own_template_process", memory=2**30, processes=1)
    monkeypatch.setattr(pool, "_command", ["/nowhere/python"])
    monkeypatch.setattr(socket, "socketpair", recorded_pair)
    with pytest.raises(NoProcess):
        await pool.run(b"", cpu_s=1)
    pool.close()
    assert [one.fileno() for one in sockets] == [-1, -1]
