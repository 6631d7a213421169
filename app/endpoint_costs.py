"""The costs that a request may have before it is admitted, for each endpoint that changes or makes something.

A request is admitted when its key is valid, and the limits of the key and its tenant have room for it
(`app/tenants/admission.py`). A request that they refuse costs no more than this. Tests walk the table: an endpoint
without a row fails one; another sends each row's worst, and looks at what the loop's thread did meanwhile.
"""

from typing import Literal, NamedTuple

from app.endpoint_registry import ENDPOINTS, SAME_AS, VIDEOS
from app.tenants.admission import LARGE

Guard = Literal["limits", "key", "admin"]
_HEAD = 2**16  # bytes of a request's headers


class Cost(NamedTuple):
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


_GENERATES = Cost()
_SHORT = Cost(body=f"{2**16}")  # a body without prompts
_BODILESS = Cost("key", body="", read=0, memory=_HEAD)
_ADMIN = Cost("admin", body=f"{2**16}")
_ADMIN_BODILESS = Cost("admin", body="", read=0, memory=_HEAD)
# gRPC receives a message whole, in a thread of its own, once its key is checked, and before the limits are looked at.
_GRPC = Cost(read=2**24, memory=2**25)
_GRPC_SHORT = Cost("key", body="", read=2**24, memory=2**25)

_V2, _V2_VERSION = "/v2/models/{name:path}", "/v2/models/{name:path}/versions/{version}"

COSTS: dict[str, Cost] = {
    **dict.fromkeys((*ENDPOINTS, *SAME_AS, "/v1/responses/compact"), _GENERATES),
    "/inference/v1/generate": Cost(),
    "/v1/images/edits": Cost(form=True),
    VIDEOS.path: Cost(form=True),
    "/v1/audio/transcriptions": Cost(body="XYLEM_MEDIA_SOUND_BYTES", form=True),
    "/v1/audio/translations": Cost(body="XYLEM_MEDIA_SOUND_BYTES", form=True),
    **{f"{model}/{verb}": Cost() for model in (_V2, _V2_VERSION) for verb in ("infer", "generate", "generate_stream")},
    "/inference.GRPCInferenceService/ModelInfer": _GRPC,
    "/inference.GRPCInferenceService/ModelStreamInfer": _GRPC,
    **{
        f"/inference.GRPCInferenceService/{method}": _GRPC_SHORT
        for method in ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata")
    },
    # What is asked about a prompt is admitted where it takes more than a look: large bodies, pictures, templates.
    "/tokenize": Cost(),
    "/detokenize": Cost(),
    "/v1/messages/count_tokens": Cost(),
    "/v1/responses/input_tokens": Cost(),
    "/v1/conversations": Cost(),
    "/v1/conversations/{conversation}": Cost(),
    "/v1/conversations/{conversation}/items": Cost(),
    "/v1/conversations/{conversation}/items/{item}": _BODILESS,
    "/v1/chat/completions/{chat}": _SHORT,
    "/v1/responses/{response}": _BODILESS,
    "/v1/models/{name:path}": _BODILESS,
    "/v1/responses/{response}/cancel": _BODILESS,
    "/v1/videos/{video}": _BODILESS,
    "/v1/files": Cost(body="XYLEM_MAX_FILE", form=True),
    "/v1/files/{file}": _BODILESS,
    "/v1/messages/batches": Cost(),
    "/v1/messages/batches/{message_batch}": _BODILESS,
    "/v1/messages/batches/{message_batch}/cancel": _BODILESS,
    "/v1/batches": _SHORT,
    "/v1/batches/{batch}/cancel": _BODILESS,
    "/v1/batches/{batch}/pause": _BODILESS,
    "/v1/batches/{batch}/resume": _BODILESS,
    **dict.fromkeys(
        (
            "/admin/pools/{pool}/limits", "/admin/aliases", "/admin/keys/{key:path}/erase",
            "/admin/tenants/{tenant}/erase", "/admin/tenants/{tenant}/isolation", "/admin/loras", "/admin/loras/{name}",
            "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/admin/pools/{pool}/sleep", "/admin/pools/{pool}/wake",
            "/admin/pools/{pool}/pause", "/admin/pools/{pool}/resume", "/admin/pools/{pool}/weights",
            "/admin/pools/{pool}/profile", "/admin/pools/{pool}/experts", "/admin/pools/{pool}/scale_elastic_ep",
            "/admin/tenants/{tenant}", "/admin/keys", "/admin/keys/{key:path}", "/admin/prices",
        ),
        _ADMIN,
    ),
    "/admin/prefixes": Cost("admin"),
    **dict.fromkeys(
        ("/admin/clear_kv_blocks", "/admin/pools/{pool}/clear_kv_blocks", "/admin/prefixes/{prefix}"), _ADMIN_BODILESS
    ),
}  # fmt: skip
