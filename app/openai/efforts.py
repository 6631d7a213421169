"""Effort of a model's reasoning: the words of a request, and which of them its chat template tells apart.

A template takes the word as a variable's value, as a variable's name, and as a switch that turns reasoning on and off.
Which words it tells apart is tried out once, by rendering.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, get_args

from app.errors import RequestError
from app.tokenizing.own_template import OwnTemplate
from app.tokenizing.tokenizer import Tokenizer

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: Sequence[Effort] = get_args(Effort)  # from the least to the most
SWITCHES = ("enable_thinking", "thinking")  # by which templates turn reasoning off
IGNORED: Literal["ignored"] = "ignored"  # instead of a word: the template knows none
_WORDS = ("reasoning_effort", "thinking_effort")  # variables whose value is the word
_FLAGS = {word: f"{word}_effort" for word in EFFORTS}  # that are true for a word: NVIDIA's
_UNHEARD = "trial-of-an-effort"
_ASKED = [{"role": "user", "content": "?"}]


def effort_variables(tokenizer: Tokenizer, effort: Effort) -> dict[str, Any]:
    """Variables for the template: the word that it knows, and its switches; nothing if it knows none."""
    word = nearest(tokenizer, effort)
    return {} if word == IGNORED else {**_known(tokenizer)[word]}


def nearest(tokenizer: Tokenizer, effort: Effort) -> Effort | Literal["ignored"]:
    """The word that the template knows; of two that are as near, the one for less. Or `ignored`."""
    words = _known(tokenizer)
    if effort in words:
        return effort
    place = EFFORTS.index(effort)
    return min(words, key=lambda word: abs(EFFORTS.index(word) - place)) if words else IGNORED


def known_efforts(tokenizer: Tokenizer) -> list[Effort]:
    """The words that the template tells apart, from the least to the most."""
    return [*_known(tokenizer)]


def _known(tokenizer: Tokenizer) -> Mapping[Effort, dict[str, Any]]:
    """Variables for the template by the words that it knows. A request's own is not tried: it gets any word."""
    if not {*_WORDS, *SWITCHES, *_FLAGS.values()} & tokenizer.template_variables:
        return {}
    if isinstance(tokenizer.compiled, OwnTemplate):
        return {word: _variables(tokenizer, word) for word in EFFORTS}
    return _told_apart(tokenizer)


@lru_cache
def _told_apart(tokenizer: Tokenizer) -> Mapping[Effort, dict[str, Any]]:
    """One word, from `medium` on, is what a template does for words that it does not know, if it takes them."""
    unheard = _rendered(tokenizer, _variables(tokenizer, _UNHEARD))
    by_word = {word: _variables(tokenizer, word) for word in EFFORTS}
    texts = {word: _rendered(tokenizer, variables) for word, variables in by_word.items()}
    if texts["none"] is None:  # the template has another word for it, or does so without any
        by_word["none"] = {name: value for name, value in by_word["none"].items() if name not in _WORDS}
        texts["none"] = _rendered(tokenizer, by_word["none"])
    words = {word for word, text in texts.items() if text not in (None, unheard)}
    if texts["none"] in [texts[word] for word in words - {"none"}]:
        words.discard("none")
    if words and unheard is not None:
        words |= set([word for word in EFFORTS[EFFORTS.index("medium") :] if word not in words][:1])
    return {word: by_word[word] for word in EFFORTS if word in words}


def _rendered(tokenizer: Tokenizer, variables: dict[str, Any]) -> str | None:
    try:
        return tokenizer.render_chat(_ASKED, **variables)
    except RequestError:
        return None


def _variables(tokenizer: Tokenizer, word: str) -> dict[str, Any]:
    variables = dict.fromkeys(SWITCHES, word != "none") | dict.fromkeys(_WORDS, word)
    variables |= {flag: word == of for of, flag in _FLAGS.items()}
    return {name: value for name, value in variables.items() if name in tokenizer.template_variables}
