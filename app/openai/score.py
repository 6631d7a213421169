"""Scores of pairs of texts, in vLLM's shape: the cosine of their embeddings."""

from collections.abc import Mapping, Sequence
from typing import Literal

from app.dispatch.asking import Asking
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.endpoints import SCORE
from app.errors import RequestError
from app.openai.answer_types import Envelope
from app.openai.encoding import EncodingWriter, check_count, cosine, encoding_plan, tokenized
from app.openai.envelope import envelope
from app.openai.schemas import ModelRequest
from app.openai.vector_answers import Score, Scores
from app.openai.vector_forms import floats
from app.schemas.body import Some
from app.schemas.neutral import NEUTRAL_OF_ENCODING, neutral
from app.schemas.validation import parse_off_loop

Texts = str | Some[str] | None
# Each name of the first side, and the names that the second one may have then.
_FIRST: Mapping[str, Sequence[str]] = {"text_1": ("text_2",), "queries": ("documents", "items"), "data_1": ("data_2",)}
_SIDES = [*_FIRST, *(name for names in _FIRST.values() for name in names)]


@neutral(NEUTRAL_OF_ENCODING)
class ScoreRequest(ModelRequest):
    text_1: Texts = None
    text_2: Texts = None
    # vLLM's other names of the same.
    queries: Texts = None
    documents: Texts = None
    items: Texts = None
    data_1: Texts = None
    data_2: Texts = None

    @property
    def sides(self) -> tuple[str, str]:
        """The fields that have the texts."""
        one = next((name for name in _FIRST if getattr(self, name) is not None), "text_1")
        return one, next((name for name in _FIRST[one] if getattr(self, name) is not None), _FIRST[one][0])

    @property
    def texts(self) -> tuple[list[str], list[str]]:
        """The texts of both sides. The first side has as many as the second, or one, which is compared with each."""
        one, two = (getattr(self, name) or [] for name in self.sides)
        return [one] if isinstance(one, str) else one, [two] if isinstance(two, str) else two

    def check(self) -> None:
        (first, second), (one, two) = self.sides, self.texts
        for name in (first, second):
            if getattr(self, name) is None:
                raise RequestError(f"'{name}' is missing.", param=name)
        for name in [name for name in _SIDES if name not in (first, second)]:
            if getattr(self, name) is not None:
                raise RequestError(f"'{name}' can't be used with '{first}' and '{second}'.", param=name)
        check_count(one, first)
        check_count(two, second)
        if len(one) not in (1, len(two)):
            problem = f"'{first}' has {len(one)} texts and '{second}' {len(two)}"
            raise RequestError(f"{problem}: '{first}' needs one, or as many as '{second}'.", param=first)


async def understand(asking: Asking, raw: bytes) -> tuple[ScoreRequest, GenerationPlan]:
    """Raises: XylemError."""
    body = await asking.served(await parse_off_loop(ScoreRequest, raw), "score")
    body.check()
    return body, await asking.serving.off_loop(raw, lambda: _plan(asking, body))


def _plan(asking: Asking, body: ScoreRequest) -> GenerationPlan:
    model = asking.find_model(body.model, "embed")
    (first, second), (one, two) = body.sides, body.texts
    tokens = tokenized(model, one, first) + tokenized(model, two, second)
    return encoding_plan(asking, body, SCORE.prefix, model, tokens)


def scores(vectors: Sequence[Sequence[float]], ones: int) -> list[float]:
    """The score of each text of the second side. `ones`: how many vectors are of the first."""
    one, two = vectors[:ones], vectors[ones:]
    pairs = zip(one if len(one) > 1 else [one[0]] * len(two), two, strict=True)
    return [cosine(a, b) for a, b in pairs]


class ScoreWriter(EncodingWriter[Scores]):
    def __init__(self, call: GenerationBase, body: ScoreRequest) -> None:
        super().__init__(call)
        self._ones = len(body.texts[0])

    def answer(self) -> Scores:
        numbers = scores([floats(raw) for raw in self.raw()], self._ones)
        data: list[Score] = [
            {"index": index, "object": "score", "score": number} for index, number in enumerate(numbers)
        ]
        head: Envelope[Literal["list"]] = envelope(self._call, "list")
        return {**head, "data": data, "usage": self.usage()}
