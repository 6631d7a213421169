"""S3 as moto plays it."""

from collections.abc import Iterator
from contextlib import contextmanager

import fsspec
import pytest
import s3fs
from moto.server import ThreadedMotoServer


def access(url: str) -> dict[str, str]:
    """The environment in which that is the S3 that there is."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "y",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }


@contextmanager
def s3_server() -> Iterator[ThreadedMotoServer]:
    """A server with a bucket called `bucket`, in whose environment it is the S3 that there is."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in access(f"http://{host}:{port}").items():
            patch.setenv(name, value)
        # Both remember: fsspec the server of before, moto its buckets.
        s3fs.S3FileSystem.clear_instance_cache()
        fsspec.filesystem("s3").makedirs("bucket", exist_ok=True)
        yield server
    server.stop()
