"""Classification of public addresses. Python's own tables accept several of those that are refused here."""

from ipaddress import ip_network

import pytest

from app.errors import SettingsError
from app.media.address import is_open
from app.media.limits import MediaLimits
from app.media.refused import Refused
from app.media.url import Target, parse_url, redirected
from app.settings import load_settings


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "151.101.1.140", "2606:4700::1111", "64:ff9b::1.1.1.1", "::ffff:1.1.1.1"]
)
def test_public_addresses_are_open(address: str) -> None:
    """Addresses of IPv4 in IPv6's notation are open as well, behind NAT64 for example."""
    assert is_open(address, ())


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::a01:203"])
def test_a_network_that_is_named_is_open_in_all_notations(address: str) -> None:
    """The network is closed without its name."""
    assert is_open(address, [ip_network("10.0.0.0/8")])
    assert not is_open(address, [ip_network("10.9.0.0/16")])


@pytest.mark.parametrize(("url", "target"), [
    ("https://a.example/x?y=z#part", Target("a.example", 443, "/x?y=z")),
    ("HTTPS://A.Example.:443", Target("a.example", 443, "/")),
    ("https://b\u00fccher.example/\u00fc?\u00e4=%20", Target("xn--bcher-kva.example", 443, "/%C3%BC?%C3%A4=%20")),
    ("https://10.0.0.5/x", Target("10.0.0.5", 443, "/x")),
    ("https://odd.example:8443/x", Target("odd.example", 8443, "/x")),
    ("https://[FD00::2]:9/x", Target("fd00::2", 9, "/x")),
])  # fmt: skip
def test_a_url_is_read(url: str, target: Target) -> None:
    """Ports and addresses that are listed may be named."""
    assert parse_url(url, {"*", "10.0.0.5", "odd.example:8443", "[fd00::2]:9"}) == target


@pytest.mark.parametrize("hosts", [set(), {"b.example"}, {"a.example:8443"}])
def test_a_host_has_to_be_listed_where_there_is_a_list(hosts: set[str]) -> None:
    """An empty list allows none."""
    with pytest.raises(Refused, match="this host isn't allowed"):
        parse_url("https://a.example/x", hosts)


def test_a_redirect_is_relative_to_where_it_was_said() -> None:
    """Browsers read it so."""
    assert redirected(Target("a.example", 443, "/b/c"), "../d", {"*"}) == Target("a.example", 443, "/d")


def test_settings_become_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty list of hosts is one, too."""
    monkeypatch.setenv("XYLEM_MEDIA_HOSTS", "")
    monkeypatch.setenv("XYLEM_MEDIA_NETWORKS", "10.0.0.0/8,fd00::/8")
    limits = MediaLimits.of(load_settings())
    assert limits.hosts == frozenset()
    assert limits.networks == (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
    assert (limits.size, limits.pixels, limits.count) == (16 * 2**20, 4096**2, 8)


@pytest.mark.parametrize("hosts", ["https://a.example", "a.example/x", "a b", "a.example:x"])
def test_bad_hosts_stop_the_process(hosts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the bad one."""
    monkeypatch.setenv("XYLEM_MEDIA_HOSTS", hosts)
    with pytest.raises(SettingsError, match="XYLEM_MEDIA_HOSTS"):
        load_settings()
