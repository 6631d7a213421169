"""Adapters fetched from servers: HTTPS with a certificate authority of its own, and S3."""

import hashlib
import http.server
import socket
import ssl
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest

from app.adapters.fetch import fetch
from app.errors import AdapterFailed
from app.messages.wanted import Adapter
from app.settings import load_settings
from tests.certificates import certify
from tests.hub import hub_server
from tests.lora import tiny_adapter
from tests.s3 import s3_server

FILES = ["adapter_config.json", "adapter_model.safetensors"]


class Handler(http.server.SimpleHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.headers["host"])
        if self.path.endswith("moved.tar"):
            self.send_response(302)
            self.send_header("location", "/public/a.tar")
            self.end_headers()
            return
        super().do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def https(folder: Path, asked: list[str]) -> Iterator[int]:
    """Serves the folder by the certificate of `localhost`; yields the port. `asked` gets the names: SNI and Host."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "store.pem", folder / "store.key")
    context.sni_callback = lambda _socket, name, _context: asked.append(name)  # type: ignore[assignment]
    handler = partial(type("_", (Handler,), {"asked": asked}), directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # whoever mistrusts us hangs up
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server.server_port
        server.shutdown()


def packed(source: Path, file: Path) -> str:
    """Its SHA-256."""
    file.parent.mkdir(exist_ok=True)
    with tarfile.open(file, "w") as tar:
        tar.add(source, "a")
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_by_https_it_comes_from_the_address_that_was_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is looked up once; it is the server's all the same, to its certificate too. Nothing else is followed."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certify(tmp_path)))
    digest = packed(tiny_adapter(tmp_path / "one", "weights"), tmp_path / "public/a.tar")
    looked_up, host_names = list[str](), list[str]()
    real = socket.getaddrinfo

    def look_up(host: Any, *args: Any, **more: Any) -> Any:
        looked_up.append(str(host))
        return real("127.0.0.1", *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with https(tmp_path, host_names) as port:
        hosts = f"https://localhost:{port}/public,https://elsewhere.example:{port}"
        settings = load_settings(lora_sources=hosts, lora_networks="127.0.0.0/8", max_lora=50_000)

        def get(host: str, file: str = "a.tar", into: str = "", **changes: Any) -> Path:
            folder = tmp_path / (into or f"into-{host}-{file}")
            folder.mkdir()
            source = f"https://{host}:{port}/public/{file}"
            fetch(Adapter("a", 1, "m", source, digest), folder, settings.model_copy(update=changes))
            return folder

        assert sorted(p.name for p in get("localhost").iterdir()) == FILES
        assert looked_up.count("localhost") == 1
        assert host_names == ["localhost", f"localhost:{port}"]
        with pytest.raises(AdapterFailed, match=r"elsewhere\.example can't be read"):  # not its certificate
            get("elsewhere.example")
        with pytest.raises(AdapterFailed, match="redirects are not followed"):
            get("localhost", "moved.tar")
        with pytest.raises(AdapterFailed, match="404"):
            get("localhost", "b.tar")
        with pytest.raises(AdapterFailed, match="not public"):
            get("localhost", into="private", lora_networks=frozenset())
        with pytest.raises(AdapterFailed, match="more than 100 bytes"):
            get("localhost", into="large", max_lora=100)
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(AdapterFailed, match="can't be read"):  # of no authority that is known
            get("localhost", into="unknown")


def test_from_s3_it_comes_as_a_folder_or_a_tar_file(tmp_path: Path) -> None:
    source = tiny_adapter(tmp_path / "one", "weights")
    (source / "more").write_text("x")
    digest = packed(source, tmp_path / "public/a.tar")
    settings = load_settings(lora_sources="s3://bucket/loras")
    with s3_server():
        fsspec.filesystem("s3").put(str(source), "bucket/loras/one", recursive=True)
        fsspec.filesystem("s3").put(str(tmp_path / "public/a.tar"), "bucket/loras/one.tar")
        for name, sha256 in (("one", ""), ("one.tar", digest)):
            into = tmp_path / f"into-{name}"
            into.mkdir()
            fetch(Adapter("a", 1, "m", f"s3://bucket/loras/{name}", sha256), into, settings)
            assert sorted(p.name for p in into.iterdir()) == FILES
            assert (into / FILES[1]).read_text() == "weights"
        for name, why in (("one.tar", "SHA-256"), ("none", "source"), ("none.tar", "source")):
            with pytest.raises(AdapterFailed, match=why):
                fetch(Adapter("a", 1, "m", f"s3://bucket/loras/{name}", "0" * 64), tmp_path, settings)
        with pytest.raises(AdapterFailed, match="not allowed"):
            fetch(Adapter("a", 1, "m", "s3://bucket/other"), tmp_path, settings)


def test_from_the_hub_it_comes_at_the_commit_of_its_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine has turned the hub's own client off here, as they do."""
    files = {name: (tiny_adapter(tmp_path / "one", "weights" * 500) / name).read_bytes() for name in FILES[:1]}
    files[FILES[1]] = (tmp_path / "one" / FILES[1]).read_bytes()
    settings = load_settings(lora_sources="hf://org/tiny", max_lora=50_000)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")

    def get(source: str, sha256: str = "", **changes: Any) -> Path:
        into = tmp_path / f"into-{len(list(tmp_path.iterdir()))}"
        into.mkdir()
        fetch(Adapter("a", 1, "m", source, sha256), into, settings.model_copy(update=changes))
        return into

    with hub_server(files | {"README.md": b"#", "model.py": b"import os"}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        for source in ("hf://org/tiny", "hf://org/tiny@v1"):
            folder = get(source)
            assert {name: (folder / name).read_bytes() for name in FILES} == files
            assert sorted(path.name for path in folder.iterdir()) == FILES
        assert {path for _, path, _ in hub.asked if "resolve" in path} == {
            f"/org/tiny/resolve/{hub.commit}/{name}" for name in FILES
        }
        assert {*hub.tokens} == {"Bearer hf_secret"}
        for source, changes, why in (
            ("hf://org/tiny@v2", {}, "404 .RevisionNotFound"),
            ("hf://org/tiny", {"max_lora": 100}, "XYLEM_MAX_LORA"),
            ("hf://org/other", {}, "not allowed"),
        ):
            with pytest.raises(AdapterFailed, match=why):
                get(source, **changes)
        with pytest.raises(AdapterFailed, match="SHA-256 is"):
            get("hf://org/tiny", "0" * 64)
        for name in FILES:
            hub.lies_about = name
            with pytest.raises(AdapterFailed, match=f"{name} has another checksum"):
                get("hf://org/tiny")
    with hub_server({"config.json": b"{}"}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with pytest.raises(AdapterFailed, match=f"no {FILES[0]}"):
            get("hf://org/tiny")
    with pytest.raises(AdapterFailed, match="can't be read"):  # nobody is there any more
        get("hf://org/tiny")
