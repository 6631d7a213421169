"""The one frozen Settings object, from the environment (`XYLEM_…`). Read once per process."""

import math
import re
from base64 import b64decode
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from platformdirs import user_data_path
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.addresses.cell_address import DEPLOYMENT, CellAddress, cell_addresses, others
from app.addresses.redis_url import RedisUrl, cluster, split_urls, without_password
from app.addresses.url_secret import ENCODE, check_encoded
from app.errors import SettingsError
from app.intervals import Intervals
from app.keys import Keys

ANY = "*"


def data_folder() -> Path:
    """The checkout's own folder, or the user's."""
    checkout = Path(__file__).parents[1]
    return checkout / ".xylem" if (checkout / "pyproject.toml").exists() else user_data_path("xylem")


def _listed(pattern: str, meaning: str) -> BeforeValidator:
    """Reads names separated by commas, each matching `pattern` or ANY. `meaning` describes them in an error."""

    def read(text: str) -> frozenset[str]:
        names = frozenset(name.strip().lower() for name in text.split(",") if name.strip())
        for name in sorted(names - {ANY}):
            if not re.fullmatch(pattern, name):
                raise ValueError(f"{name!r} has to be {meaning}, or {ANY!r}")
        return names

    return BeforeValidator(read)


_ORIGINS = _listed(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+", "an origin such as 'https://app.example:8443', without a path")
_HOSTS = _listed(r"[a-z0-9._-]*[a-z0-9_-]|\[[0-9a-f:.]+\]", "a host such as 'api.example' or '[::2]', without a port")
_MEDIA_HOSTS = _listed(
    r"([a-z0-9._-]*[a-z0-9_-]|\[[0-9a-f:.]+\])(:[0-9]{1,5})?",
    "a host such as 'images.example', 'images.example:8443' or '[fd00::2]'",
)
_NONE: Any = Field(frozenset(), validate_default=False)


def _networks(text: str) -> frozenset[str]:
    return frozenset(str(ip_network(part.strip())) for part in text.split(",") if part.strip())


_LORA_SOURCE = r"/.*|(s3|https?)://[^/?#@\s]+(/[^?#\s]*)?|hf://[\w.-]+(/[\w.-]+)?"


def _sources(text: str) -> tuple[str, ...]:
    sources = tuple(part.strip() for part in text.split(",") if part.strip())
    for source in sources:
        if not re.fullmatch(_LORA_SOURCE, source) or ".." in source.split("/"):
            raise ValueError(
                f"{source!r} has to be an absolute path, or 's3://bucket/folder', 'hf://organisation/name', "
                "'https://host/folder'"
            )
    return sources


def _parts(value: Any) -> Any:
    return frozenset(part.strip() for part in value.split(",")) - {""} if isinstance(value, str) else value


def _whsec(secret: SecretStr) -> SecretStr:
    scheme, _, key = secret.get_secret_value().partition("_")
    try:
        if scheme != "whsec" or not b64decode(key, validate=True):
            raise ValueError("is empty")
    except ValueError as exc:
        raise ValueError(f"has to be 'whsec_' and a key in base64: {exc}") from exc
    return secret


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _database(url: SecretStr) -> SecretStr:
    scheme = url.get_secret_value().partition("://")[0].partition("+")[0]
    if scheme not in ("sqlite", "postgresql"):
        raise ValueError(f"begins with {scheme[:20]!r}: it has to be 'sqlite:///…' or 'postgresql://…'")
    # SQLAlchemy takes what is before the first '@' for the password, and names the rest as a host.
    if scheme == "postgresql" and url.get_secret_value().partition("?")[0].count("@") > 1:
        raise ValueError(ENCODE)
    return url


def _webhook(url: str) -> str:
    """Its user and password are sent along. What is wrong with it is told without any part of it."""
    check_encoded(url)
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # its own words have what it takes for the port
        is_url = False
    if not is_url:
        raise ValueError(f"has to be http://host… or https://host…; {ENCODE}")
    return url


class Settings(BaseSettings):
    """A process's settings, from its environment. Times in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="XYLEM_", frozen=True, extra="ignore")

    # Redis 7 or newer, or Valkey: `redis://`, `rediss://` for TLS, `unix://` for a socket, with user and password; or
    # Sentinels, as `sentinel://` or `sentinels://`; or some nodes of a cluster, as `cluster://` or `clusters://`.
    redis_url: RedisUrl = "redis://127.0.0.1:6379/0"
    # The Redis of Celery's messages and events, if it is another one: the same for all processes of a deployment. None:
    # XYLEM_REDIS_URL, and a request's record, reservation and message are written in one step. A cluster needs one.
    broker_url: Annotated[RedisUrl | None, Field(validate_default=True)] = None
    # The Redis for the results of Celery tasks that submit batches: the batch's id or, if the task asks for them, its
    # answers, for a day. The same for batch workers, beat and whoever submits. None: no result is kept.
    result_url: Annotated[RedisUrl | None, Field(validate_default=True)] = None
    # Redis servers for tokens alone, with commas between; they need to store nothing on disk. Each API replica takes
    # one. Give them to workers first, then to API replicas; new ones at the end. None: XYLEM_REDIS_URL has all.
    token_redis_urls: Annotated[tuple[RedisUrl, ...], NoDecode, BeforeValidator(split_urls)] = Field(
        (), validate_default=False
    )
    # A Redis server for the prefix index, which routing reads for each request; it needs to store nothing on disk.
    # While it is away, requests are placed as if nothing were cached. None: XYLEM_REDIS_URL has it.
    index_url: RedisUrl | None = None
    # The prefix of all keys in Redis, so that several deployments may share one.
    deployment: Annotated[str, Field(pattern=DEPLOYMENT)] = "xylem"
    # Deployments that serve the same models together, as `redis://a:6379/0#xylem,redis://b:6379/0#xylem`: each has its
    # XYLEM_REDIS_URL and XYLEM_DEPLOYMENT here. When its own has no room, an API replica sends requests to the others.
    # Its own may be in the list, which can so be the same everywhere. All need the same pools. One with an
    # XYLEM_BROKER_URL has `#broker=` and that behind its name.
    cells: Annotated[tuple[CellAddress, ...], NoDecode, BeforeValidator(cell_addresses)] = Field(
        (), validate_default=False
    )
    # A cell's Redis that has been unreachable for so long is lost: requests that are on its workers go on elsewhere.
    cell_lost_s: Annotated[float, Field(gt=0)] = 10.0
    pools_file: Path = Path("pools.yaml")  # which models there are, on which engines
    # The folder of models, downloads, logs and embedded Valkeys' data. Not set: the user's data folder
    # (`~/.local/share/xylem`, or below XDG_DATA_HOME); in a checkout, its `.xylem`.
    home: Path = Field(default_factory=data_folder)
    # The folder of what belongs to this deployment: files, painted media, `usage.sqlite`. None: `deployments`, and the
    # deployment's name, in XYLEM_HOME; under `xylem up` with its own Valkey, the folder `run` and the port there.
    state: Path | None = None

    # The folder of models that the pools file names by `hf://` or `s3://`, for all processes of this machine. None:
    # `fetched` in XYLEM_HOME.
    model_store: Path | None = None
    # Bytes of all models in it: for a new one, those that were not used for the longest time are deleted. None that a
    # process uses is.
    model_store_bytes: Annotated[int, Field(gt=0)] = 500 * 2**30

    # Of a worker: bytes of encoded pictures that it keeps for others, or fetches from them at once.
    embedding_bytes: Annotated[int, Field(ge=2**16)] = 256 * 2**20
    # Of a worker, of batches too: the port of its own /live, /ready and /metrics, at XYLEM_ADDRESS. 0: a free one, as
    # several workers of a host need it; `GET /sd` of the API tells Prometheus which. None: it has no port.
    worker_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    # Whether a worker with a port also has its engine's own metrics there. They cost CPU in each of the engine's steps.
    engine_metrics: bool = True
    # Of the planner: how the Deployments of pools are named in Kubernetes, before `-` and the pool's name.
    kubernetes_name: str = "xylem"
    # Of the planner: the configuration of `ssh` with which it reaches workers' hosts. None: ssh's own.
    ssh_config: Path | None = None
    # The address that the API listens on. `0.0.0.0`: all of IPv4; `::`: all of IPv6 and IPv4.
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000  # the port that the API listens on
    # How long a connection without a request stays open. Longer than any proxy in front keeps its own (nginx: 60 s), or
    # a request that it sends just then is lost.
    keep_alive_s: Annotated[int, Field(ge=1)] = 75
    # How long a client may take for a request's headers, from its first byte or the connection's beginning. Then it
    # gets 408.
    head_s: Annotated[float, Field(gt=0)] = 20.0
    # How long a client may send less than a kilobyte a second of a body. Then it gets 408.
    body_s: Annotated[float, Field(gt=0)] = 30.0
    # Requests of one address, which may be a proxy's, whose headers or bodies have not come whole; the oldest of more
    # get 408.
    unfinished: Annotated[int, Field(gt=0)] = 512
    # Bytes of bodies over 64 KiB that come in at once at one API replica, uploads included until they are stored. A
    # tenant may have half of it, a key a quarter, and neither more than is left then. As many again of pictures, sounds
    # and videos until they are decoded, and of long answers that are kept and shown until they are taken, of which a
    # tenant may have half.
    incoming_bytes: Annotated[int, Field(gt=0)] = 2**30
    # The path below which a proxy in front serves the API, such as `/llm`, whether the proxy takes it away or not.
    root_path: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._~-]+)*$")] = ""
    # Networks of proxies in front, such as `10.0.0.0/8,::1`: their `X-Forwarded-For`, `-Proto` and `-Host` are taken
    # for the client's address, scheme and host. Empty: nobody's are.
    trusted_proxies: Annotated[frozenset[str], NoDecode, BeforeValidator(_networks)] = _NONE
    # The port at which the API takes the Open Inference Protocol over gRPC, without TLS. 0: a free one, which the log
    # names. None: no gRPC.
    grpc_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    # The key of the endpoints under /admin. Without one they answer on loopback only, so set one behind a proxy.
    admin_key: Annotated[SecretStr, Field(min_length=1)] | None = None
    # A key for the same, which `xylem up` makes for the link that signs in to the console, where there is no
    # XYLEM_ADMIN_KEY. Where clients need keys, so do the endpoints; else others on loopback are answered as without it.
    sign_in_key: Annotated[SecretStr, Field(min_length=1)] | None = None
    require_keys: bool = False  # whether clients need an API key, as `xylem keys` makes them, or a token of the issuer
    # An OpenID Connect issuer, `https://login.example/realms/a` (`http://` on loopback only): its tokens (JWT) serve in
    # place of API keys. Needs XYLEM_REQUIRE_KEYS and an audience. None: there is none.
    oidc_issuer: Annotated[str, Field(pattern=r"^https?://[^/?#@\s]+(/[^?#\s]*)?$")] | None = None
    # What tokens have to name as their audience. None: there is no issuer.
    oidc_audience: Annotated[str | None, Field(min_length=1, validate_default=True)] = None
    oidc_tenant_claim: Annotated[str, Field(min_length=1)] = "tenant"  # the claim with the tenant's name; `a.b`: b in a
    # The claim with the models that may be asked for, a list or names with spaces between; a token without it may ask
    # for none. None: those of the tenant.
    oidc_models_claim: Annotated[str, Field(min_length=1)] | None = None
    # Tokens for the endpoints under /admin, beside XYLEM_ADMIN_KEY, as `<claim>=<value>`: those whose claim is the
    # value or has it in a list, such as `groups=operators` (in a text, with spaces between, of `scope` and `scp` only).
    # None: no token.
    oidc_admin: Annotated[str, Field(pattern=r"^[^=\s]+=[^=\s]+$")] | None = None
    # Whether each request leaves a record of what it used, for `xylem usage write`. None: if keys are required.
    usage: bool | None = None
    # The database of usage: `postgresql://user:password@host/name`, or `sqlite:////folder/file`, for processes of one
    # host. None: the file `usage.sqlite` of XYLEM_STATE.
    usage_url: Annotated[SecretStr, AfterValidator(_database)] | None = None
    usage_report_s: Annotated[float, Field(gt=0)] = 20.0  # how long the database may work on a report over HTTP
    # The folder of the processes' logs whose ends admins are shown. `xylem up` sets it. None: none is shown.
    logs: Path | None = None
    console: bool = True  # whether the API has the console, pages for a browser, at /console
    # Origins whose web pages may send requests, besides our own: `https://app.example,http://localhost:3000`; `*`: all.
    allowed_origins: Annotated[frozenset[str], NoDecode, _ORIGINS] = _NONE
    # Host names that requests may name, besides loopback's, such as `api.example`; `*`: any. They are checked if some
    # are given here, or if the API listens on loopback only.
    allowed_hosts: Annotated[frozenset[str], NoDecode, _HOSTS] = _NONE
    max_body: Annotated[int, Field(gt=0)] = 16 * 2**20  # bytes of a request's body, files excepted
    # This host's address for engines on other hosts that pull KV from it, and for workers that collect pictures from an
    # API replica. None: the one that reaches Redis.
    address: str | None = None
    request_timeout_s: Annotated[float, Field(gt=0)] = 600.0  # the deadline of requests that name no `timeout`
    # The longest silence in a stream of events. Less than the time-out of a proxy in front: nginx closes after 60 s.
    sse_ping_s: Annotated[float, Field(gt=0)] = 10.0
    # Bytes: the text of larger bodies is tokenised in a thread, which costs 0.2 ms more. Most such texts take 1 ms.
    tokenize_off_loop: Annotated[int, Field(ge=0)] = 24 * 2**10

    # Whether requests may bring a `chat_template` of their own. It is a program in a sandbox, in a process with bounds
    # on time and memory; yet each costs up to two seconds of CPU time.
    request_chat_templates: bool = False

    # The most urgent `priority` that a request may name; lower is sooner. 0: none goes before requests without one.
    min_priority: Annotated[int, Field(ge=-(2**31), le=0)] = -100
    max_queued: Annotated[int, Field(ge=0)] = 1024  # a worker with more waiting requests is full
    retry_after_s: Annotated[int, Field(ge=1)] = 1  # seconds in the `Retry-After` of a 429

    # Where files are stored, the same for all processes: a shared folder, or `s3://bucket/folder` with the package
    # `s3fs` and AWS's own variables. None: the folder `files` of XYLEM_STATE.
    files: str | None = None
    # Bytes of one file. During its upload it is in the API's temporary folder.
    max_file: Annotated[int, Field(gt=0)] = 200 * 2**20
    # Bytes of all files of an API key, each with 1 KiB for its record, unless the key has its own quota; where no keys
    # are required, of all clients together.
    file_quota: Annotated[int, Field(ge=0)] = 10 * 2**30
    file_bytes_in_all: Annotated[int, Field(ge=0)] = 2**40  # of all files of all clients
    # Where painted pictures and videos are stored, and strings over 1 MB of kept requests and conversations, such as a
    # photo. As XYLEM_FILES; None: the folder `media` of XYLEM_STATE.
    media_store: str | None = None
    media_keep_s: Annotated[int, Field(ge=1)] = 3600  # how long a painted picture or video is kept
    # Where clients reach the API, such as `https://api.example`, for the URLs of pictures and of results. None: as the
    # request says.
    public_url: Annotated[str, Field(pattern=r"^https?://[^/?#@\s]+(/[^?#\s]*)?$")] | None = None
    file_keep_s: Annotated[int, Field(ge=3600)] = 30 * 86_400  # how long files without an expiry of their own are kept
    batch_keep_s: Annotated[float, Field(gt=0)] = 30 * 86_400.0  # how long batches are kept after their end
    # Batches of one API key that have not ended (where no keys are required, of all clients together). Of those that
    # have, the newest 1,000, or twice as many as this, are kept.
    batches_per_key: Annotated[int, Field(gt=0)] = 500
    batches_in_all: Annotated[int, Field(gt=0)] = 10_000  # the same, of all clients
    webhook_url: Annotated[str, AfterValidator(_webhook)] | None = (
        None  # is called when a batch or a background response has ended, and when a budget is nearly used or used
    )
    webhook_secret: Annotated[SecretStr, AfterValidator(_whsec)] | None = None  # "whsec_…", the key that signs calls
    # The folder below which new weights for `POST /admin/pools/{pool}/weights` have to be, on the workers' hosts. None:
    # weights come through transfer groups only.
    weights_folder: Path | None = None
    # Is asked about the contents of requests and answers before they go on: see "Erasing and inspecting".
    hook_url: Annotated[str, AfterValidator(_webhook)] | None = None
    hook_timeout_s: Annotated[float, Field(gt=0, le=60)] = 2.0  # for each call
    # When it does not answer, or not as it should: `closed` refuses the request with 503, `open` lets it go on.
    hook_fail: Literal["open", "closed"] = "closed"
    # What it is asked about: `prompt`, `answer` or both, with a comma between. With `answer`, streams are held until
    # their answer is complete.
    hook_parts: Annotated[frozenset[Literal["prompt", "answer"]], NoDecode, BeforeValidator(_parts)] = Field(
        frozenset({"prompt", "answer"}), validate_default=False, min_length=1
    )
    hook_secret: Annotated[SecretStr, AfterValidator(_whsec)] | None = None  # as XYLEM_WEBHOOK_SECRET, for its calls
    schedule_file: Path | None = None  # batches that begin at given times, for `celery -A app beat`

    # Where LoRA adapters may be fetched from, with commas between: folders, `s3://bucket/folder`,
    # `hf://organisation/name`, and `https://host/folder` or `http://…`; each with all that is below it, as
    # `hf://organisation` has all of its repositories. None: the folder `adapters` of XYLEM_HOME.
    lora_sources: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_sources)] | None = None
    # Networks besides the public ones in which the hosts among these may be, such as `10.0.0.0/8`.
    lora_networks: Annotated[frozenset[str], NoDecode, BeforeValidator(_networks)] = _NONE
    # The folder where a worker keeps adapters that it has fetched; workers of one host may share it. None: the folder
    # `lora-store` of XYLEM_HOME.
    lora_store: Path | None = None
    lora_store_bytes: Annotated[int, Field(gt=0)] = 20 * 2**30  # of all adapters in there
    max_lora: Annotated[int, Field(gt=0)] = 4 * 2**30  # bytes of one adapter

    # Hosts that pictures, sound and video of requests may be fetched from, by HTTPS: `images.example`, with commas
    # between. `*`: all names with a public address, at port 443. Another port, or an address in place of a name, has
    # to be named: `images.example:8443`, `10.0.0.5`. Empty: nothing is fetched.
    media_hosts: Annotated[frozenset[str], NoDecode, _MEDIA_HOSTS] = Field(frozenset({ANY}), validate_default=False)
    # Networks besides the public ones in which these hosts may be, such as `10.0.0.0/8`.
    media_networks: Annotated[frozenset[str], NoDecode, BeforeValidator(_networks)] = _NONE
    media_folder: Path | None = None  # `file:` URLs name files below it, on the API's host. None: they are refused
    # Different pictures, sounds and videos of one request: a URL or a file that it names several times counts once.
    media_count: Annotated[int, Field(gt=0)] = 8
    media_bytes: Annotated[int, Field(gt=0)] = 16 * 2**20  # bytes of one of them, as it is sent
    media_pixels: Annotated[int, Field(gt=0)] = 4096**2  # of a picture, or of all frames that are taken from a video
    media_frames: Annotated[int, Field(gt=0)] = 8  # taken from a video, at equal distances
    media_video_s: Annotated[float, Field(gt=0)] = 120.0  # the longest video
    media_connect_s: Annotated[float, Field(gt=0)] = 5.0  # for a name's address, and again for the connection
    media_fetch_s: Annotated[float, Field(gt=0)] = 15.0  # for the whole of it, redirects included
    media_redirects: Annotated[int, Field(ge=0)] = 3  # that are followed; each is checked as the URL is
    # CPU time for decoding one of them, in whole seconds.
    media_decode_s: Annotated[int, Field(gt=0)] = 5
    # Bytes of pictures, sounds and embeddings, unpacked, of all requests in progress: of those up to 1 MB in Redis, and
    # as many again of larger ones in the memory of each API replica and batch worker. A tenant may have half of it, and
    # a key a quarter.
    media_held: Annotated[int, Field(gt=0)] = 2**30
    # The port, at XYLEM_ADDRESS, where workers collect the larger ones from an API replica or batch worker. 0: a free
    # one, as several processes of a host need it.
    media_port: Annotated[int, Field(ge=0, le=65535)] = 0
    # How long those in Redis stay if the API replica of their request has died, and no other one has continued it.
    media_left_s: Annotated[float, Field(ge=1)] = 300.0
    # The longest sound. A second of it takes 64 kB of memory until it is answered.
    media_sound_s: Annotated[float, Field(gt=0)] = 1800.0
    media_sound_bytes: Annotated[int, Field(gt=0)] = 25 * 2**20  # bytes of a file to be transcribed
    media_sound_decode_s: Annotated[int, Field(gt=0)] = 20  # CPU time for decoding a sound, in whole seconds
    # Bytes of memory for decoding one of them.
    media_decode_bytes: Annotated[int, Field(ge=2**28)] = 2**30

    keep_s: Annotated[float, Field(gt=0)] = 3600.0  # how long an answer can be resumed or fetched after its end
    # Bytes that kept answers may take with their requests, about 100 a token: in Redis, and of long strings in
    # XYLEM_MEDIA_STORE. When they are used up, a new one is refused with 429 `kept_answers_full`, and one that is being
    # made is kept no more: it goes on for who reads it at the replica that makes it; a background answer ends. Metadata
    # that become longer are refused, too.
    keep_bytes: Annotated[int, Field(gt=0)] = 2**30
    # The same for one API key. Where no keys are required, all clients count as one.
    keep_bytes_per_key: Annotated[int, Field(gt=0)] = 256 * 2**20
    # How long a request waits for Redis or a worker. A new one waits only if its model had a worker within this time.
    patience_s: Annotated[float, Field(ge=0)] = 60.0
    # A request is given up after more deaths of its workers than this, if it had no output on them; with output, after
    # three times as many. A line of a batch after so many of batch workers that began it, and nothing else.
    max_migrations: Annotated[int, Field(ge=0)] = 3

    lease_ttl_s: Annotated[float, Field(gt=0)] = 2.0  # a worker that has not renewed its lease for so long is dead
    heartbeat_s: Annotated[float, Field(gt=0)] = 0.5  # how often a worker renews its lease
    # An API replica or batch worker that has not renewed its lease for so long is dead.
    api_ttl_s: Annotated[float, Field(gt=0)] = 3.0
    # A worker whose engine has work and makes no token for so long is ended. Longer than your longest prefill.
    stall_s: Annotated[float, Field(gt=0)] = 60.0
    # A worker without requests for so long asks its engine for a token that nobody gets. One that is late takes the
    # worker out of routing until it comes; after `XYLEM_STALL_S`, or a failure, the worker is ended. 0: never.
    canary_s: Annotated[float, Field(ge=0)] = 10.0
    # How long a worker or an API replica may take to finish its requests after SIGTERM. Under `xylem up` it is 30 s,
    # for the API 24 s. Of answers that take longer, a worker gives its own to others; the API ends them with an error.
    drain_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    # Bytes of token messages that Redis keeps for one API replica, for when its connection breaks. Tokens that the
    # replica then does not find are computed again.
    stream_bytes: Annotated[int, Field(gt=0)] = 32 * 2**20
    stream_ttl_s: Annotated[int, Field(gt=0)] = 60  # how long Redis keeps these messages

    # Arguments of this worker's engine, before those of its pool, as JSON: `xylem worker --set` writes it.
    engine_args: dict[str, Any] = {}

    log_level: Literal["debug", "info", "warning", "error"] = (
        "info"  # of all processes and engines; prompts are in no log, but of tenants that agreed
    )
    log_json: bool = False  # one JSON object a line
    # Whether the API's log has a line, `request_ended`, after each request's end: method, route, status, seconds,
    # bytes. It has no prompts, no keys and no query. Answers then cost a little more.
    access_log: bool = False

    @field_validator("broker_url")
    @classmethod
    def _is_one_server(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Celery knows no clusters."""
        main = info.data.get("redis_url", "redis://")  # none if it is bad itself
        if value is None and cluster(main) is not None:
            main_url = without_password(main)
            raise ValueError(
                f"is missing: Celery's broker is a single Redis, and XYLEM_REDIS_URL={main_url!r} is a cluster"
            )
        if value is not None and cluster(value) is not None:
            raise ValueError(f"{without_password(value)!r} is a cluster, which can't be Celery's broker")
        return value

    @field_validator("result_url")
    @classmethod
    def _has_results(cls, value: str | None) -> str | None:
        if value is not None and cluster(value) is not None:
            raise ValueError(f"{without_password(value)!r} is a cluster, which can't have Celery's results")
        return value

    @field_validator("token_redis_urls", "index_url")
    @classmethod
    def _alone_is_no_cluster(cls, value: Any, info: ValidationInfo) -> Any:
        """The names of keys are those of a cluster or of a server, of all URLs alike."""
        main = info.data.get("redis_url", "cluster://")  # none if it is bad itself
        for url in (value,) if isinstance(value, str) else value or ():
            if cluster(url) is not None and not main.startswith("cluster"):
                raise ValueError(f"{without_password(url)!r} is a cluster, and XYLEM_REDIS_URL is none")
        return value

    @field_validator("oidc_issuer", "oidc_audience")
    @classmethod
    def _is_checked(cls, value: str | None, info: ValidationInfo) -> str | None:
        """A token without an audience could be one for another service."""
        issuer = info.data.get("oidc_issuer")
        if info.field_name == "oidc_audience":
            if (value is None) != (issuer is None):
                missing = "XYLEM_OIDC_AUDIENCE" if value is None else "XYLEM_OIDC_ISSUER"
                raise ValueError(f"XYLEM_OIDC_ISSUER and XYLEM_OIDC_AUDIENCE need each other: {missing} is missing")
            return value
        if value is None:
            return value
        host = urlsplit(value).hostname or ""
        if value.startswith("http://") and not _is_loopback(host):
            raise ValueError(f"{value!r} has to begin with https://: keys that come without TLS could be anybody's")
        if not info.data.get("require_keys", True):
            raise ValueError("needs XYLEM_REQUIRE_KEYS=true: without it no request needs a key or a token")
        return value

    @field_validator("heartbeat_s", "stream_ttl_s")
    @classmethod
    def _fits_the_lease(cls, value: float, info: ValidationInfo) -> float:
        lease_s = info.data.get("lease_ttl_s", math.nan)  # none if it is bad itself
        if info.field_name == "heartbeat_s" and value > lease_s / 2:
            raise ValueError(
                f"{value:g} is more than half of XYLEM_LEASE_TTL_S ({lease_s:g}): a worker that renews its lease "
                "late once would be taken for dead"
            )
        if info.field_name == "stream_ttl_s" and value < lease_s:
            raise ValueError(
                f"{value:g} is less than XYLEM_LEASE_TTL_S ({lease_s:g}): the last messages of a dead worker would "
                "be gone before its death is known"
            )
        return value

    def others(self) -> list[tuple[str, "Settings"]]:
        """The other cells' names, and their settings as far as an API replica needs them."""
        return [
            (cell.name, self.model_copy(update={**cell._asdict(), "token_redis_urls": (), "index_url": None}))
            for cell in others(self.cells, self.redis_url, self.deployment)
        ]

    @property
    def keys(self) -> Keys:
        return Keys(self.deployment, clustered=cluster(self.redis_url) is not None)

    @property
    def intervals(self) -> Intervals:
        return Intervals(self.heartbeat_s, self.api_ttl_s)

    @property
    def admin_keys(self) -> tuple[SecretStr, ...]:
        return tuple(key for key in (self.admin_key, self.sign_in_key) if key is not None)

    @property
    def records_usage(self) -> bool:
        return self.require_keys if self.usage is None else self.usage

    @property
    def state_folder(self) -> Path:
        return (self.state or self.home / "deployments" / self.deployment).resolve()

    @property
    def run_folder(self) -> Path:
        """The folder of the `xylem up` at this port: several systems of a user don't get in each other's way."""
        return self.home / "run" / str(self.port)

    @property
    def usage_database(self) -> str:
        url = self.usage_url
        return f"sqlite:///{self.state_folder / 'usage.sqlite'}" if url is None else url.get_secret_value()

    @property
    def files_url(self) -> str:
        return self.files or str(self.state_folder / "files")

    @property
    def media_store_url(self) -> str:
        return self.media_store or str(self.state_folder / "media")

    @property
    def allowed_lora_sources(self) -> tuple[str, ...]:
        return (str((self.home / "adapters").resolve()),) if self.lora_sources is None else self.lora_sources

    @property
    def lora_store_path(self) -> Path:
        return (self.lora_store or self.home / "lora-store").resolve()

    @property
    def fetched_models(self) -> Path:
        return (self.model_store or self.home / "fetched").resolve()

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine reaches the API."""
        return _is_loopback(self.host) and not self.trusted_proxies


def load_settings(**overrides: Any) -> Settings:
    """Raises: SettingsError naming each bad variable and its value."""
    try:
        return Settings(**overrides)
    except ValidationError as exc:
        raise SettingsError(explain(exc, _variable)) from exc


def _variable(loc: list[str]) -> str:
    name, *entries = loc
    return f"XYLEM_{name.upper()}" + "".join(f"[{entry}]" for entry in entries)


def explain(exc: ValidationError, name: Callable[[list[str]], str]) -> str:
    """All errors in one line."""
    return "; ".join(explanations(exc, name))


def explanations(exc: ValidationError, name: Callable[[list[str]], str]) -> list[str]:
    """A sentence for each error, with its value and the key that `name` makes of its path."""
    lines = []
    for err in exc.errors():
        key = name([str(part) for part in err["loc"]])
        value = "" if err["type"] in ("missing", "value_error") else f"={err['input']!r}"
        lines.append(f"{key}{value}: {err['msg'].removeprefix('Value error, ')}")
    return lines
