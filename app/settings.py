"""The one frozen Settings object (environment, `XYLEM_…`) and the pools file (YAML).

Both are read once per process; what does not parse raises SettingsError naming key and value.
"""

import json
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.errors import SettingsError
from app.ids import PoolId
from app.messages import Role


class Settings(BaseSettings):
    """What a process is told by its environment. Times in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="XYLEM_", frozen=True, extra="ignore")

    redis_url: Annotated[str, Field(pattern=r"^(redis|rediss|unix)://")] = "redis://127.0.0.1:6379/0"
    deployment: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")] = "xylem"
    pools_file: Path = Path("pools.yaml")
    home: Path = Path(".xylem")  # models, logs and the embedded Valkey's data

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    max_body: Annotated[int, Field(gt=0)] = 16 * 2**20
    request_timeout_s: Annotated[float, Field(gt=0)] = 600.0  # of requests that name none
    tokenize_off_loop: Annotated[int, Field(ge=0)] = 8192  # characters above which a thread tokenises

    max_queued: Annotated[int, Field(ge=0)] = 1024  # requests waiting at a worker above which it is full
    retry_after_s: Annotated[int, Field(ge=1)] = 1

    lease_ttl_s: Annotated[float, Field(gt=0)] = 5.0
    heartbeat_s: Annotated[float, Field(gt=0)] = 1.0
    drain_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    stream_maxlen: Annotated[int, Field(gt=0)] = 8192  # messages kept for one API replica
    stream_ttl_s: Annotated[int, Field(gt=0)] = 3600

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_json: bool = False


class Pool(BaseModel):
    """A named set of identical workers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Annotated[str, Field(min_length=1)]  # the name clients ask for
    engine: Literal["mock", "vllm"]
    path: Path | None = None  # Hugging Face directory: tokenizer, template, weights; mock has its own
    role: Role = "both"
    block_size: Annotated[int, Field(gt=0)] = 32  # tokens in a KV block
    max_running: Annotated[int, Field(gt=0)] = 64  # requests batched at once
    max_model_len: Annotated[int, Field(gt=0)] | None = None  # tokens; the model's own when not given
    chat_template: Path | None = None  # a Jinja file instead of the model's own
    args: dict[str, Any] = {}  # the engine's own arguments

    @cached_property
    def model_dir(self) -> Path:
        if self.path is not None:
            return self.path
        return Path(__file__).parent / "engines" / "mock" / "model"

    @cached_property
    def context_len(self) -> int:
        """Tokens that prompt and answer may have together.

        Raises: SettingsError when the model's config.json can't be read.
        """
        if self.max_model_len is not None:
            return self.max_model_len
        try:
            return int(json.loads((self.model_dir / "config.json").read_text())["max_position_embeddings"])
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise SettingsError(f"path={self.model_dir}: no readable config.json there ({exc})") from exc


class _PoolsFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    pools: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")], Pool]


Pools = dict[PoolId, Pool]


def load_settings(**overrides: Any) -> Settings:
    """Raises: SettingsError naming each bad variable and its value."""
    try:
        return Settings(**overrides)
    except ValidationError as exc:
        raise SettingsError(_explain(exc, lambda loc: "XYLEM_" + "_".join(loc).upper())) from exc


def load_pools(path: Path) -> Pools:
    """Raises: SettingsError naming the file, the key and the value."""
    try:
        doc = yaml.safe_load(path.read_text())
    except OSError as exc:
        raise SettingsError(f"XYLEM_POOLS_FILE={path}: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{path}: not YAML: {exc}") from exc
    try:
        parsed = _PoolsFile.model_validate(doc)
    except ValidationError as exc:
        raise SettingsError(f"{path}: {_explain(exc, '.'.join)}") from exc
    for name, pool in parsed.pools.items():
        if pool.engine != "mock" and pool.path is None:
            raise SettingsError(f"{path}: pools.{name}.path: engine {pool.engine} needs a model directory")
    return {PoolId(name): pool for name, pool in parsed.pools.items()}


def _explain(exc: ValidationError, name: Any) -> str:
    lines = []
    for err in exc.errors():
        key = name([str(part) for part in err["loc"]])
        shown = "" if err["type"] == "missing" else f"={err['input']!r}"
        lines.append(f"{key}{shown}: {err['msg']}")
    return "; ".join(lines)
