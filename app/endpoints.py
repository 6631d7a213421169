"""The endpoints, one row each, from which routes, batches, traces, logs and the bounds of costs are computed.

A new one that generates is a row of `ROWS`, an entry of `endpoint_registry.py` with its schema and its writer, and a
route; any other that changes something is a row of `COSTS`.

A request is admitted when its key is valid, and the limits of the key and its tenant have room for it
(`app/tenants/admission.py`). A request that they refuse costs no more than `COSTS` says. Tests walk the table: an
endpoint without a row fails one; another sends each row's worst, and looks at what the loop's thread did meanwhile.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Literal, NamedTuple

from app.messages.kinds import Task

# As in `endpoints` of a pool.
EndpointName = Literal[
    "chat",
    "completions",
    "responses",
    "messages",
    "embeddings",
    "score",
    "rerank",
    "classify",
    "images",
    "videos",
    "transcriptions",
]
LARGE = 64 * 2**10  # bytes of a body, for reading which its request has to be admitted
Guard = Literal["limits", "key", "admin"]
_HEAD = 2**16  # bytes of a request's headers


class CostBounds(NamedTuple):
    """Sizes in bytes."""

    guard: Guard = "limits"  # what admits it: the limits; the key alone, since it makes nothing; the admin key
    body: str = "XYLEM_MAX_BODY"  # the setting, or the size, that bounds its body; "": it takes none
    form: bool = False  # it takes multipart/form-data
    read: int = LARGE  # of its body, into memory
    loop_ms: float = 10.0  # CPU time of the event loop's thread, at a stretch
    cpu_ms: float = 50.0  # CPU time of all processes
    memory: int = 2**20  # of the API process
    redis: int = 0  # that stays in Redis
    temporary: int = 0  # of temporary files
    threads: int = 0  # of those that requests share

    @property
    def takes_body(self) -> bool:
        return bool(self.body)


_GENERATES = CostBounds()


@dataclass(frozen=True)
class EndpointRow:
    """An endpoint that generates, encodes or paints. All of them are traced."""

    path: str
    name: EndpointName
    prefix: str  # with which the ids of its answers begin
    _: KW_ONLY
    kind: str = ""  # its name in kept answers; "": it keeps none of its own
    task: Task = "generate"  # only models of this task may be named
    is_batched: bool = False  # lines of a batch may name it
    same: tuple[str, ...] = ()  # vLLM's other paths
    variants: tuple[str, ...] = ()  # paths whose answers are as its own, with routes of their own
    logged: str = ""  # instead of its path, for the content hook and a tenant's log
    cost: CostBounds = _GENERATES

    @property
    def paths(self) -> tuple[str, ...]:
        return self.path, *self.same, *self.variants


_SOUND = CostBounds(body="XYLEM_MEDIA_SOUND_BYTES", form=True)

CHAT = EndpointRow("/v1/chat/completions", "chat", "chatcmpl-", kind="chat", is_batched=True)
TEXT = EndpointRow(
    "/v1/completions", "completions", "cmpl-", kind="text", is_batched=True, variants=("/inference/v1/generate",)
)
RESPONSE = EndpointRow(
    "/v1/responses", "responses", "resp_", kind="response", is_batched=True, variants=("/v1/responses/compact",)
)
MESSAGE = EndpointRow("/v1/messages", "messages", "msg_", kind="message", is_batched=True)
EMBEDDINGS = EndpointRow("/v1/embeddings", "embeddings", "embd-", kind="embedding", task="embed", is_batched=True)
COHERE_EMBEDDINGS = EndpointRow(
    "/v2/embed", "embeddings", "embed-", kind="cohere_embedding", task="embed", is_batched=True
)
SCORE = EndpointRow("/v1/score", "score", "score-", kind="score", task="embed", is_batched=True, same=("/score",))
RERANK = EndpointRow(
    "/v1/rerank", "rerank", "rerank-", kind="rerank", task="embed", is_batched=True, same=("/rerank", "/v2/rerank")
)
CLASSIFY = EndpointRow("/v1/classify", "classify", "classify-", kind="class", task="classify", is_batched=True)
IMAGES = EndpointRow(
    "/v1/images/generations", "images", "img-", kind="image", task="image", is_batched=True, logged="/v1/images"
)
EDITS = EndpointRow(
    "/v1/images/edits", "images", IMAGES.prefix, task="image", logged=IMAGES.logged, cost=CostBounds(form=True)
)
# A job, which is always kept.
VIDEOS = EndpointRow("/v1/videos", "videos", "video_", kind="video", task="image", cost=CostBounds(form=True))
TRANSCRIPTIONS = EndpointRow("/v1/audio/transcriptions", "transcriptions", "transcr-", task="transcribe", cost=_SOUND)
TRANSLATIONS = EndpointRow(
    "/v1/audio/translations",
    "transcriptions",
    TRANSCRIPTIONS.prefix,
    task="transcribe",
    logged=TRANSCRIPTIONS.path,
    cost=_SOUND,
)

ROWS = tuple(value for value in [*globals().values()] if isinstance(value, EndpointRow))  # in the order of the above

_SHORT = CostBounds(body=f"{2**16}")  # a body without prompts
_BODILESS = CostBounds("key", body="", read=0, memory=_HEAD)
_ADMIN = CostBounds("admin", body=f"{2**16}")
_ADMIN_BODILESS = CostBounds("admin", body="", read=0, memory=_HEAD)
# gRPC receives a message whole, in a thread of its own, once its key is checked, and before the limits are looked at.
_GRPC = CostBounds(read=2**24, memory=2**25)
_GRPC_SHORT = CostBounds("key", body="", read=2**24, memory=2**25)
_GRPC_ADMIN = CostBounds("admin", body="", read=2**24, memory=2**25)

_V2, _V2_VERSION = "/v2/models/{name:path}", "/v2/models/{name:path}/versions/{version}"

COSTS: dict[str, CostBounds] = {
    **{path: row.cost for row in ROWS for path in row.paths},
    **{
        f"{model}/{verb}": CostBounds()
        for model in (_V2, _V2_VERSION)
        for verb in ("infer", "generate", "generate_stream")
    },
    "/inference.GRPCInferenceService/ModelInfer": _GRPC,
    "/inference.GRPCInferenceService/ModelStreamInfer": _GRPC,
    **{
        f"/inference.GRPCInferenceService/{method}": _GRPC_SHORT
        for method in (
            "ServerLive",
            "ServerReady",
            "ModelReady",
            "ServerMetadata",
            "ModelMetadata",
            "RepositoryIndex",
            "ModelStatistics",
        )
    },
    **{f"/inference.GRPCInferenceService/RepositoryModel{verb}": _GRPC_ADMIN for verb in ("Load", "Unload")},
    **dict.fromkeys(
        """
        /grpc.health.v1.Health/Check /grpc.health.v1.Health/Watch
        /grpc.reflection.v1.ServerReflection/ServerReflectionInfo
        /grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo
        """.split(),
        _GRPC_SHORT,
    ),
    "/v2/repository/index": _SHORT,
    **{f"/v2/repository/models/{{name:path}}/{verb}": _ADMIN for verb in ("load", "unload")},
    # What is asked about a prompt is admitted where it takes more than a look: large bodies, pictures, templates.
    "/tokenize": CostBounds(),
    "/detokenize": CostBounds(),
    "/v1/messages/count_tokens": CostBounds(),
    "/v1/responses/input_tokens": CostBounds(),
    "/v1/conversations": CostBounds(),
    "/v1/conversations/{conversation}": CostBounds(),
    "/v1/conversations/{conversation}/items": CostBounds(),
    "/v1/conversations/{conversation}/items/{item}": _BODILESS,
    "/v1/chat/completions/{chat}": _SHORT,
    "/v1/chat/completions/{chat}/cancel": _BODILESS,
    "/v1/responses/{response}": _BODILESS,
    "/v1/models/{name:path}": _BODILESS,
    "/v1/responses/{response}/cancel": _BODILESS,
    "/v1/videos/{video}": _BODILESS,
    "/v1/files": CostBounds(body="XYLEM_MAX_FILE", form=True),
    "/v1/files/{file}": _BODILESS,
    "/v1/messages/batches": CostBounds(),
    "/v1/messages/batches/{message_batch}": _BODILESS,
    "/v1/messages/batches/{message_batch}/cancel": _BODILESS,
    "/v1/batches": _SHORT,
    "/v1/batches/{batch}/cancel": _BODILESS,
    "/v1/batches/{batch}/pause": _BODILESS,
    "/v1/batches/{batch}/resume": _BODILESS,
    **dict.fromkeys(
        """
        /admin/pools/{pool}/limits /admin/aliases /admin/keys/{key:path}/erase /admin/tenants/{tenant}/erase
        /admin/tenants/{tenant}/isolation /admin/loras /admin/loras/{name} /v1/load_lora_adapter
        /v1/unload_lora_adapter /admin/pools/{pool}/sleep /admin/pools/{pool}/wake /admin/pools/{pool}/pause
        /admin/pools/{pool}/resume /admin/pools/{pool}/weights /admin/pools/{pool}/profile
        /admin/pools/{pool}/experts /admin/pools/{pool}/scale_elastic_ep /admin/tenants/{tenant} /admin/keys
        /admin/keys/{key:path} /admin/prices
        """.split(),
        _ADMIN,
    ),
    "/admin/prefixes": CostBounds("admin"),
    **dict.fromkeys(
        ("/admin/clear_kv_blocks", "/admin/pools/{pool}/clear_kv_blocks", "/admin/prefixes/{prefix}"), _ADMIN_BODILESS
    ),
}
