"""The one error tree. A class's docstring is its default message.

XylemError
├── SettingsError        a setting or the pools file does not parse; stops the process
│   └── ModelNotFetched  …or names a model that can't be fetched
├── WireMismatch         other processes have a version that this one does not understand; stops it
├── RequestError   400   the request can't be served as it stands
│   ├── ContentRefused   …because the content hook has refused its prompt or its answer
│   ├── PromptTooLong    …because prompt and answer don't fit the model
│   └── ConversationLocked …while another response is made in its conversation
├── Unauthorized   401   no API key of this deployment came with the request
├── Forbidden      403   an admin endpoint, without the admin key
├── FileQuotaUsed  403   the API key's files would be over their quota
├── TenantNotFound 404  no tenant of that name
├── KeyNotFound    404  no API key of that name
├── TenantsChanged 409  somebody else has just changed tenants, keys or prices
├── OriginRefused  403   a web page of an origin that no setting allows
├── HostRefused    421   the request names a host that is not this server
├── ModelNotFound  404   no pool serves a model of that name
├── RequestNotFound 404  no request of that id is known here
│   └── ConversationGone …no conversation of that id is kept
├── FileGone       404  no file of that id or name
├── PrefixNotFound 404  no prefix of that id is pinned
├── BatchNotFound  404  no batch of that id
├── BatchOver      409   the batch has ended and can't be cancelled
├── PoolBusy       409   the pool's state is being changed by another request
├── RequestTimeout 408   the client stood still amid its request
├── BodyTooLarge   413   the body is over the limit
├── UnsupportedMediaType 415  the body's type or encoding is not supported
├── HeadersTooLarge 431  the headers are over the limit
├── RateLimited    429   the API key or its tenant has used up its requests or tokens a minute, or runs as many
│                        requests as it may; carries Retry-After
├── BudgetUsed     429   …its budget of this day, week or month; carries Retry-After
├── TooManyBatches 429   so many batches of the client, or of all, have not ended; carries Retry-After
├── KeptFull       429   kept answers have used up their bytes; carries Retry-After
├── Saturated      429   every worker of the model is full; carries Retry-After
├── EngineFailed   500   the engine refused the request, or failed
│   ├── HandoffFailed    …to get another engine's KV: it can compute the prompt itself
│   └── EngineDead       …and will not recover
├── WorkerLost     502   the worker died with the request on it
├── NoWorker       503   no live worker serves the model; carries Retry-After
│   ├── AdapterLoading   …with its adapter yet: it is being loaded
│   ├── PoolAsleep       …but some sleep
│   └── WeightsChanged   …with the weights that began this answer
├── NoProcess      503   no process can be started for what must not run in this one
├── MediaLost      503   a worker could not get the samples of a picture or a sound
├── AdapterFailed  503   no worker can answer with this LoRA adapter
├── StoreDown      503   Redis does not answer
├── IssuerDown     503   whoever signs tokens does not answer, and never has
├── StorageDown    503   files can't be read or written
├── UsageDown      503   the database of usage can't be read or written
├── ScalingFailed        (internal) the planner's decision was not carried out
├── HookDown       503   the content hook does not answer
├── ServerStops    503   this API process is being ended, and can't wait for the answer
├── DeadlineOver   504   the request's deadline passed
├── Cancelled      499   the client has gone
├── Revoked        499   an operator has ended the request, with Celery's or Flower's means
└── Returned             (internal) a worker gives a request back, to be placed anew

Foreign errors are mapped to these where they enter: engines in their adapter, Redis in
`app/store/`, pydantic in `app/schemas/validation.py`. Only `code` and message cross processes.
"""

import inspect
from asyncio import CancelledError
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Self


class XylemError(Exception):
    """Something went wrong inside the server."""

    status: ClassVar[int] = 500
    type: str = "server_error"
    code: ClassVar[str] = "internal_error"

    def __init__(
        self,
        message: str | None = None,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`headers`: of the HTTP response, besides the usual ones."""
        self.message = message or inspect.cleandoc(type(self).__doc__ or "")
        self.param = param
        self.retry_after_s = retry_after_s
        self.headers = headers
        super().__init__(self.message)


class SettingsError(XylemError):
    """A setting does not parse."""

    code = "bad_settings"


class ModelNotFetched(SettingsError):
    """A model can't be fetched."""

    code = "model_not_fetched"


class WireMismatch(XylemError):
    """Other processes of the deployment have a version that this one doesn't understand."""

    code = "wire_version_differs"


class RequestError(XylemError):
    """The request can't be served as it stands."""

    status, type, code = 400, "invalid_request_error", "invalid_value"


class ContentRefused(RequestError):
    """This content is not allowed here."""

    code = "content_policy_violation"


class PromptTooLong(RequestError):
    """The prompt and the requested answer don't fit the model's context."""

    code = "context_length_exceeded"


class ConversationLocked(RequestError):
    """Another response is being made in this conversation. Try again when it has ended."""

    code = "conversation_locked"


class ModelNotFound(XylemError):
    """No such model is served here."""

    status, type, code = 404, "invalid_request_error", "model_not_found"


class RequestNotFound(XylemError):
    """No request of that id is known here."""

    status, type, code = 404, "invalid_request_error", "request_not_found"


class ConversationGone(RequestNotFound):
    """No conversation of that id is kept here."""

    code = "conversation_not_found"


class FileGone(XylemError):
    """There is no such file."""

    status, type, code = 404, "invalid_request_error", "file_not_found"


class PrefixNotFound(XylemError):
    """There is no such prefix: it was dropped, or its time is over."""

    status, type, code = 404, "invalid_request_error", "prefix_not_found"


class BatchNotFound(XylemError):
    """There is no such batch."""

    status, type, code = 404, "invalid_request_error", "batch_not_found"


class BatchOver(XylemError):
    """The batch has ended."""

    status, type, code = 409, "invalid_request_error", "batch_over"


class RequestTimeout(XylemError):
    """The rest of the request did not come in time."""

    status, type, code = 408, "invalid_request_error", "request_timeout"


class BodyTooLarge(XylemError):
    """The request's body is over the limit."""

    status, type, code = 413, "invalid_request_error", "body_too_large"


class UnsupportedMediaType(XylemError):
    """The body's type is not supported."""

    status, type, code = 415, "invalid_request_error", "unsupported_media_type"


class HeadersTooLarge(XylemError):
    """The request's headers are over the limit."""

    status, type, code = 431, "invalid_request_error", "headers_too_large"


class Unauthorized(XylemError):
    """This needs an API key: send 'Authorization: Bearer <key>', 'x-api-key: <key>' or 'api-key: <key>'."""

    status, type, code = 401, "invalid_request_error", "invalid_api_key"


class Forbidden(XylemError):
    """This needs an admin's key."""

    status, type, code = 403, "permission_error", "forbidden"


class TenantNotFound(XylemError):
    """There is no such tenant."""

    status, type, code = 404, "invalid_request_error", "tenant_not_found"


class KeyNotFound(XylemError):
    """There is no such API key."""

    status, type, code = 404, "invalid_request_error", "key_not_found"


class TenantsChanged(XylemError):
    """Somebody else has just changed tenants, keys or prices. Look at them, and try again."""

    status, type, code = 409, "invalid_request_error", "tenants_changed"


class FileQuotaUsed(XylemError):
    """The quota for files is used up."""

    status, type, code = 403, "invalid_request_error", "file_quota_exceeded"


class OriginRefused(XylemError):
    """Pages of this origin may not use this server."""

    status, type, code = 403, "permission_error", "origin_not_allowed"


class HostRefused(XylemError):
    """The request is for another host."""

    status, type, code = 421, "invalid_request_error", "host_not_allowed"


class RateLimited(XylemError):
    """This API key has used up its limits for this minute. Try again later."""

    status, type, code = 429, "requests", "rate_limit_exceeded"  # or the type is "tokens", as OpenAI has it


class BudgetUsed(XylemError):
    """The budget of this API key or of its tenant is used up."""

    status, type, code = 429, "insufficient_quota", "insufficient_quota"


class TooManyBatches(XylemError):
    """Too many batches have not ended yet. Try again later."""

    status, type, code = 429, "rate_limit_error", "too_many_batches"


class KeptFull(XylemError):
    """Kept answers have used up their space. Try again later."""

    status, type, code = 429, "rate_limit_error", "kept_answers_full"


class Saturated(XylemError):
    """Every worker that serves this model is full. Try again later."""

    status, type, code = 429, "rate_limit_error", "saturated"


class EngineFailed(XylemError):
    """The engine failed while it generated the answer."""

    code = "engine_failed"


class HandoffFailed(EngineFailed):
    """The engine did not get the KV that another engine computed."""

    code = "handoff_failed"


class EngineDead(EngineFailed):
    """The engine has died, and its worker ends."""

    code = "engine_dead"


class WorkerLost(XylemError):
    """The worker that served this request has died."""

    status, code = 502, "worker_lost"


class NoWorker(XylemError):
    """No live worker serves this model."""

    status, code = 503, "no_worker"

    def of(self, model: str) -> Self:
        """The same, which names the model."""
        self.message = self.message.replace("this model", f"the model '{model}'")
        self.args = (self.message,)
        return self


class AdapterLoading(NoWorker):
    """A worker is loading this LoRA adapter. Try again."""

    code = "adapter_loading"


class PoolAsleep(NoWorker):
    """The workers of this model sleep, and requests don't wake them. Try again later."""

    code = "pool_asleep"


class WeightsChanged(NoWorker):
    """The model's weights were changed in the middle of this answer. Send the request again."""

    code = "weights_changed"


class PoolBusy(XylemError):
    """The state of this pool is being changed. Try again when that is done."""

    status, type, code = 409, "invalid_request_error", "pool_busy"


class NoProcess(XylemError):
    """No process can be started to decode or compile what came with this request. Try again."""

    status, code = 503, "no_process"


class MediaLost(XylemError):
    """A picture or a sound of this request did not come to its worker. Send the request again."""

    status, code = 503, "media_lost"


class AdapterFailed(XylemError):
    """This LoRA adapter can't be loaded."""

    status, code = 503, "adapter_failed"


class StoreDown(XylemError):
    """Redis does not answer."""

    status, code = 503, "store_unavailable"
    event: str = "redis_unreachable"  # of the log: the cause, whatever did not happen for it
    url: str = ""  # of that Redis, without a password; empty: it is not known here


class IssuerDown(XylemError):
    """The issuer of this token does not answer, so that nobody can check it. Try again later."""

    status, code = 503, "issuer_unavailable"


class UsageDown(XylemError):
    """The database of usage can't be read or written."""

    status, type, code = 503, "server_error", "usage_unavailable"


class StorageDown(XylemError):
    """Files can't be read or written."""

    status, code = 503, "storage_unavailable"


class ServerStops(XylemError):
    """This server is being stopped, and had no time left for the answer. Send the request again."""

    status, code = 503, "server_stopping"


class HookDown(XylemError):
    """Contents can't be inspected now, and are not let through without. Try again later."""

    status, code = 503, "content_hook_unavailable"


class ScalingFailed(XylemError):
    """The workers could not be started or ended."""

    code = "scaling_failed"


class DeadlineOver(XylemError):
    """The request's deadline passed before it was finished."""

    status, type, code = 504, "timeout_error", "deadline_exceeded"


class Cancelled(XylemError):
    """The client went away before the answer was finished."""

    status, code = 499, "cancelled"


class Revoked(XylemError):
    """The operator of this server has ended this request."""

    status, code = 499, "revoked"


class Returned(XylemError):
    """The worker is draining and had not begun this request."""

    code = "returned"


def from_wire(code: str, message: str, param: str | None = None) -> XylemError:
    """The error that another process sent as `code` and `message`; an unknown code is a XylemError."""
    return _BY_CODE.get(code, XylemError)(message, param=param)


def outcome_of(exc: BaseException | None) -> str:
    """The outcome of a request that raised `exc`, or nothing: one of OUTCOMES."""
    if exc is None:
        return OK
    if isinstance(exc, CancelledError):
        return Cancelled.code
    return exc.code if isinstance(exc, XylemError) else XylemError.code


def _subclasses(cls: type[XylemError]) -> list[type[XylemError]]:
    return [cls, *(below for child in cls.__subclasses__() for below in _subclasses(child))]


_BY_CODE = {cls.code: cls for cls in _subclasses(XylemError)}
OK = "ok"
OUTCOMES = frozenset({OK, *_BY_CODE})  # of requests, in metrics and timelines
# Outcomes of requests that were turned away: the client's fault, its limits, or no room. Nothing went wrong with them.
REFUSED = frozenset(code for code, cls in _BY_CODE.items() if 400 <= cls.status < 499 or issubclass(cls, NoWorker))
