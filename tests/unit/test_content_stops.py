"""Stop strings count in an answer's content only, however an engine cuts it into steps, and whoever goes on with it."""

import random
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.dialects.content_spans import SpanParser
from app.dialects.families import DIALECTS
from app.dialects.parts import Arguments
from app.engines.base import StepOutput
from app.messages.job import ContentRules, PartialOutput, Sampling
from app.runner.content_stops import ContentStops, StopFinder
from app.tokenizing.tokenizer import load_tokenizer
from tests.dialect_parts import parts_of, texts
from tests.jobs import job
from tests.models import MODEL_DIR
from tests.present import present
from tests.unit import test_dialect_texts, test_output_parser
from tests.unit.test_dialect_texts import TEXTS
from tests.unit.test_output_parser import WRITTEN

TOOLS = test_dialect_texts.TOOLS | test_output_parser.TOOLS
TOKENIZER = load_tokenizer(MODEL_DIR)
STOP = "Question:"
RESTATED = "<think>I restate Question: what is asked.</think>\n\nThe answer is 42."
CALL = '<tool_call>\n{"name": "run", "arguments": {"code": "Question: 7"}}\n</tool_call>'


def ended(
    text: str | list[str], *stops: str, dialect: str = "qwen3", size: int = 4, begun: bool = False, **sampling: Any
) -> tuple[str, Any, int]:
    """The text that goes out of these pieces, the stop string, and the number of steps that were examined."""
    parser = SpanParser(DIALECTS[dialect], TOOLS, begun=begun)
    choice = ContentStops(parser, Sampling(100, stop=stops, **sampling))
    out = ""
    pieces = text if isinstance(text, list) else [text[at : at + size] for at in range(0, len(text), size)]
    for n, piece in enumerate(pieces, 1):
        output = choice.step(StepOutput(piece, [1], finish="stop" if n == len(pieces) else None))
        out += output.text
        if output.finish is not None:
            return out, output.stop, n
    raise AssertionError("it has no end")


def content(text: str, dialect: str = "qwen3", **place: bool) -> str:
    return texts(parts_of(DIALECTS[dialect], TOOLS, [text], **place))[1]


@pytest.mark.parametrize("size", [1, 3, 4, 1000])
@pytest.mark.parametrize(("text", "begun", "shown", "stop"), [
    (RESTATED, False, RESTATED, None),
    (RESTATED.removeprefix("<think>"), True, RESTATED.removeprefix("<think>"), None),
    (RESTATED + " Question: and?", False, RESTATED + " ", STOP),
    (CALL, False, CALL, None),
    ("Hm. " + CALL + "\nQuestion: b", False, "Hm. " + CALL + "\n", STOP),
    ("Quest" + CALL + "ion: b", False, "Quest" + CALL + "ion: b", None),
    ("A Quest, a Question: b", False, "A Quest, a ", STOP),
    ("A <tool_call> is no Question: b", False, "A <tool_call> is no ", STOP),
    ("A Question", False, "A Question", None),
    (STOP, False, "", STOP),
])  # fmt: skip
def test_a_stop_string_counts_in_content_only(text: str, begun: bool, shown: str, stop: str | None, size: int) -> None:
    assert ended(text, STOP, size=size, begun=begun)[:2] == (shown, stop)


def test_whitespace_around_reasoning_is_no_content_that_ends_an_answer() -> None:
    """A newline as stop string would otherwise end each answer of a model that reasons before the answer begins."""
    out, stop, _ = ended("<think>\na\n\nb\n</think>\n\nOne line.\nAnother.", "\n", "\n\n")
    assert (content(out), stop) == ("One line.", "\n")
    assert ended("Sure.\n\n" + CALL, "\n\n")[1] is None


def test_nothing_is_looked_at_behind_the_stop_string() -> None:
    """Tokens behind it are not counted: the step that completes it is the last."""
    text = "<think>a</think>One Question: " + "b" * 100
    _, _, steps = ended(text, STOP, size=1)
    assert steps == text.index(STOP) + len(STOP)


@pytest.mark.parametrize(("sampling", "out", "stop"), [
    ({"include_stop": True}, "a Question:", STOP), ({"min_tokens": 3}, "a Question: Question: c", None),
    ({"min_tokens": 2}, "a Question: ", STOP),
])  # fmt: skip
def test_options_of_stop_strings_are_kept(sampling: dict[str, Any], out: str, stop: str | None) -> None:
    assert ended(["a Question:", " ", "Question:", " c"], STOP, **sampling)[:2] == (out, stop)


def test_text_is_held_back_only_while_it_may_be_the_beginning_of_a_stop_string() -> None:
    """Reasoning and arguments of calls come as they are written."""
    choice = ContentStops(SpanParser(DIALECTS["qwen3"], TOOLS), Sampling(100, stop=(STOP,)))
    texts = [choice.step(StepOutput(piece, [1])).text for piece in ["<think>", "Question:", " a", "</think>", "Hello"]]
    assert texts[:4] == ["<think>", "Question:", " a", "</think>"]
    texts += [choice.step(StepOutput(piece, [1])).text for piece in (CALL[:45], CALL[45:55])]
    assert "".join(texts).endswith("Hello" + CALL[:55])


WORDS = ["<think>", "</think>", "\n", " ", "St", "op", "S", "t", CALL, "{", "<", "</", "é", '"', "<tool_call>", "s"]


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from(WORDS), max_size=30).map("".join),
    st.lists(st.integers(0, 200), max_size=8),
    st.integers(0, 8),
    st.booleans(),
)
def test_however_an_answer_is_cut_and_moved_it_ends_at_the_same_place(
    text: str, cuts: list[int], moved: int, begun: bool
) -> None:
    """The worker that continues it makes the text again, and sends the part that is not out yet."""
    sampling = Sampling(100, stop=("Stop", "ts"))
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]

    def new(sent: str = "") -> ContentStops:
        return ContentStops(SpanParser(DIALECTS["qwen3"], TOOLS, begun=begun), sampling, sent)

    whole = new().step(StepOutput(text, [1], finish="stop"))
    choice, out, output = new(), "", None
    for n, piece in enumerate(pieces):
        pending_text = ""
        if n == moved:
            choice, pending_text = new(out), "".join(pieces[:n])[len(out) :]
        output = choice.step(StepOutput(pending_text + piece, [1], finish="stop" if n == len(pieces) - 1 else None))
        out += output.text
        if output.finish is not None:
            break
    assert output is not None
    assert (out, output.stop) == (whole.text, whole.stop)
    if whole.stop is None and CALL not in text and text.count("<think>") + begun < 2:
        assert not any(stop in content(text, begun=begun) for stop in sampling.stop)


@pytest.mark.parametrize("name", WRITTEN)
def test_in_every_family_a_stop_string_ends_the_content(name: str) -> None:
    """`T` is the content, and what calls are written with is none."""
    text = WRITTEN[name]
    for size in (1, 5, 1000):
        out, stop, _ = ended(text, "T", dialect=name, size=size)
        assert (stop, content(out, name)) == ("T", "")
        assert ended(text, '"s"', "f", "x", dialect=name, size=size)[:2] == (text, None)


@pytest.mark.parametrize("case", TEXTS, ids=lambda case: f"{case['dialect']}-{case['title']}")
def test_the_spans_of_content_are_its_text(case: dict[str, Any]) -> None:
    text, rng = case["text"], random.Random(case["text"])
    for size in (1, 2, 7, 10_000):
        place = {name: case.get(name, False) for name in ("begun", "over")}
        parser = SpanParser(DIALECTS[case["dialect"]], TOOLS, **place)
        parts, spans, fed_chars, settled_chars = [], [], 0, 0
        while fed_chars < len(text) or not fed_chars:
            piece = text[fed_chars : fed_chars + rng.randint(1, size)]
            parts += parser.feed(piece)
            fed_chars += len(piece)
            new = parser.spans()
            assert all(begin >= settled_chars for begin, _ in new)
            assert settled_chars <= parser.settled <= fed_chars
            spans, settled_chars = [*spans, *new], parser.settled
        parts += parser.close()
        spans += parser.spans()
        assert "".join(text[a:b] for a, b in spans) == case.get("content", "")
        assert texts(parts) == (case.get("reasoning", ""), case.get("content", ""))
        assert any(isinstance(part, Arguments) for part in parts) == bool(case.get("calls"))


async def _steps(outputs: Sequence[StepOutput], closed: list[bool]) -> AsyncGenerator[StepOutput, None]:
    try:
        for output in outputs:
            yield output
    finally:
        closed.append(True)


async def test_a_request_ends_when_all_its_choices_have() -> None:
    """Text that an engine makes of a choice after its stop string, for the sake of the others, is dropped."""
    sampling = Sampling(100, stop=(STOP,), n=2, content=ContentRules("qwen3"))
    engine_outputs = [
        StepOutput("a Question: ", [1], 0), StepOutput("b", [1], 1), StepOutput("more", [1], 0),
        StepOutput("c", [1], 1, "length"), StepOutput("and more", [1], 0),
    ]  # fmt: skip
    closings: list[bool] = []
    steps = StopFinder(lambda: TOKENIZER).steps(job(sampling=sampling), _steps(engine_outputs, closings))
    outputs = [(o.index, o.text, o.finish, o.stop) async for o in steps]
    assert outputs == [(0, "a ", "stop", STOP), (1, "", None, None), (1, "bc", "length", None)]
    assert closings == [True]


async def test_an_answer_that_has_a_beginning_goes_on_behind_it() -> None:
    """The text that is out is made of its tokens, as engines do."""
    text = "<think>Question:</think> One Quest"
    tokens = TOKENIZER.encode(text, add_special_tokens=False)
    sampling = Sampling(100, stop=(STOP,), special_tokens=True, content=ContentRules("qwen3", begun=False))
    out = present(StopFinder(lambda: TOKENIZER).first(job(sampling=sampling), StepOutput(text, tokens)))
    assert text.startswith(out.text)
    assert len(out.text) < len(text)
    later = job(sampling=sampling, begun=[PartialOutput(tokens, len(out.text))])
    rest = StepOutput(text[len(out.text) :] + "ion: 7", [1])
    outputs = [o async for o in StopFinder(lambda: TOKENIZER).steps(later, _steps([rest], []))]
    assert out.text + outputs[0].text == "<think>Question:</think> One "
    assert (outputs[0].finish, outputs[0].stop) == ("stop", STOP)
