"""A client's request as dispatch meets it: what is served, whose request it is, and what that client may ask for."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.dispatch.media.media_reader import Asker
from app.dispatch.models.aliases import ANY, AliasTurn, B, Named
from app.dispatch.models.models import Model, find_model
from app.dispatch.models.pipeline_named import PipelineNamed
from app.dispatch.runtime import Deployment
from app.endpoints import ROWS, EndpointName
from app.errors import RequestError
from app.messages.kinds import Task
from app.tenants.limit_table import UNLIMITED, TenantLimits
from app.tenants.limits import check_model, check_tokens, may_ask, usual_priority

_TASKS: Mapping[EndpointName, Task] = {row.name: row.task for row in ROWS}
_NOBODY = Asker()


@dataclass(frozen=True, slots=True)
class Asking:
    serving: Deployment
    within: TenantLimits = UNLIMITED  # of the client
    asker: Asker = _NOBODY  # whose files it may name, and the media that it had when it came
    turn: AliasTurn = ANY  # among the models of an alias
    goes_on: bool = False  # its client may resume or repeat it, so the answer continues without the client
    explain: bool = False  # the client wants to know why it was placed where it was

    async def served(self, body: B, endpoint: EndpointName | None) -> B:
        """The body with the name of a model instead of an alias, and with its client's own defaults.

        Raises: RequestError, if it isn't for the endpoint; PipelineNamed, which is one; ModelNotFound and RequestError
        for what its client may not ask for.
        """
        if not body.model:
            body = body.model_copy(update={"model": self._only_model(endpoint)})
        if self.within is not UNLIMITED:
            body = _bounded(body, self.within)
        # What is chosen for an answer that may be asked for again stays chosen.
        if body.model not in self.serving.models and (self.turn.fixed or body.model not in self.serving.aliases.table):
            self.check_no_pipeline(body)
            await self.serving.look()  # another replica may have just added or changed it
        name = body.model
        if name in self.serving.aliases.table:
            name = self.serving.aliases.model(name, getattr(body, "prompt_cache_key", None), self.turn)
        model = self.serving.models.get(name)
        if endpoint and model is not None and model.endpoints is not None and endpoint not in model.endpoints:
            endpoints = ", ".join(sorted(model.endpoints))
            raise RequestError(f"The model '{name}' is served for {endpoints} only, not for {endpoint}.", param="model")
        return body if name == body.model else body.renamed(name)

    def _only_model(self, endpoint: EndpointName | None) -> str:
        """The model of a body that names none. Raises: RequestError unless it can only be one."""
        task = None if endpoint is None else _TASKS[endpoint]
        names = [m.name for m in self.serving.models.values() if m.parent is None and task in (None, m.task)]
        able = [name for name in names if may_ask(self.within, name)]
        if len(able) != 1:
            raise RequestError("'model' is missing.", param="model")
        return able[0]

    def find_model(self, name: str, task: Task | None = "generate") -> Model:
        """The model that `models.find_model` finds.

        Raises: ModelNotFound, RequestError, which name no model but the client's own.
        """
        model = self.serving.models.get(name)
        if model is not None and model.task == task:
            return model
        return find_model(self.serving.models, name, task, lambda other: may_ask(self.within, other))

    def check_no_pipeline(self, body: Named) -> None:
        """Raises: PipelineNamed."""
        if (pipeline := self.serving.pipelines.get(body.model)) is not None:
            raise PipelineNamed(body, pipeline, paints=self.serving.models[pipeline.stages[-1].model].task == "image")


def _bounded(body: B, limits: TenantLimits) -> B:
    """Raises: ModelNotFound, RequestError."""
    check_model(limits, body.model)
    check_tokens(limits, body)
    usual = usual_priority(limits)
    if usual is None or getattr(body, "priority", usual) is not None or getattr(body, "aside", False):
        return body
    return body.with_priority(usual)  # type: ignore[attr-defined, no-any-return] # a ModelRequest
