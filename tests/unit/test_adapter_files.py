"""Files of adapters: their permitted sources, the parts that are used, and those that stay on the disk."""

import hashlib
import io
import json
import os
import socket
import subprocess
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from app.adapters.download import download, resolve
from app.adapters.fetch import check_rank, fetch
from app.adapters.local_store import LocalStore
from app.adapters.sources import check_source
from app.errors import AdapterFailed, RequestError
from app.messages.wanted import Adapter
from app.settings import Settings, load_settings
from tests.lora import tiny_adapter
from tests.refusals import refused, settings_error

SHA = "0" * 64
ALLOWED = (
    "/srv/adapters", "s3://bucket/loras", "https://models.example", "http://10.0.0.1:8080/a", "hf://Our-Team",
    "hf://others/one",
)  # fmt: skip


@pytest.mark.parametrize(
    "source",
    [
        "/srv/adapters/a", "file:///srv/adapters/a/b.tar.gz", "s3://bucket/loras/a", "https://models.example/x/a.tgz",
        "https://models.example:443/a.tar", "http://10.0.0.1:8080/a/b.tar.zst",
        "hf://Our-Team/any", "hf://Our-Team/any@refs/pr/1", "hf://others/one@v1",
    ],
)  # fmt: skip
def test_what_lies_below_an_allowed_source_is_allowed(source: str) -> None:
    check_source(source, SHA, ALLOWED)


@pytest.mark.parametrize(
    "source",
    [
        "/srv", "/srv/adapters/../secret", "/srv/adapters2/a", "srv/adapters/a", "~/a", "", "file://host/srv/adapters/a",
        "s3://bucket/other", "s3://bucket2/loras/a", "s3://bucket/loras/../x", "http://models.example/a.tar",
        "https://models.example.evil/a.tar", "https://models.example:8443/a.tar", "https://u:p@models.example/a.tar",
        "https://models.example/a.tar?x=1", "https://models.example/%2e%2e/a.tar", "ftp://models.example/a.tar",
        "http://10.0.0.1:8080/b/a.tar", "https://models.example/a", "https://[::1/a.tar", "gs://bucket/a",
        "/srv/adapters/a\n", "https:///a.tar", "/srv/adapters/\0", "hf://our-team/any", "hf://Our-Team", "hf://others/one2",
        "hf://Our-Team/any/more", "hf://Our-Team/..", "hf://Our-Team/any@", "hf://Our-Team/any@v1?x", "hf://u@others/one",
    ],
)  # fmt: skip
def test_all_else_is_refused(source: str) -> None:
    with refused("source"):
        check_source(source, SHA, ALLOWED)


def test_what_comes_by_http_has_a_checksum_and_that_is_one() -> None:
    for source, digest in (
        ("https://models.example/a.tar", ""),
        ("/srv/adapters/a", "x"),
        ("/srv/adapters/a", "A" * 64),
    ):
        with refused("sha256"):
            check_source(source, digest, ALLOWED)


def test_unless_told_otherwise_only_a_folder_of_ours_is_allowed(tmp_path: Path) -> None:
    sources = load_settings(home=tmp_path).allowed_lora_sources
    check_source(f"{tmp_path.resolve()}/adapters/a", "", sources)
    for source in ("/etc/a", "s3://bucket/a", "https://models.example/a.tar"):
        with pytest.raises(RequestError):
            check_source(source, SHA, sources)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "169.254.169.254", "192.168.0.1", "100.64.0.1", "0.0.0.0", "::1", "fd00::1", "fe80::1",
     "::ffff:127.0.0.1", "224.0.0.1"],
)  # fmt: skip
def test_addresses_that_are_not_public_are_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name that leads there doesn't matter, and one such address among several is enough."""
    addresses = [(0, 0, 0, "", (one, 80)) for one in ("93.184.216.34", address)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    with pytest.raises(AdapterFailed, match="not public"):
        resolve("models.example", 80, [])
    with pytest.raises(AdapterFailed, match="not public"):
        download("http://models.example/a.tar", io.BytesIO(), 1, [])
    assert str(resolve("models.example", 80, ["0.0.0.0/0", "::/0"])) == "93.184.216.34"


def settings(tmp_path: Path, **more: Any) -> Settings:
    return load_settings(lora_sources=str(tmp_path / "sources"), lora_store=tmp_path / "store", **more)


def fetched(tmp_path: Path, source: Path, sha256: str = "", **more: Any) -> Path:
    into = tmp_path / "into"
    into.mkdir()
    fetch(Adapter("a", 1, "m", str(source), sha256), into, settings(tmp_path, **more))
    return into


def test_of_a_folder_two_files_are_taken_and_their_digest_is_sha256sums(tmp_path: Path) -> None:
    source = tiny_adapter(tmp_path / "sources" / "a", "weights")
    (source / "setup.py").write_text("raise SystemExit")
    digest = subprocess.run(
        "sha256sum adapter_config.json adapter_model.safetensors | sha256sum", shell=True, cwd=source,
        capture_output=True, check=True, text=True,
    ).stdout.split()[0]  # fmt: skip
    into = fetched(tmp_path, source, digest)
    assert sorted(p.name for p in into.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert (into / "adapter_model.safetensors").read_text() == "weights"


def test_of_a_tar_file_too_wherever_they_stand_in_it(tmp_path: Path) -> None:
    source = tiny_adapter(tmp_path / "a", "weights")
    (source / "more").write_text("x")
    archive = tmp_path / "sources" / "a.tar.xz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(source, "../../deep/a")
    into = fetched(tmp_path, archive, hashlib.sha256(archive.read_bytes()).hexdigest())
    assert sorted(p.name for p in into.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "into", "sources"]


@pytest.mark.parametrize("broken", ["checksum", "no weights", "gone", "too large", "no tar", "links", "cut", "a link"])
def test_what_is_not_right_is_the_adapters_failure(tmp_path: Path, broken: str) -> None:
    source = tiny_adapter(tmp_path / "sources" / "a", "weights" * 100)
    sha256, more = "", {}
    if broken == "checksum":
        sha256 = SHA
    elif broken == "no weights":
        (source / "adapter_model.safetensors").rename(source / "adapter_model.bin")
    elif broken == "gone":
        source = source / "nowhere"
    elif broken == "too large":
        more = {"max_lora": 500}
    elif broken == "a link":
        (tmp_path / "secret").write_text("secret")
        (source / "adapter_model.safetensors").unlink()
        (source / "adapter_model.safetensors").symlink_to(tmp_path / "secret")
    else:
        archive = tmp_path / "sources" / "a.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(source / "adapter_config.json")
            if broken == "links":
                link = tarfile.TarInfo("adapter_model.safetensors")
                link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
                tar.addfile(link)
            else:
                tar.add(source / "adapter_model.safetensors")
        whole = archive.read_bytes()
        archive.write_bytes({"no tar": b"x" * 2000, "links": whole, "cut": whole[: len(whole) // 2]}[broken])
        source = archive
    with pytest.raises(AdapterFailed):
        fetched(tmp_path, source, sha256, **more)


@pytest.mark.parametrize(
    "config",
    [b"{", b"[]", b"{}", b'{"r": 9}', b'{"r": 8, "rank_pattern": {"q_proj": 9}}', b'{"r": "x"}', b'{"r": 0}',
     b'{"r": 8, "peft_type": "PREFIX_TUNING"}', b"\xff", b"[" * 100_000],
)  # fmt: skip
def test_a_configuration_has_to_fit_the_engine(tmp_path: Path, config: bytes) -> None:
    (tmp_path / "adapter_config.json").write_bytes(config)
    with pytest.raises(AdapterFailed):
        check_rank(tmp_path, 8)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 8, "rank_pattern": {"q": 4}, "peft_type": "LORA"}))
    check_rank(tmp_path, 8)


def put(size: int) -> Any:
    return lambda folder: (folder / "weights").write_bytes(b"x" * size)


def test_an_adapter_is_fetched_once_and_half_of_one_is_not_there(tmp_path: Path) -> None:
    store, times = LocalStore(tmp_path, 10_000), []

    def breaks(folder: Path) -> None:
        (folder / "weights").write_bytes(b"half")
        raise AdapterFailed

    with pytest.raises(AdapterFailed):
        store.hold("a@1", breaks)
    assert list(tmp_path.iterdir()) == []

    def get(folder: Path) -> None:
        times.append(1)
        put(10)(folder)

    for _ in range(3):
        store.hold("a@1", get).release()
    LocalStore(tmp_path, 10_000).hold("a@1", get).release()
    assert len(times) == 1


def test_workers_that_begin_at_once_fetch_it_once_and_all_have_it(tmp_path: Path) -> None:
    """All keep it, and none waits for another to release it."""
    times: list[int] = []

    def get(folder: Path) -> None:
        times.append(1)
        time.sleep(0.05)
        put(10)(folder)

    stores = [LocalStore(tmp_path, 10_000) for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        holds = [one.result(20) for one in [threads.submit(store.hold, "a@1", get) for store in stores]]
    assert len(times) == 1
    assert all((one.path / "weights").exists() for one in holds)
    for one in holds:
        one.release()


def test_what_was_not_used_for_longest_goes_and_nothing_that_is_in_use(tmp_path: Path) -> None:
    """Adapters in use by another worker of this host stay as well."""
    one, other = LocalStore(tmp_path, 250), LocalStore(tmp_path, 250)
    for i, name in enumerate(("a", "b", "c")):
        hold = (one if name == "a" else other).hold(name, put(100))
        os.utime(tmp_path / name, (i, i))
        if name != "a":
            hold.release()
        else:
            hold_in_use = hold
    other.hold("d", put(100)).release()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "d"]
    assert (hold_in_use.path / "weights").exists()
    hold_in_use.release()
    other.hold("e", put(200)).release()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["e"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("lora_sources", "relative"), ("lora_sources", "ftp://x"), ("lora_sources", "/a/../b"),
     ("lora_sources", "https://u@h/"), ("lora_networks", "10.0.0.0/33"), ("max_lora", 0)],
)  # fmt: skip
def test_a_bad_setting_is_named(name: str, value: Any) -> None:
    assert f"XYLEM_{name.upper()}" in settings_error(**{name: value})
