"""Between us and a bounded process, over a socket pair: lengths, msgpack, and bytes behind it."""

import socket
import struct
from collections.abc import Sequence

_JOB = struct.Struct("!IIQ")  # CPU seconds, length of the job, and of the data behind it
_ANSWER = struct.Struct("!II")  # length of the answer, number of bodies behind it
_SIZE = struct.Struct("!Q")

Answer = tuple[bytes, list[bytes]]  # msgpack of what the user of the process declares, and bodies


def send_job(connection: socket.socket, job: bytes, data: Sequence[bytes], cpu_s: int) -> None:
    connection.sendall(_JOB.pack(cpu_s, len(job), sum(map(len, data))) + job)
    for piece in data:
        connection.sendall(piece)


def receive_job(connection: socket.socket) -> tuple[bytes, bytes, int]:
    """The job, its data, and its seconds of CPU time. Raises: EOFError if the other side is gone."""
    cpu_s, job, data = _JOB.unpack(_receive(connection, _JOB.size))
    return _receive(connection, job), _receive(connection, data), cpu_s


def send_answer(connection: socket.socket, answer: Answer) -> None:
    message, bodies = answer
    sizes = b"".join(_SIZE.pack(len(body)) for body in bodies)
    connection.sendall(_ANSWER.pack(len(message), len(bodies)) + message + sizes)
    for body in bodies:
        connection.sendall(body)


def receive_answer(connection: socket.socket) -> Answer:
    """Raises: EOFError if the other side is gone, OSError."""
    length, count = _ANSWER.unpack(_receive(connection, _ANSWER.size))
    message = _receive(connection, length)
    sizes = [size for (size,) in _SIZE.iter_unpack(_receive(connection, count * _SIZE.size))]
    return message, [_receive(connection, size) for size in sizes]


def _receive(connection: socket.socket, size: int) -> bytes:
    """Receives bytes in one piece, which the kernel fills while the interpreter does other work.

    Raises: EOFError, OSError.
    """
    data = connection.recv(size, socket.MSG_WAITALL) if size else b""
    if len(data) != size:
        raise EOFError
    return data
