"""`EventBatch`, from a worker to an API replica, on `out:<api>`: all that one engine step made for it."""

from msgspec import Struct

from app.ids import RequestId, WorkerId
from app.messages.handoff import KvHandle
from app.messages.job import PartialOutput, Timing
from app.messages.kinds import FinishReason
from app.messages.wire import decoder


class TokenLogprob(Struct, frozen=True, array_like=True):
    token: str
    token_id: int
    logprob: float
    top: list[tuple[str, int, float]] = []  # (token, id, logprob), likeliest first
    rank: int = 0  # among all tokens, from 1 on; 0: not known


class Delta(Struct, frozen=True, array_like=True, tag="d", gc=False):
    """Output that one step added to one choice of one request. Never the last event: Done or Failed follows."""

    request: RequestId
    attempt: int
    text: str
    tokens: list[int]
    index: int = 0  # of the n choices
    finish: FinishReason | None = None
    stop: int | str | None = None  # the stop token id or string that ended it
    logprobs: list[TokenLogprob] | None = None
    # If asked for, in a choice's first delta; None for the first token, which nothing predicts.
    prompt_logprobs: list[TokenLogprob | None] | None = None
    weights: str = ""  # the version that made it; "": the pool's own


class FirstToken(Struct, frozen=True, array_like=True, tag="1"):
    """The first token of an answer that another worker continues. The other worker's deltas may arrive first."""

    request: RequestId
    attempt: int
    delta: Delta
    begun: PartialOutput


class PrefillDone(Struct, frozen=True, array_like=True, tag="h"):
    """Prefill is over, and the request is with the worker that decodes."""

    request: RequestId
    attempt: int
    timing: Timing | None
    # The decode worker is gone, full or draining: the request is to be placed anew, with this KV.
    returned: KvHandle | None = None


class PicturesEncoded(Struct, frozen=True, array_like=True, tag="m"):
    """All pictures that were to be encoded apart are, or are left to the next worker, which has the request."""

    request: RequestId
    attempt: int


class Vectors(Struct, frozen=True, array_like=True, tag="v"):
    """The vectors of all inputs of a job. Never the last event: Done follows."""

    request: RequestId
    attempt: int
    data: bytes  # float32, little-endian: the vectors, concatenated, all of one length


class Searched(Struct, frozen=True, array_like=True, tag="s"):
    """A beam search has computed so many tokens so far, of which none is out. Never the last event."""

    request: RequestId
    attempt: int
    tokens: int


class Progress(Struct, frozen=True, array_like=True, tag="p"):
    """A step of a painting is over. Never the last event."""

    request: RequestId
    attempt: int
    step: int  # how many are over
    of: int
    picture: bytes = b""  # the unfinished picture, if one was asked for here


class Painted(Struct, frozen=True, array_like=True, tag="i"):
    """A piece of a picture's or video's file, in order, and short: tokens wait behind it. Done follows."""

    request: RequestId
    attempt: int
    start: int  # its first byte; 0: earlier pieces are of a former try
    data: bytes


class Done(Struct, frozen=True, array_like=True, tag="e", gc=False):
    """The terminal event of an answered request."""

    request: RequestId
    attempt: int
    cached_tokens: int = 0  # prompt tokens that did not have to be computed
    timings: list[Timing] = []  # of the prefill worker, if there was one, and of the worker that answered
    # Only of kept answers, for readers without the prompt:
    prompt_tokens: int = 0
    ended: float = 0.0  # seconds since the epoch
    expanded: list[int] = []  # the prompt as the engine has it, if it expands media to other tokens than the job says
    unshown: int = 0  # tokens that a beam search has computed, and that no answer has


class Failed(Struct, frozen=True, array_like=True, tag="f"):
    """The terminal event of a request that won't be answered. `code` is one of `app/errors.py`."""

    request: RequestId
    attempt: int
    code: str
    message: str
    param: str | None = None  # the request's parameter that is at fault; GRAMMAR: the one that asks for its grammar


GRAMMAR = "grammar"
Event = Delta | FirstToken | PrefillDone | PicturesEncoded | Vectors | Searched | Progress | Painted | Done | Failed


class EventBatch(Struct, frozen=True, array_like=True, gc=False):
    worker: WorkerId
    seq: int  # from 1, +1 for each message from this worker to this API
    events: list[Event]


decode_event_batch = decoder(EventBatch)
decode_events = decoder(list[Event])
