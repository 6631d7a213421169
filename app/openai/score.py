"""Scores of pairs of texts, in vLLM's shape: the cosine of their embeddings."""

from typing import Any

from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.dispatch.models import find_model
from app.dispatch.runtime import Deployment
from app.errors import RequestError
from app.openai.body import Some
from app.openai.encoding import EncodingWriter, check_count, cosine, encoding_plan, floats, tokenized
from app.openai.neutral import NEUTRAL_OF_ENCODING, neutral
from app.openai.schemas import ModelRequest
from app.openai.validation import parse_off_loop


@neutral(NEUTRAL_OF_ENCODING)
class ScoreRequest(ModelRequest):
    text_1: str | Some[str]
    text_2: str | Some[str]

    @property
    def texts(self) -> tuple[list[str], list[str]]:
        """The texts of both sides. The first side has as many as the second, or one, which is compared with each."""
        one, two = ([side] if isinstance(side, str) else list(side) for side in (self.text_1, self.text_2))
        return one, two

    def check(self) -> None:
        one, two = self.texts
        check_count(one, "text_1")
        check_count(two, "text_2")
        if len(one) not in (1, len(two)):
            raise RequestError(
                f"'text_1' has {len(one)} texts and 'text_2' {len(two)}: 'text_1' needs one, or as many as 'text_2'.",
                param="text_1",
            )


async def understand(state: Deployment, raw: bytes, *, explain: bool = False) -> tuple[ScoreRequest, GenerationPlan]:
    """Raises: XylemError."""
    body = await state.served(await parse_off_loop(ScoreRequest, raw), "score")
    body.check()
    return body, await state.off_loop(raw, lambda: _plan(state, body, explain=explain))


def _plan(state: Deployment, body: ScoreRequest, *, explain: bool) -> GenerationPlan:
    model = find_model(state.models, body.model, "embed")
    one, two = body.texts
    tokens = tokenized(model, one, "text_1") + tokenized(model, two, "text_2")
    return encoding_plan(state, body, "score-", model, tokens, explain=explain)


class ScoreWriter(EncodingWriter):
    def __init__(self, call: GenerationBase, body: ScoreRequest) -> None:
        super().__init__(call)
        self._ones = len(body.texts[0])

    def answer(self) -> dict[str, Any]:
        vectors = [floats(raw) for raw in self.raw()]
        one, two = vectors[: self._ones], vectors[self._ones :]
        pairs = zip(one if len(one) > 1 else one * len(two), two, strict=True)
        data = [{"index": index, "object": "score", "score": cosine(a, b)} for index, (a, b) in enumerate(pairs)]
        return self._call.envelope("list") | {"data": data, "usage": self.usage()}
