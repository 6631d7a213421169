"""OpenAI's files with the official client: kept as they came, for who brought them, as long as was said."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from openai import OpenAI
from openai.types import FileObject

from app.batch.file_store import FileStore
from app.batch.records import RECORD, StoredFile
from app.batch.storage import Storage
from app.ids import FileId
from tests.acceptance.test_bad_input import refusal
from tests.acceptance.test_security import create
from tests.serving import client_of, served_by, serving
from tests.stack import Stack, free_port, mock_pool, wait_until
from tests.wires import as_worker

POOL = "decode-pool-a"
MIB = 2**20
MOST = 110 * MIB
LINE = b'{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {}}\n'


# An API that asks for no keys; no worker.
served = served_by({POOL: mock_pool()}, {}, XYLEM_FILES="{path}/store", XYLEM_MAX_FILE=str(MOST))


@pytest.fixture
def empty(client: OpenAI) -> None:
    for file in client.files.list():
        client.files.delete(file.id)


def bring(client: OpenAI, content: bytes = LINE, name: str = "in.jsonl", **more: Any) -> FileObject:
    return client.files.create(file=(name, content), purpose="batch", **more)


def stored(s: Stack) -> set[str]:
    """The files that have bytes."""
    return {path.name for path in (s.directory / "store" / "files").glob("*")}


def test_a_file_is_kept_as_it_came_and_deleted(served: Stack, client: OpenAI) -> None:
    """Its bytes, whatever they are, its name, and a month to live. What was deleted is gone, on the disk too."""
    content = bytes(range(256)) * 1000 + b"\r\n--x\r\n"
    upload = bring(client, content, "Übung 1.jsonl")
    assert upload.model_dump(exclude={"id", "created_at", "expires_at"}) == {
        "object": "file",
        "bytes": len(content),
        "filename": "Übung 1.jsonl",
        "purpose": "batch",
        "status": "processed",
        "status_details": None,
    }
    assert upload.expires_at == upload.created_at + 30 * 86_400
    assert abs(upload.created_at - time.time()) < 60
    assert client.files.retrieve(upload.id) == upload
    assert client.files.content(upload.id).content == content
    assert upload.id in stored(served)
    deletion = client.files.delete(upload.id)
    assert (deletion.id, deletion.object, deletion.deleted) == (upload.id, "file", True)
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as exc_info:
            call(upload.id)
        assert exc_info.value.code == "file_not_found"
    assert upload.id not in stored(served)


def test_files_are_listed_in_their_order_page_by_page(client: OpenAI, empty: None) -> None:
    """The newest first, unless asked otherwise; the client goes through the pages by itself."""
    ids = [bring(client).id for _ in range(7)]
    assert [file.id for file in client.files.list()] == ids[::-1]
    assert [file.id for file in client.files.list(limit=2)] == ids[::-1]
    assert [file.id for file in client.files.list(limit=3, order="asc")] == ids
    page = client.files.list(limit=2, after=ids[5])
    assert [file.id for file in page.data] == [ids[4], ids[3]]
    assert page.has_more
    assert not client.files.list(limit=2, after=ids[2]).has_more
    assert [file.id for file in client.files.list(purpose="batch", limit=2)] == ids[::-1]
    assert list(client.files.list(purpose="batch_output")) == []
    with pytest.raises(openai.BadRequestError, match="'after'"):
        client.files.list(after="file-unknown")


def test_a_file_lives_as_long_as_was_asked_and_is_then_gone_at_once(served: Stack, client: OpenAI, empty: None) -> None:
    """Its bytes go with the next sweep, which an API replica begins with."""
    upload = bring(client, expires_after={"anchor": "created_at", "seconds": 3600})
    assert upload.expires_at == upload.created_at + 3600
    past = int(time.time()) - 1
    over = StoredFile(FileId("file-over"), "", "over.jsonl", "batch", 4, past - 3600, past)
    Storage(served.environment()["XYLEM_FILES"]).put(over.path, b"over")
    as_worker(served, lambda wire, keys: FileStore(wire, keys).add(over))
    assert [file.id for file in client.files.list()] == [upload.id]
    for call in (client.files.retrieve, client.files.content):
        with pytest.raises(openai.NotFoundError):
            call(over.id)
    assert over.id in stored(served)
    served.api("sweeper", port=free_port())
    wait_until(lambda: over.id not in stored(served), "its bytes are gone")
    wait_until(lambda: not served.redis.exists("files:file:file-over"), "its record is gone")
    assert client.files.content(upload.id).content == LINE
    assert "Traceback" not in served.log("sweeper")


@pytest.mark.parametrize(("fields", "param"), [
    ({"purpose": "assistants"}, "purpose"),
    ({"purpose": "batch_output"}, "purpose"),
    ({}, "purpose"),
    ({"purpose": "batch", "colour": "red"}, "colour"),
    ({"purpose": "batch", "expires_after[seconds]": "3600"}, "expires_after.anchor"),
    ({"purpose": "batch", "expires_after[anchor]": "created_at"}, "expires_after.seconds"),
    ({"purpose": "batch", "expires_after[anchor]": "now", "expires_after[seconds]": "3600"}, "expires_after.anchor"),
    *(
        ({"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": s},
         "expires_after.seconds")
        for s in ("3599", "2592001", "soon", "-1", "9" * 40)
    ),
])  # fmt: skip
def test_a_bad_field_is_refused_by_name(served: Stack, fields: dict[str, str], param: str) -> None:
    """Nothing of the file is left behind."""
    before = stored(served)
    answer = httpx.post(f"{served.url}/v1/files", data=fields, files={"file": ("in.jsonl", LINE)})
    assert refusal(answer, 400)["param"] == param
    assert stored(served) == before


@pytest.mark.parametrize(("content", "kind"), [
    (b"{}", "application/json"),
    (b"", ""),
    (b"x", "multipart/form-data"),
    (b"x", "multipart/form-data; boundary=y"),
    (b"--y\r\n\r\n\r\n--y--\r\n", "multipart/form-data; boundary=y"),
    (b'--y\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--y--\r\n',
     "multipart/form-data; boundary=y"),
    (b'--y\r\nContent-Disposition: form-data; name="purpose"; filename="x"\r\n\r\nbatch\r\n--y--\r\n',
     "multipart/form-data; boundary=y"),
    (b'--y\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + b"x" * 5000 + b"\r\n--y--\r\n",
     "multipart/form-data; boundary=y"),
])  # fmt: skip
def test_what_is_no_form_with_a_file_is_refused(served: Stack, content: bytes, kind: str) -> None:
    answer = httpx.post(f"{served.url}/v1/files", content=content, headers={"content-type": kind})
    assert refusal(answer, 400)["type"] == "invalid_request_error"


def test_a_client_that_goes_away_in_the_middle_leaves_nothing(served: Stack) -> None:
    before = stored(served)

    def half() -> Iterator[bytes]:
        yield b'--y\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n' + b"x" * MIB
        raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        httpx.post(
            f"{served.url}/v1/files", content=half(), headers={"content-type": "multipart/form-data; boundary=y"}
        )
    assert httpx.get(f"{served.url}/live").status_code == 200
    assert stored(served) == before


@pytest.mark.parametrize("id_", ["..", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "file-1/../../x", "%00", "x" * 5000, "*"])
def test_an_id_is_looked_for_and_never_a_path(served: Stack, id_: str) -> None:
    """No string that a client sends is the name of a file."""
    for path in (f"/v1/files/{id_}", f"/v1/files/{id_}/content"):
        assert httpx.get(served.url + path).status_code in (404, 405)
    assert httpx.delete(f"{served.url}/v1/files/{id_}").status_code in (404, 405)


def test_what_is_too_large_is_refused_before_or_while_it_comes(valkey_url: str, tmp_path: Path) -> None:
    """The limit is exact to the byte, whether the length is sent or not; and the connection stays usable."""
    limit = 100_000
    env = {"XYLEM_DEPLOYMENT": "small", "XYLEM_FILES": str(tmp_path / "store"), "XYLEM_MAX_FILE": str(limit)}
    with serving(valkey_url, tmp_path, {POOL: mock_pool()}, {}, **env) as s:
        with client_of(s.url) as client:
            assert bring(client, b"x" * limit).bytes == limit
            for size in (limit + 1, limit + 100_000, 20 * MIB):
                with pytest.raises(openai.APIStatusError) as exc_info:
                    bring(client, b"x" * size)
                assert (exc_info.value.status_code, exc_info.value.code) == (413, "body_too_large")
            assert len(client.files.list().data) == 1

        def endless() -> Iterator[bytes]:
            yield b'--y\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
            for _ in range(100):
                yield b"x" * 50_000

        kind = {"content-type": "multipart/form-data; boundary=y"}
        assert refusal(httpx.post(f"{s.url}/v1/files", content=endless(), headers=kind), 413)["param"] == "file"
        assert len(stored(s)) == 1
        assert "Traceback" not in s.log("api")


def test_large_files_go_through_little_memory(served: Stack, client: OpenAI, tmp_path: Path) -> None:
    """100 MiB in and out, and the API process has not grown by a fifth of that at any time."""
    big = tmp_path / "big.jsonl"
    with big.open("wb") as file:
        for i in range(100):
            file.write(i.to_bytes(1) * MIB)
    api = psutil.Process(served.names["api"].pid)
    most = before = api.memory_info().rss

    def watched() -> Iterator[bytes]:
        nonlocal most
        yield b'--y\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        yield b'--y\r\nContent-Disposition: form-data; name="file"; filename="big"\r\n\r\n'
        with big.open("rb") as file:
            while piece := file.read(MIB):
                yield piece
                most = max(most, api.memory_info().rss)
        yield b"\r\n--y--\r\n"

    upload = httpx.post(
        f"{served.url}/v1/files",
        content=watched(),
        headers={"content-type": "multipart/form-data; boundary=y"},
        timeout=60,
    ).json()
    assert upload["bytes"] == 100 * MIB
    with client.files.with_streaming_response.content(upload["id"]) as answer, big.open("rb") as file:
        for piece in answer.iter_bytes(MIB):
            assert file.read(len(piece)) == piece
            most = max(most, api.memory_info().rss)
        assert file.read() == b""
    assert most - before < 20 * MIB
    client.files.delete(upload["id"])


def test_a_storage_that_cannot_be_written_is_named(valkey_url: str, tmp_path: Path) -> None:
    """503, which clients try again."""
    (tmp_path / "store").write_text("not a folder")
    env = {"XYLEM_DEPLOYMENT": "broken", "XYLEM_FILES": str(tmp_path / "store")}
    with serving(valkey_url, tmp_path, {POOL: mock_pool()}, {}, **env) as s:
        answer = httpx.post(f"{s.url}/v1/files", data={"purpose": "batch"}, files={"file": ("x", LINE)})
        assert refusal(answer, 503)["code"] == "storage_unavailable"
        assert answer.headers["retry-after"] == "1"
        assert "Traceback" not in s.log("api")


def test_files_of_a_key_have_its_quota_and_no_more(valkey_url: str, tmp_path: Path) -> None:
    """A key's own, or that of the settings; what is deleted makes room, and what was refused is not in the storage."""
    env = {"XYLEM_DEPLOYMENT": "quota", "XYLEM_REQUIRE_KEYS": "true", "XYLEM_FILE_QUOTA": str(2500 + 2 * RECORD)}
    with serving(valkey_url, tmp_path, {POOL: mock_pool()}, {}, **env, XYLEM_FILES=str(tmp_path / "store")) as s:
        for name, limits, most in (("alice", ("--file-quota", str(1000 + RECORD)), 1), ("bob", (), 2)):
            key = create(s, [s.url], name, *limits)
            with client_of(s.url, api_key=key) as client:
                before = stored(s)
                ids = [bring(client, b"x" * 1000).id for _ in range(most)]
                with pytest.raises(openai.PermissionDeniedError, match="bytes") as exc_info:
                    bring(client, b"x" * 1000)
                assert (exc_info.value.code, exc_info.value.param) == ("file_quota_exceeded", "file")
                assert stored(s) - before == set(ids)
                client.files.delete(ids[0])
                bring(client, b"x" * 1000)


def test_files_are_of_the_key_that_brought_them(valkey_url: str, tmp_path: Path) -> None:
    """Another key sees none of them."""
    env = {"XYLEM_DEPLOYMENT": "files-of", "XYLEM_REQUIRE_KEYS": "true", "XYLEM_FILES": str(tmp_path / "store")}
    with serving(valkey_url, tmp_path, {POOL: mock_pool()}, {}, **env) as s:
        alice, bob = (client_of(s.url, api_key=create(s, [s.url], name)) for name in ("alice", "bob"))
        with alice, bob:
            upload = bring(alice)
            for call in (bob.files.retrieve, bob.files.content, bob.files.delete):
                with pytest.raises(openai.NotFoundError):
                    call(upload.id)
            assert list(bob.files.list()) == []
            assert [file.id for file in alice.files.list()] == [upload.id]
            assert alice.files.content(upload.id).content == LINE
        answer = httpx.post(f"{s.url}/v1/files", data={"purpose": "batch"}, files={"file": ("x", LINE)})
        assert refusal(answer, 401)["code"] == "invalid_api_key"
