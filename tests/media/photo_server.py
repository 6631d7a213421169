"""`python -m tests.media.photo_server FOLDER`: serves a photo of 4 megapixels until its stdin closes.

A process of its own, so that what it does is not counted. It writes its port into FOLDER, beside the certificates.
"""

import sys
from pathlib import Path

from tests.media.answers import body
from tests.media.hostile_server import HostileServer
from tests.media.samples import photo

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with HostileServer(folder).running() as server:
        server.routes["/photo"] = body(photo())
        (folder / "starting").write_text(str(server.port))
        (folder / "starting").rename(folder / "port")
        sys.stdin.read()
