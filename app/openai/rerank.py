"""Documents ordered by how well they fit a query, in the shape that Jina, Cohere and vLLM share."""

from typing import Annotated

from pydantic import Field

from app.dispatch.asking import Asking
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.endpoints import RERANK
from app.openai.encoding import EncodingWriter, check_count, cosine, encoding_plan, tokenized
from app.openai.schemas import ModelRequest
from app.openai.vector_answers import Ranked, Reranked
from app.openai.vector_forms import floats
from app.schemas.body import Body, Some
from app.schemas.neutral import NEUTRAL_OF_ENCODING, neutral
from app.schemas.validation import parse_off_loop


class Document(Body):
    text: str


@neutral(NEUTRAL_OF_ENCODING)
class RerankRequest(ModelRequest):
    query: str
    documents: Some[str | Document]
    top_n: Annotated[int, Field(ge=0)] | None = None  # 0: all
    return_documents: bool | None = None  # true if not given

    @property
    def texts(self) -> list[str]:
        """The documents' texts."""
        return [document if isinstance(document, str) else document.text for document in self.documents]

    def check(self) -> None:
        check_count(self.documents, "documents")


async def understand(asking: Asking, raw: bytes) -> tuple[RerankRequest, GenerationPlan]:
    """Raises: XylemError."""
    body = await asking.served(await parse_off_loop(RerankRequest, raw), "rerank")
    body.check()
    return body, await asking.serving.off_loop(raw, lambda: _plan(asking, body))


def _plan(asking: Asking, body: RerankRequest) -> GenerationPlan:
    model = asking.find_model(body.model, "embed")
    tokens = tokenized(model, [body.query], "query") + tokenized(model, body.texts, "documents")
    return encoding_plan(asking, body, RERANK.prefix, model, tokens)


class RerankWriter(EncodingWriter[Reranked]):
    def __init__(self, call: GenerationBase, body: RerankRequest) -> None:
        super().__init__(call)
        self._texts, self._top = body.texts, body.top_n or len(body.documents)
        self._shows = body.return_documents is not False

    def answer(self) -> Reranked:
        query, *documents = (floats(raw) for raw in self.raw())
        scores = [cosine(query, document) for document in documents]
        best = sorted(range(len(scores)), key=lambda index: -scores[index])[: self._top]
        results = [self._result(index, scores[index]) for index in best]
        return {"id": self._call.id, "model": self._call.model.name, "usage": self.usage(), "results": results}

    def _result(self, index: int, score: float) -> Ranked:
        if not self._shows:
            return {"index": index, "relevance_score": score}
        return {"index": index, "document": {"text": self._texts[index]}, "relevance_score": score}
