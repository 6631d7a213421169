"""One setting says where Redis is; redis-py and kombu each want it in another way."""

from typing import Any

import pytest
from kombu import Connection

from app.addresses.redis_url import _TLS, Sentinels, broker, encryption, hosts, sentinels, without_password
from app.settings import load_settings
from app.store import async_client, sync_client
from tests.present import present
from tests.refusals import settings_error

FULL = "sentinel://me:p%40ss@one:1,two,[::1]:3/the-master/2?sentinel_password=s%26p"


def test_a_sentinel_url_names_them_all_the_master_and_both_passwords() -> None:
    """Percent-encoded, as in any URL; the port that Sentinels usually have need not be written."""
    nodes = [("one", 1), ("two", 26379), ("::1", 3)]
    assert sentinels(FULL) == Sentinels(nodes, "the-master", 2, "me", "p@ss", "s&p", None)
    assert sentinels("sentinel://:p@h/m") == Sentinels([("h", 26379)], "m", 0, None, "p", None, None)
    assert sentinels("sentinel://h/m/") == Sentinels([("h", 26379)], "m", 0, None, None, None, None)
    assert sentinels("redis://h/0") is None


def test_sentinels_with_tls_have_redis_options_of_it_and_certificates_are_looked_at() -> None:
    plain = present(sentinels("sentinels://h/m"))
    assert plain.tls == {"ssl_cert_reqs": "required"}
    full = sentinels("sentinels://h/m?sentinel_password=s%26p&ssl_ca_certs=/a%20b/ca.pem&ssl_check_hostname=false")
    assert full is not None
    assert full.own_password == "s&p"
    assert full.tls == {"ssl_cert_reqs": "required", "ssl_ca_certs": "/a b/ca.pem", "ssl_check_hostname": False}
    assert encryption(full) == {"ssl": True, **full.tls}


@pytest.mark.parametrize("url", [
    "http://h", "h:6379", "", "sentinel://h:1", "sentinel://h:1/", "sentinel:///m", "sentinel://h:x/m", "sentinel://,/m",
    "sentinel://h/m/first", "sentinel://h/m/0/1", "sentinel://h/m?db=1", "redis://h:port/0", "redis://h/first", "sentinels://h/m?db=1",
    "cluster://", "cluster://h/0", "cluster://h:x", "cluster://h?db=1", "cluster://h?ssl_ca_certs=ca.pem",
    "sentinel://h/m?ssl_ca_certs=ca.pem", "sentinels://h/m?ssl_nothing=1&b=2", "sentinels://h/m?ssl_check_hostname=",
    "redis://h/0?foo=bar", "rediss://h/0?ssl_cert_req=none", "redis://h/0?ssl_ca_certs=ca.pem", "unix:///s?db=1", "redis://h?db=x",
    "rediss://h/0?ssl_cert_reqs=maybe", "rediss://h/0?ssl_min_version=high", "clusters://h?ssl_nothing=1",
])  # fmt: skip
def test_a_url_that_leads_nowhere_stops_the_process_and_is_named(url: str) -> None:
    assert settings_error(redis_url=url).startswith(f"XYLEM_REDIS_URL: {url!r}: ")


def test_an_option_that_there_is_not_is_named() -> None:
    """redis-py and kombu would fail with a TypeError, wherever they connect first."""
    for url, option in (
        ("redis://h/0?foo=bar", "'foo'"), ("rediss://h/0?ssl_cert_req=none", "'ssl_cert_req'"),
        ("redis://h/0?ssl_ca_certs=ca.pem", "'ssl_ca_certs'; it needs TLS"),
    ):  # fmt: skip
        assert f"has no option {option}" in settings_error(redis_url=url)


VALUES = {"ssl_check_hostname": "true", "ssl_cert_reqs": "required", "ssl_min_version": "771"} | dict.fromkeys(
    ("ssl_include_verify_flags", "ssl_exclude_verify_flags"), "VERIFY_X509_STRICT"
)


@pytest.mark.parametrize("name", sorted(_TLS))
async def test_both_clients_and_kombu_take_each_option_of_tls(name: str) -> None:
    url = load_settings(redis_url=f"rediss://h/0?{name}={VALUES.get(name, 'x')}").redis_url
    assert sync_client(url, 1).connection_pool.make_connection()
    assert async_client(url).connection_pool.make_connection()
    assert name in kombus(url).ssl


@pytest.mark.parametrize(
    "url",
    [
        "http://me:secret@h", "sentinel://me:secret@h:1", "sentinel://h?sentinel_password=secret",
        "redis//me:secret@h", "redis:me:secret@h", "REDIS://me:secret@h", "redis://me:12/secret@h", "redis://me:secret/1@h",
        "redis://:secret#123@host:6379/0", "redis://:secret?123@host:6379/0", "redis://:12#secret@host:1/0",
        "rediss://me:12?secret@host:1/0", "redis://me:12#secret@host", "redis://:12?secret=1@host:1", "unix://:a#secret@/s",
        "unix://:12?secret@/socket", "cluster://:1#secret@h:1", "clusters://:1?secret@h", "sentinel://:1?secret@h:3/m",
    ],
)  # fmt: skip
def test_a_refused_url_is_shown_without_its_passwords(url: str) -> None:
    """A message that stops a process is in its log. A part of a password is no host, port, option or fragment."""
    for setting in ("redis_url", "broker_url", "result_url", "index_url", "token_redis_urls", "cells"):
        message = settings_error(**{setting: f"{url}#other" if setting == "cells" else url})
        assert message.startswith(f"XYLEM_{setting.upper()}")
        assert "secret" not in message
        assert "12" not in message


@pytest.mark.parametrize(
    "url", ["redis://:a%23b%3Fc%2Fd%40e@h:1/2", "unix:///a@b/socket", "rediss://me:a:b@h?ssl_cert_reqs=none"]
)
def test_encoded_passwords_and_paths_of_sockets_are_taken(url: str) -> None:
    assert load_settings(redis_url=url).redis_url == url


@pytest.mark.parametrize(
    ("setting", "url"),
    [
        ("webhook_url", "https://me:secret#1@h/x"), ("webhook_url", "https://me:12?secret@h/x"),
        ("hook_url", "https://me:secret/1@h"), ("hook_url", "http://me:secret@h:x"),
        ("webhook_url", "https://me:secret/1@h"), ("webhook_url", "https://secret:secret"), ("webhook_url", "secret"),
        ("usage_url", "postgresql://me:a@secret@h/db"), ("usage_url", "secret://me:b@h/db"),
    ],
)  # fmt: skip
def test_other_urls_with_passwords_are_refused_in_the_same_way(setting: str, url: str) -> None:
    message = settings_error(**{setting: url})
    assert message.startswith(f"XYLEM_{setting.upper()}")
    assert "secret@" not in message
    assert "secret" not in message.replace("begins with 'secret'", "")


def test_an_address_is_shown_without_its_passwords() -> None:
    assert without_password(FULL) == "sentinel://one:1,two,[::1]:3/the-master/2?sentinel_password="
    assert without_password("rediss://me:p@h:1/0") == "rediss://h:1/0"
    assert without_password("redis://h?db=1&password=p&protocol=2") == "redis://h?db=1&password=&protocol=2"


@pytest.mark.parametrize(("url", "found"), [
    ("redis://me:p@h:1/0", [("h", 1)]), ("rediss://h", [("h", 6379)]), ("unix:///run/redis.sock", []),
    ("sentinel://a:1,b/m", [("a", 1), ("b", 26379)]),
])  # fmt: skip
def test_the_hosts_of_a_url_are_known(url: str, found: list[tuple[str, int]]) -> None:
    assert hosts(url) == found


def kombus(url: str) -> Any:
    """Kombu's connection for the URL."""
    kombu_url, options = broker(url)
    return Connection(kombu_url, transport_options=options)


def test_kombu_asks_every_sentinel_and_shows_no_password() -> None:
    """Kombu sends them the Sentinels' password, and the master Redis' own."""
    connection = kombus(FULL)
    assert connection.transport_options["master_name"] == "the-master"
    assert connection.transport_options["sentinel_kwargs"]["password"] == "s&p"
    assert "p@ss" not in connection.as_uri()
    for host in ("one", "two", "::1"):
        assert (connection.hostname, connection.userid, connection.password) == (host, "me", "p@ss")
        assert connection.virtual_host == "2"
        connection.maybe_switch_next()


def test_kombu_finds_a_unix_socket() -> None:
    """Kombu calls it by another name."""
    assert kombus("unix:///run/redis.sock").hostname == "socket:///run/redis.sock"


def test_a_cluster_needs_another_broker_which_is_none() -> None:
    """Celery knows no clusters; each refusal names the setting and its value, and no password."""
    missing = settings_error(redis_url="cluster://me:secret@h:1")
    assert missing.startswith("XYLEM_BROKER_URL: is missing")
    assert "XYLEM_REDIS_URL='cluster://h:1'" in missing
    refusal = settings_error(redis_url="redis://h", broker_url="cluster://me:secret@h:1")
    assert refusal.startswith("XYLEM_BROKER_URL: 'cluster://h:1' is a cluster")
    assert load_settings(redis_url="cluster://h", broker_url="redis://b").keys.home.startswith("{xylem}:")


@pytest.mark.parametrize("setting", ["index_url", "token_redis_urls"])
def test_other_servers_are_clusters_only_beside_one(setting: str) -> None:
    """All of them have the same names of keys."""
    refusal = settings_error(redis_url="redis://h", **{setting: "cluster://me:secret@h:1"})
    assert refusal.startswith(f"XYLEM_{setting.upper()}: 'cluster://h:1' is a cluster")
    assert load_settings(redis_url="cluster://h", broker_url="redis://b", **{setting: "cluster://h:1"})
