"""Tests the places of files: a folder, memory, and S3 as moto plays it. Each keeps the same promises."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
import s3fs
from moto.server import ThreadedMotoServer

from app.api.openai.file_expiry import FileExpiry
from app.batch.file_store import FileStore
from app.batch.records import StoredFile
from app.batch.storage import Storage, begun
from app.errors import FileGone, SettingsError, StorageDown
from app.ids import FileId
from app.keys import Keys
from app.store import Wire
from tests.s3 import s3_server

BIG = bytes(range(256)) * 2**16  # 16 MiB: S3 takes it in parts


@pytest.fixture(scope="module")
def s3() -> Iterator[ThreadedMotoServer]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=["folder", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        request.getfixturevalue("s3")
        return f"s3://bucket/{tmp_path.name}"
    return str(tmp_path / "store") if request.param == "folder" else f"memory://{tmp_path.name}"


@pytest.fixture
def storage(url: str) -> Storage:
    return Storage(url)


@pytest.fixture
def names(url: str) -> Callable[[], list[str]]:
    """All that lies there, also what has no business to."""

    def find() -> list[str]:
        fs, root = fsspec.core.url_to_fs(url)
        fs.invalidate_cache()
        return [name.removeprefix(f"{root}/") for name in fs.find(root)]

    return find


async def test_what_is_streamed_is_read_in_the_threads_of_storages_and_a_bad_beginning_is_an_error() -> None:
    """The threads are not those that all requests share, which slow storages would fill.

    The error comes before anything is sent.
    """
    readers: list[str] = []

    def pieces(*given: bytes | Exception) -> Iterator[bytes]:
        for one in given:
            readers.append(threading.current_thread().name)
            if isinstance(one, Exception):
                raise one
            yield one

    assert [piece async for piece in await begun(pieces(b"a", b"b"))] == [b"a", b"b"]
    assert [piece async for piece in await begun(pieces())] == []
    assert all(name.startswith("storage") for name in readers)
    with pytest.raises(FileGone):
        await begun(pieces(FileGone()))


def test_what_was_put_is_there(storage: Storage, names: Callable[[], list[str]]) -> None:
    """The content is the same to the byte, under its name only; putting it again replaces it."""
    for content in (b"", b"one", BIG):
        storage.put("files/a", content)
        assert storage.get("files/a") == content
        assert storage.size("files/a") == len(content)
        assert names() == ["files/a"]


def test_what_breaks_in_the_middle_was_never_there(storage: Storage, names: Callable[[], list[str]]) -> None:
    """The file that was there before is untouched."""
    with pytest.raises(ZeroDivisionError), storage.write("files/a") as file:
        file.write(BIG)
        raise ZeroDivisionError
    assert names() == []
    storage.put("files/a", b"before")
    with pytest.raises(ZeroDivisionError), storage.write("files/a") as file:
        file.write(b"after")
        raise ZeroDivisionError
    assert storage.get("files/a") == b"before"
    assert names() == ["files/a"]


def test_what_a_dead_process_was_writing_is_deleted_when_nobody_writes_it_any_more(
    storage: Storage, names: Callable[[], list[str]]
) -> None:
    """Unfinished files have no record, count for nobody's quota, and an erasure doesn't find them.

    They would stay for ever.
    """
    assert storage.delete_unfinished(time.time() + 60) == 0  # nothing was ever written
    storage.put("files/a", b"whole")
    write_context = storage.write("files/b")
    file = write_context.__enter__()
    file.write(b"half")
    file.close()  # as by the end of its process, which renames nothing
    (partial_name,) = set(names()) - {"files/a"}
    assert storage.delete_unfinished(time.time() - 60) == 0
    assert partial_name in names()
    assert storage.delete_unfinished(time.time() + 60) == 1
    assert names() == ["files/a"]


def test_folders_are_told_with_when_they_were_written(storage: Storage) -> None:
    assert storage.folders("kept") == []
    for name in ("kept/a/1", "kept/a/2", "kept/b/1", "files/c"):
        storage.put(name, memoryview(b"bytes"))
    assert sorted(storage.folders("kept")) == ["a", "b"]
    now = time.time()
    assert [storage.written_before("kept/a", at) for at in (now - 60, now + 60)] == [False, True]
    storage.delete("kept/a")
    assert storage.folders("kept") == ["b"]
    assert not storage.written_before("kept/a", now + 60), "nobody has to delete it"


def test_a_folder_in_which_a_file_is_about_to_be_is_new(tmp_path: Path) -> None:
    (tmp_path / "kept/a").mkdir(parents=True)
    assert not Storage(str(tmp_path)).written_before("kept/a", time.time() - 60)
    assert Storage(str(tmp_path)).written_before("kept/a", time.time() + 60)


def test_nobody_sees_half_a_file(storage: Storage) -> None:
    with storage.write("files/a") as file:
        file.write(BIG)
        assert storage.get("files/a") is None
    assert storage.size("files/a") == len(BIG)


def test_it_is_read_in_pieces_from_any_place(storage: Storage) -> None:
    storage.put("files/a", BIG)
    with storage.read("files/a") as file:
        file.seek(len(BIG) - 5)
        assert file.read(3) == BIG[-5:-2]


def test_it_is_read_line_by_line(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading takes no more of a long line than is asked for, and does not ask S3 once more for each."""
    sizes: list[int] = []
    fetch = s3fs.core.S3File._fetch_range
    monkeypatch.setattr(s3fs.core.S3File, "_fetch_range", lambda *a: sizes.append(a[2] - a[1]) or fetch(*a))
    lines = [b"%d %s\n" % (i, b"x" * 2000) for i in range(10_000)]
    storage.put("files/a", b"".join(lines))
    with storage.read("files/a") as file:
        assert file.readline(3) == lines[0][:3]
        assert file.readline(10_000) == lines[0][3:]
        assert [*iter(file.readline, b"")] == lines[1:]
    assert sum(sizes) <= 2 * sum(map(len, lines))


def test_what_is_not_there_is_said_so(storage: Storage) -> None:
    storage.put("files/a", b"x")
    assert storage.get("files/b") is None
    with pytest.raises(FileGone):
        storage.size("files/b")
    with pytest.raises(FileGone), storage.read("files/b"):
        pass


def test_a_file_or_a_folder_is_deleted_as_often_as_one_likes(storage: Storage, names: Callable[[], list[str]]) -> None:
    for name in ("a/1", "a/b/2", "c/3", "c/4"):
        storage.put(name, b"x")
    storage.delete("a")
    storage.delete("c/3")
    for path in ("a", "c/3", "never/there"):
        storage.delete(path)
    assert names() == ["c/4"]


@pytest.mark.parametrize("path", ["", "..", "../x", "a/../../x", "a/..", "./a", "/etc/passwd", "a//b", "a/"])
def test_no_path_leads_out_of_the_storage(tmp_path: Path, path: str) -> None:
    (tmp_path / "x").write_bytes(b"outside")
    storage = Storage(str(tmp_path / "store"))
    storage.put("a", b"inside")
    assert storage.get(path) is None
    for act in (storage.size, storage.delete, lambda name: storage.put(name, b"changed")):
        with pytest.raises(FileGone):
            act(path)
    contents = {str(file.relative_to(tmp_path)): file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert contents == {"x": b"outside", "store/a": b"inside"}


def test_an_address_that_nobody_speaks_is_named() -> None:
    with pytest.raises(SettingsError, match="XYLEM_FILES=nothing://here"):
        Storage("nothing://here")


def test_a_disk_that_refuses_is_said_so(tmp_path: Path) -> None:
    """The error is not that of a missing file: the client shall come again."""
    (tmp_path / "store").write_text("no folder")
    with pytest.raises(StorageDown, match=r"File exists|Not a directory"):
        Storage(str(tmp_path / "store")).put("files/a", b"x")


def test_an_s3_that_is_away_is_said_so(s3: ThreadedMotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client's own errors are ours where they enter; it tries again for a few seconds by itself."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    fsspec.filesystem("s3").clear_instance_cache()
    try:
        began = time.monotonic()
        with pytest.raises(StorageDown, match="EndpointConnectionError"):
            Storage("s3://bucket/x").get("files/a")
        assert time.monotonic() - began < 30
    finally:
        fsspec.filesystem("s3").clear_instance_cache()


async def test_a_file_that_stays_keeps_no_other_one(
    tmp_path: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, file_store = Storage(str(tmp_path)), FileStore(wire, Keys("test"))
    for name in "abc":
        file = StoredFile(FileId(f"file-{name}"), "", name, "batch", 1, 1, 2)
        storage.put(file.path, b"x")
        await file_store.add(file)
    delete = storage.delete

    def refuses(path: str) -> None:
        if path == "files/file-a":
            raise StorageDown("Permission denied")
        delete(path)

    monkeypatch.setattr(storage, "delete", refuses)
    with pytest.raises(StorageDown):
        await FileExpiry(storage, storage, file_store).sweep()
    assert [file.name for file in await file_store.expired(time.time())] == ["a"]
