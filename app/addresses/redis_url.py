"""`XYLEM_REDIS_URL`: where Redis is, or the Sentinels that know where it is at present, or some nodes of a cluster.

    redis://[user:password@]host[:6379][/db]      rediss:// with TLS      unix:///path/to/socket
    sentinel://[user:password@]host[:26379],host[:26379]/name-of-the-master[/db][?sentinel_password=…]
    sentinels://                                  the same with TLS, to the Sentinels and to Redis
    cluster://[user:password@]host[:6379],host[:6379]             clusters:// with TLS

User and password are those of Redis; the Sentinels have a password of their own, or none. With TLS a URL may have
redis-py's `ssl_…` options, and no others: kombu knows none. redis-py and kombu each want another form: only this module
and `app/store/clients.py` know these.
"""

import re
from typing import Annotated, Any, NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit

from pydantic import AfterValidator

from app.addresses.url_secret import ENCODE, check_encoded

_SENTINELS = re.compile(
    r"sentinels?://((?P<user>[^/@:]*):(?P<password>[^/@]*)@)?(?P<nodes>[^/@?]+)/(?P<master>[^/?]+)(/(?P<db>\d+)?)?"
    r"(\?(?P<query>.+))?"
)
_CLUSTER = re.compile(r"clusters?://((?P<user>[^/@:]*):(?P<password>[^/@]*)@)?(?P<nodes>[^/@?]+)/?(\?(?P<query>.+))?")
_DATABASE = re.compile(r"rediss?://[^/?]*/([^?]+)")
_PASSWORDS = re.compile(r"^([a-z+]+://)?.*@|(?<=password=)[^&]*")  # also of a URL whose scheme is mistyped

# What both of redis-py's clients take, blocking and not.
_TLS = frozenset(
    """
    ssl_ca_certs ssl_ca_data ssl_ca_path ssl_cert_reqs ssl_certfile ssl_check_hostname ssl_ciphers
    ssl_exclude_verify_flags ssl_include_verify_flags ssl_keyfile ssl_min_version ssl_password
    """.split()
)
_CERT_REQS = ("none", "optional", "required")


class Sentinels(NamedTuple):
    nodes: list[tuple[str, int]]
    master: str  # the Sentinels' name for it
    db: int
    user: str | None
    password: str | None
    own_password: str | None  # the Sentinels'
    tls: dict[str, Any] | None  # redis-py's options


class Cluster(NamedTuple):
    nodes: list[tuple[str, int]]  # some of them: they know the others
    user: str | None
    password: str | None
    tls: dict[str, Any] | None  # redis-py's options


def tls_options(url: str) -> dict[str, Any] | None:
    """redis-py's options for TLS; None for URLs without TLS. Raises: ValueError.

    Certificates are verified unless the URL says otherwise: Celery by itself would accept any.
    """
    if not url.startswith(("rediss://", "sentinels://", "clusters://")):
        return None
    from redis.connection import parse_url  # the command line reads settings, and starts without redis-py

    options = parse_url(f"rediss://?{urlsplit(url).query}")  # type: ignore[no-untyped-call]
    tls_args = {"ssl_cert_reqs": "required", **{name: options[name] for name in options if name in _TLS}}
    if tls_args["ssl_cert_reqs"] not in _CERT_REQS:
        raise ValueError(f"ssl_cert_reqs has to be one of {', '.join(_CERT_REQS)}")
    return tls_args


def sentinels(url: str) -> Sentinels | None:
    """The parts of a URL of Sentinels; None for a URL of Redis itself. Raises: ValueError."""
    if not url.startswith(("sentinel://", "sentinels://")):
        return None
    if not (match := _SENTINELS.fullmatch(url)):
        raise ValueError("has to be sentinel://[user:password@]host:port,host:port/master[/db][?sentinel_password=…]")
    tls = tls_options(url)
    query = _query(match["query"], {"sentinel_password"}, tls)
    nodes, db = [_node(node, 26379) for node in match["nodes"].split(",")], int(match["db"] or 0)
    secrets = match["user"], match["password"], query.get("sentinel_password")
    user, password, own = (unquote(secret) if secret else None for secret in secrets)
    return Sentinels(nodes, unquote(match["master"]), db, user=user, password=password, own_password=own, tls=tls)


def cluster(url: str) -> Cluster | None:
    """The parts of a URL of a cluster; None for other URLs. Raises: ValueError."""
    if not url.startswith(("cluster://", "clusters://")):
        return None
    if not (match := _CLUSTER.fullmatch(url)):
        raise ValueError("has to be cluster://[user:password@]host:port,host:port, without a database's number")
    tls = tls_options(url)
    _query(match["query"], set(), tls)
    user, password = (unquote(secret) if secret else None for secret in (match["user"], match["password"]))
    return Cluster([_node(node, 6379) for node in match["nodes"].split(",")], user, password, tls)


def _query(text: str | None, names: set[str], tls: dict[str, Any] | None) -> dict[str, str]:
    """Raises: ValueError."""
    query = dict(part.partition("=")[::2] for part in (text or "").split("&") if part)
    for name in sorted(query.keys() - names - (tls or {}).keys()):
        hint = "; it needs TLS, such as rediss://" if tls is None and name in _TLS else ""
        raise ValueError(f"has no option {name!r}{hint}")
    return query


def split_urls(text: str) -> tuple[str, ...]:
    """URLs with commas between, which URLs of Sentinels have inside, too."""
    return tuple(url.strip() for url in re.split(r",(?=\s*[a-z]+://)", text) if url.strip())


def hosts(url: str) -> list[tuple[str, int]]:
    """The addresses in a URL, as (host, port); none for a Unix socket."""
    if (several := sentinels(url) or cluster(url)) is not None:
        return several.nodes
    parts = urlsplit(url)
    return [(parts.hostname, _port(parts) or 6379)] if parts.hostname else []


def broker(url: str) -> tuple[str, dict[str, Any]]:
    """kombu's URL for it, and the transport options that belong to it."""
    if url.startswith("unix://"):
        return url.replace("unix", "redis+socket", 1), {}
    if (servers := sentinels(url)) is None:
        return url, {}
    user, password = (quote(part or "", safe="") for part in (servers.user, servers.password))
    login = f"{user}:{password}@" if user or password else ""
    nodes = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in servers.nodes)
    # kombu asks one after the other, and has only what each URL says.
    each = [f"sentinel://{login}{node}/{servers.db}" for node in nodes]
    return ";".join(each), {"master_name": servers.master, "sentinel_kwargs": sentinel_options(servers)}


def sentinel_options(sentinels: Sentinels) -> dict[str, Any]:
    """Options of connections to Sentinels. A dead one must not delay the search: the next one can answer."""
    options = {"password": sentinels.own_password, "socket_timeout": 1.0, "socket_connect_timeout": 0.5, "retry": None}
    return options | encryption(sentinels)


def encryption(nodes: Sentinels | Cluster) -> dict[str, Any]:
    """redis-py's arguments for TLS."""
    return {} if nodes.tls is None else {"ssl": True, **nodes.tls}


def without_password(url: str) -> str:
    return _PASSWORDS.sub(r"\1", url)


def _check(url: str) -> str:
    try:
        if not re.match(r"(rediss?|unix|sentinels?|clusters?)://", url):
            raise ValueError(
                "has to begin with redis://, rediss://, unix://, sentinel://, sentinels://, cluster:// or clusters://"
            )
        check_encoded(url)
        hosts(url)
        tls = tls_options(url)
        if url.startswith(("redis", "unix")):
            _query(urlsplit(url).query, set(), tls)
        if (database := _DATABASE.match(url)) and not database[1].isdecimal():
            raise ValueError("has to have a number as its database")
    except ValueError as exc:
        raise ValueError(f"{without_password(url)!r}: {exc}") from None  # pydantic's own message has the passwords
    return url


def _node(node: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{node}")
    if not parts.hostname:
        raise ValueError(f"{node!r} is no host:port")
    return parts.hostname, _port(parts) or port


def _port(parts: SplitResult) -> int | None:
    """Raises: ValueError, whose own message would have a part of the password."""
    try:
        return parts.port
    except ValueError:
        raise ValueError(f"has no host:port; {ENCODE}") from None


RedisUrl = Annotated[str, AfterValidator(_check)]
