"""The one frozen Settings object, from the environment (`XYLEM_…`). Read once per process."""

import re
from base64 import b64decode
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.errors import SettingsError
from app.redis_url import RedisUrl

ANY = "*"


def _listed(pattern: str, wanted: str) -> BeforeValidator:
    """Reads names with commas between, all of them as `wanted`, or ANY."""

    def read(text: str) -> frozenset[str]:
        names = frozenset(name.strip().lower() for name in text.split(",") if name.strip())
        for name in sorted(names - {ANY}):
            if not re.fullmatch(pattern, name):
                raise ValueError(f"{name!r} has to be {wanted}, or {ANY!r}")
        return names

    return BeforeValidator(read)


_ORIGINS = _listed(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+", "an origin such as 'https://app.example:8443', without a path")
_HOSTS = _listed(r"[a-z0-9._-]*[a-z0-9_-]|\[[0-9a-f:.]+\]", "a host such as 'api.example' or '[::2]', without a port")
_NONE: Any = Field(frozenset(), validate_default=False)


def _whsec(secret: SecretStr) -> SecretStr:
    scheme, _, key = secret.get_secret_value().partition("_")
    try:
        if scheme != "whsec" or not b64decode(key, validate=True):
            raise ValueError("is empty")
    except ValueError as exc:
        raise ValueError(f"has to be 'whsec_' and a key in base64: {exc}") from exc
    return secret


class Settings(BaseSettings):
    """What a process is told by its environment. Times in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="XYLEM_", frozen=True, extra="ignore")

    redis_url: RedisUrl = "redis://127.0.0.1:6379/0"
    deployment: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")] = "xylem"
    pools_file: Path = Path("pools.yaml")
    home: Path = Path(".xylem")  # models, logs and the embedded Valkey's data

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    admin_key: Annotated[SecretStr, Field(min_length=1)] | None = (
        None  # of the endpoints under /admin; without one they answer on loopback only
    )
    require_keys: bool = False  # of clients: `xylem keys`
    allowed_origins: Annotated[frozenset[str], NoDecode, _ORIGINS] = _NONE  # of web pages, besides our own
    allowed_hosts: Annotated[frozenset[str], NoDecode, _HOSTS] = _NONE  # that a request may name, besides loopback's
    max_body: Annotated[int, Field(gt=0)] = 16 * 2**20
    address: str | None = None  # of this host, for workers on others; None: that on the way to Redis
    request_timeout_s: Annotated[float, Field(gt=0)] = 600.0  # of requests that name none
    sse_ping_s: Annotated[float, Field(gt=0)] = 10.0  # no stream of events is silent for longer
    tokenize_off_loop: Annotated[int, Field(ge=0)] = 8192  # bytes of a body above which a thread tokenises

    min_priority: Annotated[int, Field(ge=-(2**31), le=0)] = -100  # lower is sooner: no client may ask for a lower one
    max_queued: Annotated[int, Field(ge=0)] = 1024  # requests waiting at a worker above which it is full
    retry_after_s: Annotated[int, Field(ge=1)] = 1

    files: str | None = None  # where files lie: a path or, for fsspec, `s3://bucket/folder`; None: a folder of `home`
    max_file: Annotated[int, Field(gt=0)] = 200 * 2**20
    file_quota: Annotated[int, Field(ge=0)] = 10 * 2**30  # bytes of all files of an API key that says nothing else
    file_keep_s: Annotated[int, Field(ge=3600)] = 30 * 86_400  # files that say nothing else
    batch_keep_s: Annotated[float, Field(gt=0)] = 30 * 86_400.0  # after its end
    webhook_url: str | None = None  # is told of the ends of batches
    webhook_secret: Annotated[SecretStr, AfterValidator(_whsec)] | None = None  # "whsec_…", which signs that
    schedule_file: Path | None = None  # batches that begin by the clock, for `celery -A app beat`

    keep_s: Annotated[float, Field(gt=0)] = 3600.0  # answers that can be resumed or fetched are kept so long
    keep_bytes: Annotated[int, Field(gt=0)] = 2**30  # of kept answers with their requests, in Redis
    keep_bytes_per_key: Annotated[int, Field(gt=0)] = 256 * 2**20  # of one API key; who needs none is one
    # Requests wait so long for Redis, or for a worker; new ones if the last was there so short a time ago.
    patience_s: Annotated[float, Field(ge=0)] = 60.0
    max_migrations: Annotated[int, Field(ge=0)] = 3  # workers that may die with a request before it is given up

    lease_ttl_s: Annotated[float, Field(gt=0)] = 2.0
    heartbeat_s: Annotated[float, Field(gt=0)] = 0.5
    api_ttl_s: Annotated[float, Field(gt=0)] = 3.0
    stall_s: Annotated[float, Field(gt=0)] = 60.0  # an engine that has work and makes no token for so long hangs
    drain_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    stream_bytes: Annotated[int, Field(gt=0)] = 32 * 2**20  # of token messages, kept for one API replica
    stream_ttl_s: Annotated[int, Field(gt=0)] = 60

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_json: bool = False

    @property
    def files_url(self) -> str:
        return self.files or str((self.home / "files").resolve())

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine reaches the API."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False


def load_settings(**overrides: Any) -> Settings:
    """Raises: SettingsError naming each bad variable and its value."""
    try:
        return Settings(**overrides)
    except ValidationError as exc:
        raise SettingsError(explain(exc, lambda loc: "XYLEM_" + "_".join(loc).upper())) from exc


def explain(exc: ValidationError, name: Callable[[list[str]], str]) -> str:
    """What is wrong, each with the key that `name` makes of its path, and the value."""
    lines = []
    for err in exc.errors():
        key = name([str(part) for part in err["loc"]])
        shown = "" if err["type"] in ("missing", "value_error") else f"={err['input']!r}"
        lines.append(f"{key}{shown}: {err['msg'].removeprefix('Value error, ')}")
    return "; ".join(lines)
