"""A request to a pipeline: each stage is a job like any other, placed when the stage before has ended.

One deadline, one client and one account are those of all stages.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace as with_fields
from functools import partial
from typing import Any

from msgspec.structs import replace
from pydantic_core import from_json
from starlette.types import Receive, Scope

from app import json_bytes
from app.api.http import x_request_id
from app.api.http.disconnect import client_left
from app.api.http.request_trace import trace_of
from app.api.intake.client_limits import check_priority
from app.api.state import ApiState
from app.dispatch.answering.generation import Generation
from app.dispatch.answering.prompts import Adopted
from app.dispatch.asking import Asking
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.media.media_reader import Origin
from app.dispatch.models.pipeline_named import PipelineNamed
from app.dispatch.models.speech import WINDOW_S
from app.endpoint_registry import CHAT, IMAGES
from app.errors import Cancelled, DeadlineOver, EngineFailed, RequestError, XylemError
from app.ids import new_request_id
from app.openai.answer_types import StageDelta, StageOutput
from app.openai.chat import writer as chat_writer
from app.openai.images import ImageRequest
from app.openai.pipeline import ChatText, stage_request
from app.openai.schemas import ChatRequest, ModelRequest
from app.openai.transcription.recognition import recognised
from app.pools.schema import Stage
from app.running.ending import side_by_side
from app.store import clock
from app.tenants.charge import StageCharge
from app.tenants.cost import Used
from app.tenants.limit_table import UNLIMITED
from app.tenants.limits import begun_before

Show = Callable[[StageOutput | StageDelta], Awaitable[None]]

_SMALL = 16 * 2**10  # bytes of a body that is decoded at once


class Conductor:
    """The run of one request through a pipeline's stages."""

    def __init__(
        self,
        state: ApiState,
        asking: Asking,
        pipeline_request: PipelineNamed,
        prefix: str,
        scope: Scope,
        receive: Receive,
    ) -> None:
        """`prefix`: of the answer's id. Raises: RequestError."""
        body: ModelRequest = pipeline_request.body
        check_priority(state, scope, body)
        body.check()
        self.name, self._stages = body.model, pipeline_request.pipeline.stages
        self._param = "prompt" if pipeline_request.paints else "messages"  # where the text comes from
        self.id, self._came = new_request_id(prefix, state.dispatcher.api), clock.now()
        self._ends = self._came + (body.timeout or state.settings.request_timeout_s)
        self._body, self._scope, self._receive = body, scope, receive
        self._state = state
        # The client may ask for the pipeline, if not for its models.
        self._asking = with_fields(asking, within=UNLIMITED, explain=False)
        self._last_asking = with_fields(asking, within=begun_before(asking.within))
        self._charge = state.charge(scope)
        self._calls: list[Generation] = []
        self._text: ChatText | None = None  # of a chat
        self.shown: list[StageOutput] = []  # what stages have made, if clients see it

    @property
    def created(self) -> int:
        return int(self._came)

    def headers(self) -> dict[str, str]:
        """HTTP headers, before the last stage has begun."""
        return {} if self._charge is None else self._charge.headers()

    async def chat(self, raw: bytes, show: Show | None = None) -> tuple[ChatRequest, Generation]:
        """The body for the last stage, and its answer, which has not begun. Raises: XylemError, naming the stage.

        `raw`: the request's body. `show`: gets what stages make that clients see: of a text its pieces, then all.
        """
        doc = from_json(raw) if len(raw) <= _SMALL else await asyncio.to_thread(from_json, raw)
        async with self._admitted(self._answers(doc.get("n"))):
            return await self._chat(doc, show)

    async def _chat(self, doc: dict[str, Any], show: Show | None) -> tuple[ChatRequest, Generation]:
        chat = self._text = ChatText(doc)
        *earlier, last = self._stages
        for number, stage in enumerate(earlier, 1):
            with self._named(stage, number):
                if self._state.models[stage.model].task == "transcribe":
                    if not (sounds := chat.sounds()):
                        continue
                    texts = await self._heard(stage, sounds)
                    chat.hear(dict(zip(sounds, texts, strict=True)))
                else:
                    chat.text = await self._written(stage, number, chat.text, show if stage.show else None)
            if stage.show:
                self.shown.append({"stage": number, "model": stage.model, "output": chat.text})
                if show is not None:
                    await show(self.shown[-1])
        with self.in_last():
            return await self._last(CHAT.understand, chat.ask(last))

    async def pictures(self, raw: bytes) -> tuple[ImageRequest, Generation]:
        """The body for the painter, and its answer, as in `chat`. Raises: XylemError.

        The answer has the painter's prompt, if the stage that wrote it shows it.
        """
        doc = from_json(raw) | {"model": self._stages[-1].model}
        with self.in_last():  # a size that it can't paint is refused before a text is written
            await IMAGES.understand(self._asking, json_bytes.dumps(doc))
        async with self._admitted(self._answers(1)):
            return await self._pictures(doc)

    async def _pictures(self, doc: dict[str, Any]) -> tuple[ImageRequest, Generation]:
        *earlier, last = self._stages
        text: str = doc["prompt"]
        for number, stage in enumerate(earlier, 1):
            with self._named(stage, number):
                text = await self._written(stage, number, text)
        doc["prompt"] = last.asked(text)
        with self.in_last():
            revised_prompt = doc["prompt"] if earlier[-1].show else None
            return await self._last(IMAGES.understand, json_bytes.dumps(doc), revised_prompt)

    @contextmanager
    def in_last(self) -> Iterator[None]:
        """Errors within name the last stage, and the request's parts as the client knows them."""
        with self._named(self._stages[-1], len(self._stages)):
            try:
                yield
            except XylemError as exc:
                if self._text is not None and exc.param is not None:
                    client_param = self._text.as_sent(exc.param)
                    exc.message, exc.param = exc.message.replace(f"'{exc.param}'", f"'{client_param}'"), client_param
                raise

    @contextmanager
    def _named(self, stage: Stage, number: int) -> Iterator[None]:
        try:
            yield
        except Cancelled:
            raise
        except XylemError as exc:
            exc.message = f"Stage {number} of '{self.name}', the model '{stage.model}': {exc.message}"
            raise

    def _answers(self, last: object) -> int:
        """The most tokens that its stages compute and generate, of which the last one makes so many choices."""
        *earlier, room = [self._state.models[stage.model].context_len for stage in self._stages]
        return sum(earlier) + room * (last if isinstance(last, int) and last > 0 else 1)

    @asynccontextmanager
    async def _admitted(self, answers: int) -> AsyncIterator[None]:
        """The request counts as one, and its cost is charged at the end of the last stage, or of this.

        Raises: RateLimited, BudgetUsed, StoreDown.
        """
        x_request_id.named_after(self._scope, self.id)
        if self._charge is not None:
            await self._charge.admit(self.id, Used(self._stages[-1].model), self._ends, answers)
        try:
            yield
        except BaseException:
            if self._charge is not None:
                await self._charge.settle(None)
            raise

    async def _written(self, stage: Stage, number: int, text: str, show: Show | None = None) -> str:
        """Raises: XylemError."""
        if not text.strip():
            raise RequestError("There is no text for it.", param=self._param)
        body, plan = await CHAT.understand(self._asking, stage_request(stage, text))
        async with await self._begin(replace(plan, whole=show is None)) as call:
            writer = chat_writer(call, body)
            if show is None:
                output = (await writer.whole())["choices"][0]["message"]["content"] or ""
            else:
                output = await writer.read(lambda piece: show({"stage": number, "model": stage.model, "delta": piece}))
        if not output.strip():
            raise EngineFailed("It has written nothing.")
        return output

    async def _heard(self, stage: Stage, sounds: Mapping[Origin, str]) -> list[str]:
        """Raises: XylemError."""
        media, model = self._state.media, self._asking.find_model(stage.model, "transcribe")
        assert media is not None
        windows = await media.spoken(sounds, WINDOW_S)
        return await side_by_side(recognised(self._asking, model, one, self._begin) for one in windows)

    async def _last(self, understand: Any, raw: bytes, revision: str | None = None) -> tuple[Any, Generation]:
        body, plan = await understand(self._last_asking, raw)
        model = with_fields(plan.model, name=self.name)
        plan = replace(plan, model=model, revised_prompt=revision, priced_as=plan.model.name)
        token_counts = [call.tokens() for call in self._calls]
        call = await self._begin(plan, Adopted(self.id, self._came))
        call.before = sum(u[0] for u in token_counts), sum(u[1] for u in token_counts), sum(u[2] for u in token_counts)
        return body, call

    async def _begin(self, plan: GenerationPlan, adoption: Adopted | None = None) -> Generation:
        """A stage's job, in what is left of the request's time. Raises: DeadlineOver, StoreDown."""
        remaining_s = self._ends - clock.now()
        if remaining_s <= 0:
            raise DeadlineOver
        body = self._body
        plan = replace(
            plan,
            timeout_s=remaining_s if adoption is None else self._ends - adoption.came,
            priority=body.urgency,
            aside=body.aside,
        )
        charge = self._charge
        if charge is not None and adoption is None:
            charge = StageCharge(charge)
        call = Generation(
            plan,
            dispatcher=self._state.dispatcher,
            client_left=partial(client_left, self._receive),
            charge=charge,
            adoption=adoption,
            client=self._state.api_keys.client(self._scope),
            x_request_id=x_request_id.own_of(self._scope) or self.id,
            trace=trace_of(self._scope),
        )
        self._calls.append(call)
        return call
