"""Embeddings: what a body means, and what its answer looks like."""

from typing import Annotated, Any, Literal

from pydantic import Field

from app.dispatch.asking import Asking
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models.models import Model
from app.endpoints import EMBEDDINGS
from app.errors import RequestError
from app.openai.answer_types import Envelope
from app.openai.encoding import EncodingWriter, check_count, encoding_plan, tokenized
from app.openai.envelope import envelope
from app.openai.schemas import ModelRequest, TokenId
from app.openai.vector_answers import Embedding, Embeddings
from app.openai.vector_forms import FORMS
from app.schemas.body import Some
from app.schemas.neutral import NEUTRAL_OF_ENCODING, neutral
from app.schemas.validation import parse_off_loop


@neutral(NEUTRAL_OF_ENCODING)
class EmbeddingRequest(ModelRequest):
    input: str | Some[TokenId] | Some[str] | Some[Some[TokenId]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None


async def understand(asking: Asking, raw: bytes) -> tuple[EmbeddingRequest, GenerationPlan]:
    """Raises: XylemError."""
    body = await asking.served(
        await parse_off_loop(EmbeddingRequest, raw, asking.serving.longest_context), "embeddings"
    )
    return body, await asking.serving.off_loop(raw, lambda: _plan(asking, body))


def _plan(asking: Asking, body: EmbeddingRequest) -> GenerationPlan:
    model = asking.find_model(body.model, "embed")
    raw_input: Any = body.input
    inputs = [raw_input] if isinstance(raw_input, str) or (raw_input and isinstance(raw_input[0], int)) else raw_input
    check_count(inputs, "input")
    dimensions = vector_length(model, body.dimensions, "dimensions")
    tokens = tokenized(model, inputs, "input")
    return encoding_plan(asking, body, EMBEDDINGS.prefix, model, tokens, dimensions=dimensions)


def vector_length(model: Model, length: int | None, param: str) -> int | None:
    """`param`: the request's field that asks for it. None: the model's own. Raises: RequestError."""
    if length in (None, model.vector_length):
        return None
    if length not in model.dimensions:
        some = ", ".join(map(str, model.dimensions)) if isinstance(model.dimensions, list) else ""
        which = f"only vectors of {some} numbers" if some else "only vectors of its own length"
        raise RequestError(f"'{param}': {model.name} has {which}, not of {length}.", param=param)
    return length


class EmbeddingWriter(EncodingWriter[Embeddings]):
    def __init__(self, call: GenerationBase, body: EmbeddingRequest) -> None:
        super().__init__(call)
        self._shown = FORMS[body.encoding_format or "float"]

    def answer(self) -> Embeddings:
        data: list[Embedding] = [
            {"object": "embedding", "index": index, "embedding": self._shown(raw)}
            for index, raw in enumerate(self.raw())
        ]
        head: Envelope[Literal["list"]] = envelope(self._call, "list")
        return {**head, "data": data, "usage": self.usage()}
