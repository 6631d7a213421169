"""The logprobs of an answer's content: reasoning, calls and markers have none."""

from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from app.dialects.content_spans import Span
from app.messages.events import TokenLogprob


class _Placed(Struct):
    """A token, and where in the answer's text it stands."""

    logprob: TokenLogprob
    begin: int
    end: int
    content: str = ""  # what of it is content so far


class ContentLogprobs:
    """Logprobs of one choice's content.

    A token that is content only in part has that part as its text: joined, they are the content.
    """

    def __init__(self) -> None:
        self._text, self._base = "", 0  # what is needed of the answer's text, and where that begins
        self._unplaced: list[TokenLogprob] = []  # whose text has not come
        self._placed: list[_Placed] = []  # of which it is not known what of them is content
        self._end = 0  # of the last token that has a place
        self._spans: deque[Span] = deque()  # of content that goes on behind that

    @property
    def held(self) -> int:
        """The number of tokens of which it is not known whether they are content."""
        return len(self._placed)

    def add(self, text: str, logprobs: Sequence[TokenLogprob] | None, *, last: bool) -> None:
        """Adds what the answer goes on with; a token's text comes with the token, or later. `last`: it is over."""
        self._text += text
        self._unplaced += logprobs or ()
        count, pending = 0, list[TokenLogprob]()  # those behind the last one that has a place
        for lp in self._unplaced:
            at = self._end - self._base
            begin = at + self._has_own_space(lp.token, at)
            part = self._text[begin : begin + len(lp.token)]
            if len(part) < len(lp.token) and lp.token.startswith(part) and not last:
                break
            count += 1
            if part == lp.token:
                self._place(lp, begin + len(part))
                pending.clear()
            else:
                pending.append(lp)
        del self._unplaced[:count]
        if last and self._end < self._base + len(self._text):
            self._place_cut(pending)

    def _place(self, lp: TokenLogprob, end: int) -> None:
        self._placed.append(_Placed(lp, self._end, end + self._base))
        self._end = self._placed[-1].end

    def _place_cut(self, logprobs: Sequence[TokenLogprob]) -> None:
        """A stop string cuts tokens: the rest of the text is what it has left of one. Others of them are special."""
        at, space_token = self._end - self._base, None
        for lp in logprobs:
            begin = at + self._has_own_space(lp.token, at)
            if begin == len(self._text):  # only its own space is left, if it isn't another one's
                space_token = space_token or lp
            elif lp.token.startswith(self._text[begin : begin + len(lp.token) + 1]):
                self._place(lp, len(self._text))
                return
        if space_token is not None:
            self._place(space_token, len(self._text))

    def _has_own_space(self, token: str, at: int) -> bool:
        """Whether the text has a space before the token, which may be spelled without it when it is alone.

        Of a token that begins with one, the text may have come in part.
        """
        begins = self._text.startswith(token, at) or token.startswith(self._text[at : at + len(token)])
        return not begins and self._text[at : at + 1].isspace()

    def of(self, spans: Iterable[Span]) -> list[TokenLogprob]:
        """The tokens that end within the next spans of content."""
        logprobs: list[TokenLogprob] = []
        self._spans += spans
        count = 0
        while self._spans:
            begin, end = self._spans[0]
            for token in self._placed[count:]:
                if token.begin >= end:
                    break
                if token.end > begin or token.begin == begin:
                    token.content += self._text[max(begin, token.begin) - self._base : min(end, token.end) - self._base]
                    if token.end > end:
                        break
                    logprobs.append(_told(token))
                elif token.content:
                    logprobs.append(_told(token))
                count += 1
            if self._end < end:  # more of its tokens come
                self._spans[0] = (max(begin, self._end), end)
                break
            self._spans.popleft()
        del self._placed[:count]
        return logprobs

    def drop(self, final: int) -> None:
        """Drops what is not content before the place `final` of the text: `of` was given all spans before that."""
        count = 0
        while count < len(self._placed) and self._placed[count].end <= final and self._placed[count].begin < final:
            count += 1
        self._placed[:count] = [token for token in self._placed[:count] if token.content]
        start = next((token.begin for token in self._placed if token.end > final), self._end)
        self._text, self._base = self._text[start - self._base :], start

    def rest(self) -> list[TokenLogprob]:
        """The last token of a section of content that is over, if it goes on behind that."""
        if not self._placed or not self._placed[0].content:
            return []
        return [_told(self._placed.pop(0))]


def _told(token: _Placed) -> TokenLogprob:
    return token.logprob if token.content == token.logprob.token else replace(token.logprob, token=token.content)
