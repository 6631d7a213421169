"""The API process: all its parts are created and closed here."""

import asyncio
import gc
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

from app.api.anthropic import message_batches
from app.api.anthropic import routes as messages
from app.api.api_keys import ApiKeys
from app.api.console import routes as fleet
from app.api.console.assets import console
from app.api.http import error_responses as failure
from app.api.http.answered import refused
from app.api.http.document import documented
from app.api.http.front import Front
from app.api.http.incoming import Incoming
from app.api.http.live_stream import LiveStream
from app.api.http.origin import Allowed
from app.api.http.sse import Sse
from app.api.intake.fast_path import FastPath, Handler
from app.api.kserve import repository_routes
from app.api.kserve import routes as kserve
from app.api.openai import batches, completions, encodings, files, images, stored_chats, token_generation, videos
from app.api.openai import tokenize as tokens
from app.api.openai.file_expiry import FileExpiry
from app.api.openai.picture_files import keep_video
from app.api.openai.responses import conversation_routes, derived_routes
from app.api.openai.responses import routes as responses
from app.api.openai.responses.conversation_end import ConversationEnd
from app.api.openai.transcription import routes as transcriptions
from app.api.operations import (
    admin,
    erasures,
    health,
    logs,
    loras,
    pool_state,
    prefixes,
    root,
    spending,
    tenants,
    usage_reports,
)
from app.api.operations.budget_watch import BudgetWatch
from app.api.operations.erasing import Erasing
from app.api.resumable.adopted_plan import adopted_plan
from app.api.resumable.chat_index import ChatIndex
from app.api.resumable.conversations import ConversationStore
from app.api.resumable.kept_account import KeptAccounts
from app.api.resumable.long_strings import LongStrings
from app.api.resumable.owner import AnswerOwner
from app.api.resumable.response_webhook import ResponseWebhook
from app.api.resumable.store import ResumableStore
from app.api.state import ApiState
from app.batch.batch_store import BatchStore
from app.batch.file_account import FileAccounts
from app.batch.file_store import FileStore
from app.batch.storage import Storage
from app.bounded.held_bytes import HeldBytes
from app.dispatch.answering.generation import Generation
from app.dispatch.answering.prompts import Adopted
from app.dispatch.media.media_account import MediaAccounts
from app.dispatch.runtime import Deployment, running
from app.endpoint_registry import CHAT, EMBEDDINGS, IMAGES, MESSAGE, RESPONSE, TEXT
from app.endpoints import ROWS
from app.errors import SettingsError
from app.messages.kept import KeptRequest
from app.openai.answer_types import Refusal
from app.running.ending import end_tasks
from app.running.log_lines import setup_logging
from app.settings import Settings, load_settings
from app.telemetry import logger
from app.tenants.charge import Charge
from app.tenants.ledger import Ledger
from app.tenants.limits import begun_before
from app.tenants.stored_audit import StoredAudit
from app.tenants.stored_bytes import Quotas
from app.tracing.request_trace import RequestTrace

if TYPE_CHECKING:
    from app.api.oidc.login import Login

log = logger(__name__)

_PATHS = {row.kind: row.path for row in ROWS if row.kind}
_TRACED = {path for row in ROWS for path in row.paths}


def grpc_server(settings: Settings) -> Callable[[ApiState, asyncio.Event], AbstractAsyncContextManager[None]]:
    """Serves gRPC, or nothing if it has no port. Raises: SettingsError."""
    if settings.grpc_port is None:
        return lambda _state, _leaving: nullcontext()
    _check_free(settings.host, settings.grpc_port, settings.port)
    try:
        from app.api.kserve.grpc_server import serving  # grpc takes memory and start-up time
    except ImportError as exc:
        raise SettingsError(
            "XYLEM_GRPC_PORT is set, and grpcio or protobuf is not installed here: "
            f"pip install 'xylem-serve[grpc]' ({exc})"
        ) from exc
    return serving


def _check_free(host: str, port: int, of_http: int) -> None:
    """Here, since at its start uvicorn would show a traceback. Raises: SettingsError."""
    if port == of_http != 0:
        raise SettingsError(f"XYLEM_GRPC_PORT={port}: HTTP has this port (XYLEM_PORT)")
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            pass
    except OSError as exc:
        raise SettingsError(f"XYLEM_GRPC_PORT={port} at {host}: {exc.strerror}") from exc


def login_of(settings: Settings) -> "Login | None":
    """None: there is no issuer."""
    if settings.oidc_issuer is None:
        return None
    from app.api.oidc.login import Login  # cryptography takes memory and start-up time

    return Login.of(settings)


def _include(app: FastAPI, *modules: Any) -> None:
    for module in modules:
        app.include_router(module.router)


def create_app(settings: Settings | None = None, leaving: asyncio.Event | None = None) -> FastPath:
    """The ASGI app of one API process. `leaving`: set when HTTP begins to drain. Raises: SettingsError."""
    settings, leaving = settings or load_settings(), leaving or asyncio.Event()
    setup_logging(settings.log_level, json=settings.log_json)
    deployment = Deployment.read(settings)
    storage, media_storage = Storage(settings.files_url), Storage(settings.media_store_url, "XYLEM_MEDIA_STORE")
    serving_grpc = grpc_server(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        login = login_of(settings)
        async with running(deployment, elsewhere=True) as core:
            api_keys = ApiKeys(core.wire, core.keys, settings.admin_keys, login)
            ledger = Ledger(core.wire, core.keys, core.dispatcher.api, api_keys)
            most = settings.keep_bytes_per_key, settings.keep_bytes
            tells = settings.webhook_url is not None
            strings = LongStrings(media_storage)
            resumable_store = ResumableStore(
                core.wire, core.keys, core.dispatcher.api, settings.keep_s, *most, tells=tells, strings=strings
            )

            async def prepare(kept_request: KeptRequest, adoption: Adopted) -> Generation:
                client = api_keys.client_of(kept_request.tenant, kept_request.key)
                plan = await adopted_plan(core, kept_request, begun_before(client.within))
                return Generation(
                    plan,
                    dispatcher=core.dispatcher,
                    charge=Charge.of(ledger, client, outlives=True),
                    adoption=adoption,
                    client=client,
                    x_request_id=kept_request.x_request_id,
                    trace=RequestTrace.adopted(
                        core.tracer, kept_request.trace, _PATHS[kept_request.kind], kept_request.created
                    ),
                )

            async def keep_file(kept_request: KeptRequest, file: bytearray) -> None:
                await keep_video(app.state.xylem, kept_request, file)

            conversations = ConversationStore(core.wire, core.keys, settings.keep_s, *most, strings)
            at_end = ConversationEnd(core.models, conversations)
            answer_owner = AnswerOwner(
                resumable_store,
                prepare,
                at_end,
                settings.intervals.adopt_s,
                keep_file,
                most_deaths=settings.max_migrations,
            )
            file_store = FileStore(core.wire, core.keys)
            batch_store = BatchStore(
                core.wire, core.keys, settings.batch_keep_s, settings.batches_per_key, settings.batches_in_all
            )
            app.state.xylem = ApiState(
                **vars(core),
                api_keys=api_keys,
                ledger=ledger,
                quotas=Quotas(core.wire, core.keys, api_keys, settings),
                resumable_store=resumable_store,
                conversations=conversations,
                answer_owner=answer_owner,
                storage=storage,
                painted=media_storage,
                files=file_store,
                batch_store=batch_store,
                chats=ChatIndex(core.wire, core.keys, *most, strings),
                incoming=Incoming(settings.incoming_bytes),
                answers=HeldBytes(settings.incoming_bytes, "Answers of yours that are on their way"),
                started=int(time.time()),
            )
            sweep_strings = partial(strings.sweep, core.wire, core.keys)
            expiry = FileExpiry(storage, media_storage, file_store, sweep_strings)
            accounts = (
                KeptAccounts(core.wire, core.keys),
                FileAccounts(core.wire, core.keys, api_keys),
                MediaAccounts(core.wire, core.keys),
            )
            parts = answer_owner, expiry, ledger, Erasing(app.state.xylem), StoredAudit(accounts)
            background = [asyncio.create_task(part.run()) for part in parts]
            background.append(asyncio.create_task(Sse.run(settings.sse_ping_s)))
            LiveStream.ping_s = settings.sse_ping_s
            if tells:
                webhook = ResponseWebhook(core.wire, core.keys, resumable_store, settings)
                background.append(asyncio.create_task(webhook.run()))
            if login is not None:
                background.append(asyncio.create_task(login.signing_keys.run()))
            if settings.require_keys:
                watch = BudgetWatch(core.wire, core.keys, api_keys, core.dispatcher.api, settings)
                background += [asyncio.create_task(part.run()) for part in (api_keys, watch)]
                with suppress(TimeoutError):  # without Redis the API starts all the same, and /ready says so
                    await asyncio.wait_for(api_keys.loaded.wait(), 2)
            # The objects that exist now stay: the garbage collector need not examine them again.
            gc.collect()
            gc.freeze()
            gc.set_threshold(10_000, 5, 80)  # the middle generation, of fifty thousand objects, takes 10 ms
            log.info("api_started", api=core.dispatcher.api, models=sorted(core.models))
            async with serving_grpc(app.state.xylem, leaving):
                yield
            await end_tasks(background)

    app = documented(
        settings,
        title="Xylem",
        version=version("xylem-serve"),
        lifespan=lifespan,
        responses=refused(Refusal),
        redirect_slashes=False,
    )
    failure.install(app)
    _include(app, completions, stored_chats, derived_routes, responses, conversation_routes, messages, message_batches)
    _include(app, encodings, images, videos, token_generation, transcriptions, kserve, files, batches, tokens, health)
    app.include_router(root.router)
    app.include_router(repository_routes.router)
    app.include_router(repository_routes.changes)
    _include(app, admin, erasures, loras, pool_state, prefixes, tenants, spending, usage_reports, fleet, logs)
    if settings.console:
        app.include_router(console(settings))
    handlers: dict[str, Handler] = {
        CHAT.path: partial(completions.handle, CHAT),
        TEXT.path: partial(completions.handle, TEXT),
        RESPONSE.path: responses.handle,
        MESSAGE.path: partial(completions.handle, MESSAGE),
        EMBEDDINGS.path: partial(encodings.handle, EMBEDDINGS),
        IMAGES.path: images.handle,
    }
    return FastPath(app, handlers, Allowed.of(settings), _TRACED, Front.of(settings))
