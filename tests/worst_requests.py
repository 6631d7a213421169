"""The worst requests for each row of `app/endpoints.py`: where they cost most before anybody has admitted them.

Right and wrong bodies of as many bytes as are read before a request is admitted, and of as many as the row takes; and
small ones that ask for dear work. A row that takes a body and has none here has no requests: `worst` raises.
"""

import base64
import json
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from app.endpoints import COSTS, LARGE
from tests.kserve import asked as tensors
from tests.pictures import asked, png, url
from tests.speech.whisper_like import whisper_like
from tests.stack import mock_pool
from tests.vlm import random_vlm

MAX_BODY = 16 * 2**20  # XYLEM_MAX_BODY
ADMIN = {"x-api-key": "sesame"}  # of a deployment with XYLEM_ADMIN_KEY=sesame
FORM = "multipart/form-data; boundary=x"
_HEAD = 1000  # bytes by which a body is shorter than its bound
_GRPC = ("/inference.", "/grpc.")


class Request(NamedTuple):
    method: str
    path: str  # with something for each parameter; of a method of gRPC its full name
    kind: str  # of its content; "": it has none
    content: bytes

    @property
    def is_grpc(self) -> bool:
        return self.path.startswith(_GRPC)

    @property
    def headers(self) -> dict[str, str]:
        return {"content-type": self.kind} if self.kind else {}


def pools(folder: Path) -> dict[str, dict[str, Any]]:
    """Entries of a pools file, for the models that the requests name."""
    return {
        "sees-pool": mock_pool(model="sees") | {"path": str(random_vlm("idefics3", weights=False))},
        "speech-pool": mock_pool(model="whisper")
        | {"task": "transcribe", "path": str(whisper_like(folder / "speech", multilingual=False))},
        "paint-pool": {"model": "painter", "engine": "mock", "task": "image"},
        "embed-pool": mock_pool(model="embedder") | {"task": "embed"},
        "classes-pool": mock_pool(model="classes") | {"task": "classify"},
    }


def used_up(client: httpx.Client) -> dict[str, str]:
    """The header of a new key that has had its one request a minute: a body of nothing, refused, which counts."""
    key_answer = client.post("/admin/keys", json={"name": f"k{time.time_ns()}", "requests_per_min": 1}, headers=ADMIN)
    key = {"x-api-key": str(key_answer.json()["key"])}
    answer = client.post("/tokenize", content=b" " * 2**17, headers=key | {"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    return key


def filled(before: bytes, item: bytes, after: bytes, size: int) -> bytes:
    """A body of up to `size` bytes, with as many of `item` as it takes, and commas between them."""
    return before + (item + b",") * ((size - len(before) - len(after)) // (len(item) + 1) - 1) + item + after


Filling = tuple[bytes, bytes, bytes]  # what is before the items, an item, and what is after them

WRONG: dict[str, Filling] = {
    "numbers": (b'{"model": "mock", "input": [', b"1", b"]}"),
    "texts": (b'{"model": "mock", "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [',
              b'""', b"]}]}"),
    "fields": (b'{"model": "mock", ', b'"x":{"a":[]}', b"}"),
}  # fmt: skip
PARTS = {"fields": b"content-disposition: form-data; name=x\r\n\r\n1", "empty parts": b""}

_WORDS, _TURN = b"The quick brown fox jumps", b'{"role":"user","content":"a"}'
_MODEL = b'{"model":"sees","max_tokens":3,'
_INPUT: tuple[Filling, ...] = (
    (b'{"model":"sees","input":"', _WORDS, b'"}'),
    (b'{"model":"sees","input":[', _TURN, b"]}"),
)
_MESSAGES: tuple[Filling, ...] = (
    (_MODEL + b'"messages":[{"role":"user","content":"', _WORDS, b'"}]}'),
    (_MODEL + b'"messages":[', _TURN, b"]}"),
)
_SCORE: tuple[Filling, ...] = ((b'{"model":"embedder","text_1":"a","text_2":[', b'"a b c"', b"]}"),)
_RERANK: tuple[Filling, ...] = ((b'{"model":"embedder","query":"a","documents":[', b'"a b c"', b"]}"),)
_TEXT_INPUT: tuple[Filling, ...] = ((b'{"text_input":"', _WORDS, b'"}'),)
_TENSOR: tuple[Filling, ...] = (
    (b'{"inputs":[{"name":"text_input","datatype":"BYTES","shape":[1],"data":["', _WORDS, b'"]}]}'),
)
_ITEMS: tuple[Filling, ...] = ((b'{"items":[', b'{"type":"message","role":"user","content":"a"}', b"]}"),)
_METADATA: tuple[Filling, ...] = ((b'{"metadata":{"a":"', _WORDS, b'"}}'),)
_V2, _V2_VERSION = "/v2/models/{name:path}", "/v2/models/{name:path}/versions/{version}"

RIGHT: dict[str, tuple[Filling, ...]] = {
    "/v1/chat/completions": (
        *_MESSAGES,
        (_MODEL + b'"messages":[{"role":"user","content":"a"}],"tools":[',
         b'{"type":"function","function":{"name":"f","parameters":{"properties":{"a":{"enum":["a","b"]}}}}}', b"]}"),
    ),
    "/v1/completions": (
        (_MODEL + b'"prompt":"', _WORDS, b'"}'), (_MODEL + b'"prompt":[', b"1", b"]}"),
        (_MODEL + b'"prompt":[', b'"a"', b"]}"),
    ),
    "/v1/responses": _INPUT, "/v1/responses/compact": _INPUT, "/v1/responses/input_tokens": _INPUT,
    "/v1/messages": _MESSAGES, "/v1/messages/count_tokens": _MESSAGES,
    "/v1/embeddings": (
        (b'{"model":"embedder","input":"', _WORDS, b'"}'), (b'{"model":"embedder","input":[', b'"a b c"', b"]}"),
    ),
    "/v2/embed": (
        (b'{"model":"embedder","texts":["', _WORDS, b'"],"max_tokens":3}'),
        (b'{"model":"embedder","texts":["a"],"embedding_types":[', b'"int8"', b"]}"),
        (b'{"model":"embedder","inputs":[{"content":[', b'{"type":"text","text":"a b"}', b"]}]}"),
    ),
    "/v1/score": _SCORE, "/score": _SCORE, "/v1/rerank": _RERANK, "/rerank": _RERANK, "/v2/rerank": _RERANK,
    "/v1/classify": ((b'{"model":"classes","input":[', b'"a b c"', b"]}"),),
    "/v1/images/generations": ((b'{"model":"painter","prompt":"', _WORDS, b'"}'),),
    "/v1/images/edits": (), "/v1/videos": ((b'{"model":"painter","prompt":"', _WORDS, b'"}'),),
    "/v1/audio/transcriptions": (), "/v1/audio/translations": (), "/v1/files": (),  # they take forms alone
    "/v2/repository/index": (),  # which takes one flag
    "/inference/v1/generate": ((b'{"model":"sees","sampling_params":{"max_tokens":3},"token_ids":[', b"1", b"]}"),),
    **{f"{model}/infer": _TENSOR for model in (_V2, _V2_VERSION)},
    **{f"{model}/{verb}": _TEXT_INPUT for model in (_V2, _V2_VERSION) for verb in ("generate", "generate_stream")},
    "/tokenize": ((b'{"model":"sees","prompt":"', _WORDS, b'"}'), *_MESSAGES),
    "/detokenize": ((b'{"model":"sees","tokens":[', b"1", b"]}"),),
    "/v1/conversations": _ITEMS, "/v1/conversations/{conversation}/items": _ITEMS,
    "/v1/conversations/{conversation}": _METADATA, "/v1/chat/completions/{chat}": _METADATA,
    "/v1/messages/batches": ((b'{"requests":[', b'{"custom_id":"a","params":{"model":"sees"}}', b"]}"),),
    "/v1/batches": (
        (b'{"input_file_id":"file-1","endpoint":"/v1/completions","completion_window":"24h","metadata":{"a":"',
         _WORDS, b'"}}'),
    ),
}  # fmt: skip


def form(**files: bytes) -> bytes:
    """The form of a picture to edit, or of a sound."""
    model = b"whisper" if "file" in files else b"painter"
    parts = [b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\n%b' % model]
    if "image" in files:
        parts.append(b'--x\r\ncontent-disposition: form-data; name="prompt"\r\n\r\na boat')
    parts += [
        b'--x\r\ncontent-disposition: form-data; name="%b"; filename="f"\r\n\r\n%b' % (name.encode(), data)
        for name, data in files.items()
    ]
    return b"\r\n".join(parts) + b"\r\n--x--\r\n"


_PICTURE = png(3, 40, 30)
_SHOWN: dict[str, Any] = {"model": "sees", "messages": asked(_PICTURE)}
_BLOCK = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(_PICTURE).decode()}
_ANTHROPIC = {"model": "sees", "messages": [{"role": "user", "content": [{"type": "image", "source": _BLOCK}]}]}
_RESPONSE = {
    "model": "sees",
    "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url(_PICTURE)}]}],
}
_SPOKEN = {"model": "sees", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}

DEAR: dict[str, tuple[str, Any]] = {
    "a picture": ("/v1/chat/completions", _SHOWN),
    "a picture by URL": (
        "/v1/chat/completions",
        {"model": "sees", "messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "http://192.0.2.1/never-asked.png"}}]}]},
    ),
    "Anthropic's picture": ("/v1/messages", _ANTHROPIC | {"max_tokens": 3}),
    "a response's picture": ("/v1/responses", _RESPONSE),
    "a picture to count": ("/v1/messages/count_tokens", _ANTHROPIC),
    "a response's picture to count": ("/v1/responses/input_tokens", _RESPONSE),
    "a picture to tokenise": ("/tokenize", _SHOWN),
    "a response that goes on": ("/v1/responses", {"model": "sees", "input": "a", "previous_response_id": "resp_1"}),
    "a regular expression": ("/v1/chat/completions", _SPOKEN | {"guided_regex": "[a-z]{3}"}),
    "a grammar": ("/v1/completions", {"model": "sees", "prompt": "a", "guided_grammar": 'root ::= "a"'}),
    "a template of its own": ("/v1/chat/completions", _SPOKEN | {"chat_template": "{{ 'a' * 9 }}"}),
    "texts to embed": ("/v1/embeddings", {"model": "embedder", "input": ["long " * 8000]}),
    "texts to cut": ("/v2/embed", {"model": "embedder", "texts": ["long " * 8000], "max_tokens": 5}),
    "a picture to edit": ("/v1/images/edits", form(image=_PICTURE)),
    "a sound": ("/v1/audio/transcriptions", form(file=b"RIFF" + bytes(1000))),
}  # fmt: skip


def dear(what: str) -> Request:
    """The small request of that name that asks for dear work."""
    row, body = DEAR[what]
    if isinstance(body, bytes):
        return Request("POST", path_of(row), FORM, body)
    return Request("POST", path_of(row), "application/json", json.dumps(body).encode())


_METHODS = {
    **dict.fromkeys(
        (
            "/v1/conversations/{conversation}/items/{item}", "/v1/responses/{response}", "/v1/models/{name:path}",
            "/v1/videos/{video}", "/v1/files/{file}", "/v1/messages/batches/{message_batch}",
            "/admin/prefixes/{prefix}",
        ),
        "DELETE",
    ),
    **dict.fromkeys(
        (
            "/admin/pools/{pool}/limits", "/admin/aliases", "/admin/tenants/{tenant}", "/admin/keys/{key:path}",
            "/admin/prices",
        ),
        "PATCH",
    ),
}  # fmt: skip
_PARAMETERS = {"{name:path}": "sees", "{pool}": "sees-pool", "{version}": "1"}


def method_of(row: str) -> str:
    return _METHODS.get(row, "POST")


def path_of(row: str) -> str:
    """The row's path, with a name for each parameter: of a model where it names one, else of nothing."""
    return "/".join(_PARAMETERS.get(part, "mock" if part.startswith("{") else part) for part in row.split("/"))


def bound_of(row: str, most: int = MAX_BODY) -> int:
    """Bytes of its longest body, if those that are set are `most`."""
    body = COSTS[row].body
    return most if body.startswith("XYLEM_") else int(body or 0)


def bodies(row: str, size: int) -> Iterator[Request]:
    """Requests of `size` bytes: what is built of them, and of a form, is refused. Raises: KeyError: none is known."""
    cost, method, path = COSTS[row], method_of(row), path_of(row)
    for filling in (*(RIGHT[row] if cost.guard == "limits" else ()), *WRONG.values()):
        yield Request(method, path, "application/json", filled(*filling, size))
    for part in PARTS.values() if cost.form else ():
        yield Request(method, path, FORM, (b"--x\r\n" + part + b"\r\n") * (size // (len(part) + 7)) + b"--x--\r\n")
    if cost.form:
        yield Request(method, path, FORM, form(file=b"\r\n" * ((size - _HEAD // 2) // 2)))


def worst(row: str, most: int = MAX_BODY) -> Iterator[Request]:
    """All of a row; `most`: bytes of the longest. Raises: KeyError: none is known."""
    if row.startswith(_GRPC):  # a method without a body of its own is sent one all the same
        yield from (Request("POST", row, "", message) for message in _messages(most - _HEAD))
        return
    if not COSTS[row].takes_body:
        yield Request(method_of(row), path_of(row), "", b"")
        return
    for size in sorted({min(LARGE, bound_of(row, most)) - _HEAD, bound_of(row, most) - _HEAD}):
        yield from bodies(row, size)
    yield from (dear(what) for what, (path, _) in DEAR.items() if path == row)


@cache
def _messages(size: int) -> tuple[bytes, bytes, bytes]:
    """Messages of gRPC: a long text, very many empty ones, and as many bytes of a tensor."""
    long, many, raw = (tensors(text, model="sees") for text in ("long " * (size // 5), "a", "a"))
    many.inputs[0].contents.bytes_contents.extend([b""] * (size // 4))
    raw.inputs[0].ClearField("contents")
    raw.raw_input_contents.append(bytes(size))
    return long.SerializeToString(), many.SerializeToString(), raw.SerializeToString()
