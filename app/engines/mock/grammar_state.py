"""Constrains answers to a grammar, with llguidance: it computes the tokens that may come next."""

from collections.abc import Sequence
from functools import lru_cache

from llguidance import LLMatcher, LLTokenizer

from app.errors import EngineFailed, RequestError
from app.grammars.compile import compiled
from app.messages.events import GRAMMAR
from app.messages.job import Grammar
from app.tokenizing.tokenizer import Tokenizer

UNFOLLOWED = "The grammar of this request allows nothing here, or became too large to follow."


class GrammarState:
    """The state of the grammar for one choice."""

    def __init__(self, matcher: LLMatcher, eos_id: int | None) -> None:
        self._matcher, self._eos_id = matcher, eos_id
        self._mask: bytes | None = None  # a bit for each token, the lowest first; None: not computed yet
        self.over = False  # the answer has ended; later tokens are unconstrained

    def begin(self) -> None:
        """Computes what is allowed first. Raises: RequestError, before the answer begins."""
        self._allowed()

    def allows(self, token: int) -> bool:
        mask = self._allowed()
        return token >> 3 < len(mask) and bool(mask[token >> 3] >> (token & 7) & 1)

    def after(self, token: int) -> int:
        """The first allowed token from this one on, wrapping around. There always is one."""
        mask = self._allowed()
        first, bit = divmod(token % (8 * len(mask)), 8)
        here = mask[first] >> bit << bit
        if not here:
            rest = mask[first + 1 :].lstrip(b"\0")
            first = len(mask) - len(rest)
            if not rest:
                first = len(mask) - len(mask.lstrip(b"\0"))
            here = mask[first]
        return 8 * first + (here & -here).bit_length() - 1

    def accept(self, tokens: Sequence[int]) -> bool:
        """Advances by `tokens`; False: one of them was not allowed."""
        self._mask = None
        for token in tokens:
            self.over = self.over or token == self._eos_id
            if not self.over and not self._matcher.consume_token(token):
                return False
        return True

    def _allowed(self) -> bytes:
        if self._mask is None:
            self._mask = self._matcher.compute_bitmask()
            if self._matcher.is_error():
                raise RequestError(UNFOLLOWED, param=GRAMMAR)
        return self._mask


def grammar_states(tokenizer: Tokenizer, grammar: Grammar, beginnings: Sequence[Sequence[int]]) -> list[GrammarState]:
    """One state for each choice, after its output `beginnings`. Blocks for milliseconds, the first time for longer.

    Raises: RequestError for a grammar that is invalid or too large, EngineFailed if the output so far does not fit it.
    """
    own_tokenizer = _tokenizer(tokenizer)
    try:
        first = LLMatcher(own_tokenizer, compiled(grammar), log_level=0)
    except ValueError as exc:
        raise RequestError(f"The grammar: {exc}", param=GRAMMAR) from exc
    if first.is_error():
        raise RequestError(f"The grammar: {first.get_error()}", param=GRAMMAR)
    states = [GrammarState(first.deep_copy(), tokenizer.eos_id) for _ in beginnings]
    for state, tokens in zip(states, beginnings, strict=True):
        if not state.accept(tokens):
            raise EngineFailed("The answer so far does not fit its grammar.")
        if not state.over:
            state.begin()
    return states


@lru_cache
def _tokenizer(tokenizer: Tokenizer) -> LLTokenizer:
    return LLTokenizer(tokenizer.raw.to_str(), eos_token=tokenizer.eos_id)
