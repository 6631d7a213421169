"""A fleet that asks for keys, and a client of it with one of everything that the API keeps for clients."""

import hashlib
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI

from app.ids import KeyId, TenantId, new_key_id
from app.keys import Keys
from app.messages.wire import encode
from app.tenants.records import ApiKey, Tenant
from tests.serving import serving
from tests.stack import Stack, mock_pool, wait_until

POOL, VIDEOS, IMAGES = "decode-pool-a", "video-pool", "image-pool"
ADMIN = {"authorization": "Bearer sesame"}
LINE = (
    b'{"custom_id": "1", "method": "POST", "url": "/v1/completions", '
    b'"body": {"model": "mock", "prompt": "a", "max_tokens": 2}}\n'
)
PROMPT = "The boat was late and the sea was grey. " * 30  # some blocks
_PAINTS = {"engine": "mock", "task": "image"}
_FILMS = {"size": "64x64", "sizes": ["32x32"], "steps": 4, "max_steps": 2000, "videos": True, "fps": 8}


@contextmanager
def keyed(redis_url: str, path: Path, batches: bool = True, **env: str) -> Iterator[Stack]:
    """An API, workers of texts, pictures and videos, a store of KV, and a batch worker."""
    args = {"step_ms": 2.0, "total_blocks": 512, "handoff": {"block_bytes": 2**16}}
    tiers = {"host_gb": 0.02, "disk": str(path / "kv"), "disk_look_s": 1}
    pools = {
        POOL: mock_pool(max_model_len=2048, block_size=32, **args) | {"tiers": tiers},
        VIDEOS: {"model": "filmer", "args": {"step_ms": 5.0}, "painting": _FILMS, **_PAINTS},
        IMAGES: {"model": "painter", **_PAINTS},
    }
    own = {
        "XYLEM_REQUIRE_KEYS": "true", "XYLEM_ADMIN_KEY": "sesame", "XYLEM_DEPLOYMENT": path.name,
        "XYLEM_FILES": str(path / "files"), "XYLEM_MEDIA_STORE": str(path / "media"), "XYLEM_STREAM_TTL_S": "3",
    }  # fmt: skip
    (path / "stack").mkdir()
    workers = {name: name for name in (*pools, *(["batch"] if batches else []))}
    with serving(redis_url, path / "stack", pools, workers, **own, **env) as s:
        yield s


def keep_tenant(s: Stack, tenant: Tenant) -> None:
    s.redis.hset(Keys(s.deployment).tenants(), tenant.name, encode(tenant))


@dataclass
class Holder:
    """The holder of a key, which is valid at the stack's API, and at other replicas `elsewhere` (URLs)."""

    s: Stack
    name: str
    tenant: str
    elsewhere: tuple[str, ...] = ()
    id: KeyId = field(default_factory=new_key_id)
    token: str = field(default_factory=lambda: f"xyl-{secrets.token_urlsafe(32)}")

    def __post_init__(self) -> None:
        digest = hashlib.sha256(self.token.encode()).digest()
        api_key = ApiKey(self.name, digest, time.time(), id=self.id, tenant=TenantId(self.tenant))
        self.s.redis.hset(Keys(self.s.deployment).api_keys(), self.name, encode(api_key))
        for url in (self.s.url, *self.elsewhere):  # each hears of it by itself
            wait_until(lambda url=url: self._is_valid(url), f"the key is valid at {url}")

    def _is_valid(self, url: str) -> bool:
        headers = {"authorization": f"Bearer {self.token}"}
        return httpx.get(f"{url}/v1/models", headers=headers, timeout=60).status_code == 200

    @cached_property
    def openai(self) -> OpenAI:
        return OpenAI(base_url=f"{self.s.url}/v1", api_key=self.token, max_retries=0, timeout=60)

    def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.token}"} | more.pop("headers", {})
        return httpx.request(method, self.s.url + path, headers=headers, timeout=60, **more)

    def chat(self, prompt: str = PROMPT, **more: Any) -> Any:
        body = {"model": "mock", "messages": [{"role": "user", "content": prompt}], "max_tokens": 4}
        return self.openai.chat.completions.create(**(body | more))

    def has_everything(self) -> dict[str, str]:
        """Makes one of everything, and waits for it. By parameters of paths: the ids."""
        api = self.openai
        file = api.files.create(file=("in.jsonl", LINE), purpose="batch").id
        batch = api.batches.create(input_file_id=file, endpoint="/v1/completions", completion_window="24h").id
        conversation = api.conversations.create(items=[{"type": "message", "role": "user", "content": "hi"}]).id
        response = api.responses.create(
            model="mock", input="hi", background=True, conversation=conversation, max_output_tokens=16
        ).id
        picture = api.images.generate(model="painter", prompt="a fish", response_format="url").data[0].url  # type: ignore[index]
        video = api.videos.create(model="filmer", prompt="a fish").id
        chat = self.chat(store=True).id
        params = {"model": "mock", "max_tokens": 2, "messages": [{"role": "user", "content": "a"}]}
        answer = self.call("POST", "/v1/messages/batches", json={"requests": [{"custom_id": "1", "params": params}]})
        message_batch = str(answer.json()["id"])
        wait_until(lambda: api.responses.retrieve(response).status == "incomplete", "the response")
        wait_until(lambda: api.videos.retrieve(video).status == "completed", "the video")
        results = f"/v1/messages/batches/{message_batch}/results"
        wait_until(lambda: self.call("GET", results).status_code == 200, "the message batch", 60)
        wait_until(lambda: [c.id for c in api.chat.completions.list()] == [chat], "the stored chat in the list")
        return {
            "file": file, "batch": batch, "conversation": conversation, "response": response, "video": video,
            "item": api.conversations.items.list(conversation).data[0].id or "", "chat": chat, "request": chat,
            "message_batch": message_batch, "picture": str(picture).rpartition("/")[2],
        }  # fmt: skip
