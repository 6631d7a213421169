"""The API process: everything is built here, once, and closed here."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from redis.exceptions import RedisError

from app.api import admin, batches, chat, completions, failure, files, health, tokens
from app.api.call import Begun, Call
from app.api.dispatch import Dispatcher
from app.api.express import Express
from app.api.fleet import FleetReader
from app.api.inbox import Inbox
from app.api.kept.keeper import Keeper
from app.api.kept.shelf import Shelf
from app.api.keyring import Keyring
from app.api.models import load_models
from app.api.responses import endpoint as responses
from app.api.schemas import Refusal
from app.api.state import ApiState
from app.api.sweep import Sweeper
from app.api.watch import Watch
from app.batch.book import Book
from app.batch.shelf import FileShelf
from app.batch.storage import Storage
from app.ids import new_api_id
from app.keys import Keys
from app.messages import Kept
from app.pools import load_pools
from app.settings import Settings, load_settings
from app.store import Wire, async_client
from app.telemetry import HELD, IN_FLIGHT, logger, setup_logging

log = logger(__name__)

# By messages.Kept.kind.
_UNDERSTAND = {"chat": chat.understand, "text": completions.understand, responses.KIND: responses.understand}


def create_app(settings: Settings | None = None) -> Express:
    """The ASGI app of one API process. Raises: SettingsError."""
    settings = settings or load_settings()
    setup_logging(settings.log_level, json=settings.log_json)
    declared = load_pools(settings.pools_file)
    pools = declared.pools
    models = load_models(declared, settings.tokenize_off_loop)
    storage = Storage(settings.files_url)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        keys, api = Keys(settings.deployment), new_api_id()
        redis = async_client(settings.redis_url)
        wire = Wire(redis)
        fleet = FleetReader(wire, keys, pools, settings.max_queued)
        dispatcher = Dispatcher(
            wire, keys, api, fleet, pools, settings.retry_after_s, settings.patience_s, settings.max_migrations
        )
        inbox = Inbox(wire, keys, api, dispatcher.deliver, partial(dispatcher.worker_lost, died=False))
        keyring = Keyring(wire, keys)
        watch = Watch(wire, keys, dispatcher, inbox, pools, settings.api_ttl_s)
        shelf = Shelf(wire, keys, api, settings.keep_s)
        on_file, book = FileShelf(wire, keys), Book(wire, keys, settings.batch_keep_s)

        async def prepare(kept: Kept, begun: Begun) -> Call:
            _body, plan = await _UNDERSTAND[kept.kind](app.state.xylem, kept.body)
            return Call(plan, dispatcher=dispatcher, begun=begun)

        keeper = Keeper(shelf, prepare)
        app.state.xylem = ApiState(
            settings,
            models,
            pools,
            keys,
            redis,
            fleet,
            dispatcher,
            inbox,
            keyring,
            shelf,
            keeper,
            storage,
            on_file,
            book,
            int(time.time()),
        )
        IN_FLIGHT.set_function(lambda: len(dispatcher.flights))
        HELD.set_function(lambda: dispatcher.placer.held)
        background = [asyncio.create_task(part.run()) for part in (inbox, watch, keeper, Sweeper(storage, on_file))]
        awaited = [inbox.subscribed]
        if settings.require_keys:
            background.append(asyncio.create_task(keyring.run()))
            awaited.append(keyring.loaded)
        with suppress(TimeoutError):  # without Redis the API starts all the same, and says so in /ready
            await asyncio.wait_for(asyncio.gather(*(event.wait() for event in awaited)), 2)
        # What lives now lives for good: the collector need not look at it again with every request's garbage.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        log.info("api_started", api=api, models=sorted(models))
        yield
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        with suppress(RedisError, OSError):
            await redis.unlink(keys.api(api))
        wire.close()
        await redis.aclose()

    errors: dict[int | str, dict[str, Any]] = {"default": {"model": Refusal, "description": "Refused, or failed"}}
    app = FastAPI(title="Xylem", version=version("xylem-serve"), lifespan=lifespan, responses=errors)
    failure.install(app)
    for part in (chat, completions, responses, files, batches, tokens, health, admin):
        app.include_router(part.router)
    return Express(app, {part.PATH: part.handle for part in (chat, completions, responses)})
