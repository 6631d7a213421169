"""Cohere's embeddings, as vLLM serves them too: what a body means, and what its answer looks like."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from app.dispatch.asking import Asking
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models.models import Model
from app.endpoints import COHERE_EMBEDDINGS
from app.errors import PromptTooLong, RequestError
from app.openai.content_parts import TextPart, joined
from app.openai.embeddings import vector_length
from app.openai.encoding import EncodingWriter, check_count, encoding_plan, tokenized
from app.openai.schemas import ModelRequest
from app.openai.vector_answers import CohereEmbeddings, TypedEmbeddings
from app.openai.vector_forms import FORMS, VectorForm
from app.schemas.body import MOST, Body, Some
from app.schemas.neutral import neutral
from app.schemas.validation import parse_off_loop

# Cohere's kinds of texts, each with the names that sentence-transformers has for the same.
_KINDS: Mapping[str, tuple[str, ...]] = {
    "search_query": ("query",),
    "search_document": ("document", "passage"),
    "classification": (),
    "clustering": (),
}
_SHOWN = 64  # characters of a wrong kind


class EmbedInput(Body):
    """A text in parts."""

    content: Annotated[Some[TextPart], Field(min_length=1, max_length=MOST)]


@neutral({"images": ([],)})
class CohereEmbeddingRequest(ModelRequest):
    texts: Some[str] | None = None
    inputs: Some[EmbedInput] | None = None
    input_type: str | None = None
    embedding_types: Some[VectorForm] | None = None
    output_dimension: Annotated[int, Field(ge=1)] | None = None
    truncate: Literal["NONE", "START", "END"] | None = None  # END if not given
    # Of each text. Not by Cohere's name, which is that of an answer's length in what a client may ask for.
    longest: int | None = Field(None, ge=1, alias="max_tokens")

    @property
    def side(self) -> str:
        """The field that has the texts."""
        return "texts" if self.inputs is None else "inputs"

    @property
    def all_texts(self) -> list[str]:
        return self.texts or [joined(one.content) for one in self.inputs or ()]

    def check(self) -> None:
        if self.texts is None and self.inputs is None:
            raise RequestError("'texts' is missing.", param="texts")
        if self.texts is not None and self.inputs is not None:
            raise RequestError("'inputs' can't be used with 'texts'.", param="inputs")
        check_count(self.texts or self.inputs or (), self.side)


async def understand(asking: Asking, raw: bytes) -> tuple[CohereEmbeddingRequest, GenerationPlan]:
    """Raises: XylemError."""
    body = await asking.served(await parse_off_loop(CohereEmbeddingRequest, raw), "embeddings")
    body.check()
    return body, await asking.serving.off_loop(raw, lambda: _plan(asking, body))


def _plan(asking: Asking, body: CohereEmbeddingRequest) -> GenerationPlan:
    model = asking.find_model(body.model, "embed")
    dimensions = vector_length(model, body.output_dimension, "output_dimension")
    most, least = min(body.longest or model.context_len, model.context_len), model.tokenizer.added_tokens + 1
    if most < least:
        raise RequestError(f"'max_tokens' has to be at least {least} for {model.name}.", param="max_tokens")
    encode = partial(_encoded, model, _instruction(model, body.input_type), most, body.truncate or "END")
    tokens = tokenized(model, body.all_texts, body.side, encode)
    return encoding_plan(asking, body, COHERE_EMBEDDINGS.prefix, model, tokens, dimensions=dimensions)


def _instruction(model: Model, kind: str | None) -> str:
    """The instruction that the model wants in front of a text of this kind. Raises: RequestError."""
    if kind is None:
        return ""
    for name in (kind, *_KINDS.get(kind, ())):
        if name in model.instructions:
            return model.instructions[name]
    if kind in _KINDS:
        return ""
    kinds = ", ".join(sorted({*_KINDS, *model.instructions}))
    raise RequestError(f"Unsupported input_type '{kind[:_SHOWN]}': {model.name} has {kinds}.", param="input_type")


def _encoded(model: Model, instruction: str, most: int, truncate: str, text: str, where: str) -> list[int]:
    """`where`: the text's place in the request. Raises: PromptTooLong."""
    if truncate != "NONE":
        return model.tokenizer.shortened(text, most, instruction, keeps_end=truncate == "START")
    tokens = model.encode(instruction + text, where)
    if most < len(tokens) <= model.context_len:  # more are refused as everywhere
        problem = f"'{where}' has {len(tokens)} tokens, and 'max_tokens' is {most}"
        raise PromptTooLong(f"{problem}: 'truncate' may be START or END.", param=where)
    return tokens


class CohereEmbeddingWriter(EncodingWriter[CohereEmbeddings]):
    def __init__(self, call: GenerationBase, body: CohereEmbeddingRequest) -> None:
        super().__init__(call)
        self._forms: list[VectorForm] = list(dict.fromkeys(body.embedding_types or ["float"]))
        self._times = len(self._forms)
        self._texts = body.texts

    def answer(self) -> CohereEmbeddings:
        vectors, tokens = self.raw(), self._call.prompt_tokens
        embeddings: TypedEmbeddings = {}
        for form in self._forms:
            embeddings[form] = [FORMS[form](raw) for raw in vectors]
        answer: CohereEmbeddings = {
            "id": self._call.id,
            "response_type": "embeddings_by_type",
            "embeddings": embeddings,
            "texts": self._texts or [],
            "meta": {
                "api_version": {"version": "2"},
                "billed_units": {"input_tokens": tokens, "image_tokens": 0},
                "tokens": {"input_tokens": tokens},
            },
        }
        if self._texts is None:
            del answer["texts"]
        return answer
