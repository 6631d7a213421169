"""Compares the API's prompts with those of transformers' renderer, for each template and conversation."""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from app.errors import RequestError
from app.openai.efforts import EFFORTS
from app.openai.prompt import chat_prompt
from app.openai.schemas import ChatRequest
from app.pools.schema import Pool
from app.schemas.validation import parse
from app.tokenizing.tokenizer import Tokenizer
from ops.templates.conversations import CONVERSATIONS
from ops.templates.packages import templates
from ops.templates.repairs import REPAIRS, Shown, as_sent, with_effort

_MODEL_DIR = Pool(model="mock", engine="mock").model_dir
_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
# Values that a template has taken for texts.
_WRITTEN_OUT = re.compile(r"\bNone\b|\bnull\b|\{['\"]type['\"]: ?['\"](text|thinking)['\"]")
_SHORT_ID = re.compile(r"\b[0-9a-f]{9}\b")
_MOST = 3  # repairs at once
_CHOSEN = ("tools", "chat_template_kwargs.")  # parameters that are refused where a template doesn't know them


class Outcome(NamedTuple):
    template: str
    conversation: str
    kind: str  # equal, repaired, refused by both, refused by choice, only ours, wrong
    why: str = ""

    @property
    def wrong(self) -> bool:
        return self.kind == "wrong"


def outcomes(files: Sequence[Path] | None = None) -> Iterator[Outcome]:
    """Raises: Unavailable without the templates' packages."""
    for file in templates() if files is None else files:
        tokenizer = Tokenizer(_MODEL_DIR, file)
        tokenizer.special = _SPECIAL
        for name, body in CONVERSATIONS.items():
            yield Outcome(file.stem, name, *compared(tokenizer, body))


def templates_wrong(each: int = 1) -> int:
    """Number of wrong outcomes with each so many-th template. Raises: Unavailable."""
    return sum(outcome.wrong for outcome in outcomes(templates()[::each]))


def compared(tokenizer: Tokenizer, body: Mapping[str, Any]) -> tuple[str, str]:
    """The kind of an outcome, and why."""
    ours, refusal = _ours(tokenizer, body)
    if isinstance(refusal, RequestError) and (refusal.param or "").startswith(_CHOSEN):
        return "refused by choice", str(refusal)
    original = as_sent(body)
    if ours is not None and ours == _theirs(tokenizer, original, body) and not _WRITTEN_OUT.search(ours):
        return "equal", ""
    closest: dict[str, str] = {}
    for effort, variant in _efforts(original).items():
        candidates = _best(tokenizer, variant, body)
        closest = closest or candidates
        if ours is not None and (why := candidates.get(_comparable(ours))) is not None:
            repairs = [one for one in (effort, why) if one]
            return ("repaired", ", ".join(repairs)) if repairs else ("equal", "")
    if ours is None:
        return ("wrong", f"refused: {refusal}") if closest else ("refused by both", str(refusal))
    if not closest:
        return "only ours", ""
    text, why = next(iter(closest.items()))
    return "wrong", f"{why}: {_difference(_comparable(ours), text)}"


def _efforts(sent: Shown) -> dict[str, Shown]:
    """The conversation as it was sent, and with each other effort if it has one, by the repair's name."""
    if "reasoning_effort" not in sent.variables:
        return {"": sent}
    others = {f"effort is {word}": with_effort(word) for word in EFFORTS} | {"effort is left out": with_effort(None)}
    return {"": sent} | {name: sent._replace(variables=variables) for name, variables in others.items()}


def _ours(tokenizer: Tokenizer, body: Mapping[str, Any]) -> tuple[str | None, RequestError | None]:
    request = parse(ChatRequest, orjson.dumps({"model": "m", **body}))
    request.check()
    try:
        return chat_prompt(tokenizer, request.messages, request), None
    except RequestError as exc:
        return None, exc


def _theirs(tokenizer: Tokenizer, shown: Shown, body: Mapping[str, Any]) -> str | None:
    from transformers.utils.chat_template_utils import render_jinja_template

    goes_on = body.get("continue_final_message", False)
    try:
        texts, _ = render_jinja_template(
            [shown.messages],
            tools=shown.tools,
            chat_template=tokenizer.template,
            continue_final_message=goes_on,
            add_generation_prompt=body.get("add_generation_prompt", not goes_on),
            **tokenizer.special,
            **shown.variables,
        )
    except Exception:  # noqa: BLE001 (a template is somebody else's program: it may raise anything)
        return None
    return str(texts[0])


def _best(tokenizer: Tokenizer, sent: Shown, body: Mapping[str, Any]) -> dict[str, str]:
    """Transformers' texts that write out the fewest values, show the most, and need the fewest repairs; with these."""
    texts = _texts(sent)
    best: tuple[int, ...] = ()
    best_texts: dict[str, str] = {}
    for names in _sets(sent):
        variant = _repaired(sent, names)
        text = _theirs(tokenizer, variant, body)
        if text is None:
            continue
        rank = (-len(_WRITTEN_OUT.findall(text)), sum(one in text for one in texts), -len(names))
        if not best or rank > best:
            best, best_texts = rank, {}
        if rank == best:
            best_texts.setdefault(_comparable(text), ", ".join(names))
    return best_texts


def _sets(sent: Shown) -> Iterator[tuple[str, ...]]:
    changing = [[name for name in group if _repaired(sent, (name,)) != sent] for group in REPAIRS]
    groups = [names for names in changing if names]
    for size in range(min(_MOST, len(groups)) + 1):
        yield from chain.from_iterable(product(*selection) for selection in combinations(groups, size))


def _repaired(sent: Shown, names: Sequence[str]) -> Shown:
    variant = deepcopy(sent)
    for group in REPAIRS:
        for name in names:
            if name in group:
                group[name](variant)
    return variant


def _texts(sent: Shown) -> set[str]:
    """Texts that a prompt should show."""
    texts: set[str] = set()
    for message in sent.messages:
        content = message["content"] or ""
        texts |= {content} if isinstance(content, str) else {part["text"] for part in content}
        texts.add(message.get("reasoning_content", ""))
    return texts - {""}


def _comparable(text: str) -> str:
    """The text with short call ids replaced by the order in which they appear."""
    numbers: dict[str, int] = {}
    return _SHORT_ID.sub(lambda found: f"id {numbers.setdefault(found[0], len(numbers))}", text)


def _difference(ours: str, theirs: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    part = slice(max(0, at - 30), at + 60)
    return f"{ours[part]!r}, not {theirs[part]!r}"
