"""The error for a request that names a pipeline, where only a model can answer."""

from typing import Any

from app.errors import RequestError
from app.pools.schema import Pipeline


class PipelineNamed(RequestError):
    """The endpoint that serves the pipeline catches it; everywhere else it is the client's error."""

    def __init__(self, body: Any, pipeline: Pipeline, *, paints: bool) -> None:
        """`body`: the request. `paints`: the pipeline makes pictures, not chats."""
        self.body, self.pipeline, self.paints = body, pipeline, paints
        path = "/v1/images/generations" if paints else "/v1/chat/completions"
        super().__init__(
            f"The model '{body.model}' is a pipeline: POST {path} serves it, and nothing else does.", param="model"
        )
