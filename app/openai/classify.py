"""Classes of texts, in vLLM's shape."""

from collections.abc import Sequence
from typing import Literal

from app.dispatch.asking import Asking
from app.dispatch.generation_base import GenerationBase
from app.dispatch.generation_plan import GenerationPlan
from app.endpoints import CLASSIFY
from app.openai.answer_types import Envelope
from app.openai.encoding import EncodingWriter, check_count, encoding_plan, tokenized
from app.openai.envelope import envelope
from app.openai.schemas import ModelRequest
from app.openai.vector_answers import Classes, Classified
from app.openai.vector_forms import floats
from app.schemas.body import Some
from app.schemas.neutral import NEUTRAL_OF_ENCODING, neutral
from app.schemas.validation import parse_off_loop


@neutral(NEUTRAL_OF_ENCODING)
class ClassifyRequest(ModelRequest):
    input: str | Some[str]


async def understand(asking: Asking, raw: bytes) -> tuple[ClassifyRequest, GenerationPlan]:
    """Raises: XylemError."""
    body = await asking.served(await parse_off_loop(ClassifyRequest, raw), "classify")
    return body, await asking.serving.off_loop(raw, lambda: _plan(asking, body))


def _plan(asking: Asking, body: ClassifyRequest) -> GenerationPlan:
    model = asking.find_model(body.model, "classify")
    inputs = [body.input] if isinstance(body.input, str) else body.input
    check_count(inputs, "input")
    return encoding_plan(asking, body, CLASSIFY.prefix, model, tokenized(model, inputs, "input"))


def best_label(probs: Sequence[float], labels: Sequence[str]) -> str | None:
    """The name of the likeliest class; None: it has none."""
    best = max(range(len(probs)), key=probs.__getitem__)
    return labels[best] if best < len(labels) else None


class ClassifyWriter(EncodingWriter[Classes]):
    def __init__(self, call: GenerationBase, _body: ClassifyRequest) -> None:
        super().__init__(call)

    def answer(self) -> Classes:
        data = [self._classified(index, floats(raw).tolist()) for index, raw in enumerate(self.raw())]
        head: Envelope[Literal["list"]] = envelope(self._call, "list")
        return {**head, "data": data, "usage": self.usage()}

    def _classified(self, index: int, probs: list[float]) -> Classified:
        label = best_label(probs, self._call.model.labels)
        return {"index": index, "label": label, "probs": probs, "num_classes": len(probs)}
