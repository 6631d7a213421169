"""`xylem api`: one API replica in the foreground."""

import os
from contextlib import suppress
from typing import Annotated

import typer

from app.cli.report import refuse
from app.errors import SettingsError

_NOT_STARTED = 3  # the exit status, as uvicorn's own command has it


def api(
    host: Annotated[str | None, typer.Option(help="Address to listen on [XYLEM_HOST, 127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on [XYLEM_PORT, 8000].")] = None,
) -> None:
    """Run one API replica. Settings come from XYLEM_… variables."""
    # Whatever reads the settings later in this process must see the same.
    if host is not None:
        os.environ["XYLEM_HOST"] = host
    if port is not None:
        os.environ["XYLEM_PORT"] = str(port)

    import asyncio

    import uvicorn

    from app.api.http.access_log import AccessLog
    from app.api.http.standing import Standing
    from app.api.http.uvicorn_protocol import DirectProtocol
    from app.api.http.uvicorn_server import Server, both_families
    from app.api.main import create_app
    from app.settings import load_settings

    leaving = asyncio.Event()
    try:
        settings = load_settings()
        app = create_app(settings, leaving)
    except SettingsError as exc:
        refuse(exc.message)
    config = uvicorn.Config(
        AccessLog(app) if settings.access_log else app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=DirectProtocol,
        ws="none",
        lifespan="on",
        log_config=None,  # create_app has set logging up
        proxy_headers=False,  # nothing here looks at the client's address
        server_header=False,
        access_log=False,  # ours has what is needed, in the log's own form
        timeout_keep_alive=settings.keep_alive_s,
    )
    server = Server(config, leaving, Standing.of(settings), settings.drain_timeout_s)
    try:
        sockets = both_families(settings.port) if settings.host == "::" else None
    except OSError as exc:
        refuse(f"XYLEM_PORT={settings.port}: {exc.strerror}", code=_NOT_STARTED)
    with suppress(KeyboardInterrupt):  # which the server has taken for its end
        server.run(sockets)
    if not server.started:
        raise typer.Exit(_NOT_STARTED)
