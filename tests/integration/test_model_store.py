"""Models from a hub and from S3: fetched once, checked, gone on with after a break, and kept within bounds."""

import hashlib
import multiprocessing
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import fsspec
import pytest
from typer.testing import CliRunner

import app.model_store.files
from app.cli.main import cli
from app.errors import ModelNotFetched
from app.model_store.source import RemoteModel
from app.model_store.store import ModelStore
from app.pools.fetched_pools import fetched_pools
from app.pools.schema import Pool, PoolsFile
from app.settings import load_settings
from tests.hub import Hub, hub_server
from tests.s3 import s3_server

TINY = RemoteModel("hf", "org/tiny", "main")
OURS = Pool(model="m", engine="mock").model_dir
WEIGHTS = bytes(range(256)) * 2**14  # 4 MiB
PIECE = 2**20
FILES = {
    "config.json": (OURS / "config.json").read_bytes(),
    "tokenizer.json": (OURS / "tokenizer.json").read_bytes(),
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": WEIGHTS,
    "README.md": b"# tiny",
}
MOST = 2**30


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(app.model_store.files, "PIECE", PIECE)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)  # between its tries
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)  # engines of tests in this process have set it
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with hub_server(FILES) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's own cache, and not the user's."""
    folder = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ModelStore]:
    instance = ModelStore(tmp_path / "store", MOST)
    yield instance
    instance.close()


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_model_is_fetched_once_without_copies_in_other_formats(hub: Hub, store: ModelStore) -> None:
    reports: list[tuple[int, int]] = []
    folder = store.obtain(TINY, "all", progress=lambda done, size: reports.append((done, size)))
    assert names(folder) == {"config.json", "tokenizer.json", "model.safetensors", "README.md"}
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    size = sum(len(FILES[name]) for name in names(folder))
    assert reports[-1] == (size, size)
    assert [size for size, _ in reports] == sorted(size for size, _ in reports)
    hub.asked.clear()
    assert store.obtain(TINY, "all") == folder
    assert hub.asked == []
    (row,) = store.stored()
    assert row.record.complete
    assert row.record.size == size
    assert row.in_use


def test_an_api_replica_fetches_no_weights_and_a_worker_then_only_these(hub: Hub, store: ModelStore) -> None:
    folder = store.obtain(TINY, "text")
    assert names(folder) == {"config.json", "tokenizer.json"}
    hub.asked.clear()
    assert store.obtain(TINY, "all") == folder
    assert {name for name, _ in hub.fetched()} == {"model.safetensors", "README.md"}
    assert store.obtain(TINY, "text") == folder


def test_after_a_break_only_the_rest_is_fetched(hub: Hub, store: ModelStore) -> None:
    hub.breaks_after = 2 * PIECE + 7
    with pytest.raises(ModelNotFetched, match=r"model\.safetensors"):
        store.obtain(TINY, "all")
    (row,) = store.stored()
    assert not row.record.complete
    hub.breaks_after = None
    hub.asked.clear()
    folder = store.obtain(TINY, "all")
    assert [begin for name, begin in hub.fetched() if name == "model.safetensors"] == [2 * PIECE, 3 * PIECE]
    assert "config.json" not in {name for name, _ in hub.fetched()}
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def cached(cache: Path, commit: str, files: Mapping[str, bytes]) -> None:
    """Files as the hub's own library leaves them."""
    model = cache / "models--org--tiny"
    for name, data in files.items():
        digest = hashlib.sha256(data) if len(data) > 1024 else hashlib.sha1(b"blob %d\0" % len(data) + data)
        blob, link = model / "blobs" / digest.hexdigest(), model / "snapshots" / commit / name
        for path in (blob, link):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        link.symlink_to(blob)
    (model / "refs").mkdir(exist_ok=True)
    (model / "refs/main").write_text(commit)


def test_what_the_hubs_own_cache_has_is_linked_and_what_is_broken_there_is_fetched(
    hub: Hub, store: ModelStore, cache: Path
) -> None:
    cached(cache, hub.commit, FILES)
    (blob,) = (path for path in cache.rglob("blobs/*") if path.read_bytes() == FILES["tokenizer.json"])
    blob.write_bytes(b"{}")
    folder = store.obtain(TINY, "all")
    assert {name for name, _ in hub.fetched()} == {"tokenizer.json"}
    assert {name: (folder / name).read_bytes() for name in names(folder)} == {
        name: data for name, data in FILES.items() if name != "pytorch_model.bin"
    }
    assert (folder / "model.safetensors").stat().st_nlink == 2


def test_without_a_network_the_cache_is_served_and_what_it_lacks_is_fetched_later(
    hub: Hub, store: ModelStore, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a server knows whether there is more."""
    cached(cache, hub.commit, {name: FILES[name] for name in ("config.json", "tokenizer.json")})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = store.obtain(TINY, "all")
    assert names(folder) == {"config.json", "tokenizer.json"}
    with pytest.raises(ModelNotFetched, match="offline"):
        store.obtain(RemoteModel("hf", "org/other", "main"), "all")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert store.obtain(TINY, "all") == folder
    assert {name for name, _ in hub.fetched()} == {"README.md", "model.safetensors"}


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_with_a_wrong_checksum_is_refused_and_not_kept(hub: Hub, store: ModelStore, name: str) -> None:
    hub.lies_about = name
    with pytest.raises(ModelNotFetched, match=rf"{name} arrived with .* bytes and (sha256|git):"):
        store.obtain(TINY, "all")
    hub.lies_about = ""
    assert (store.obtain(TINY, "all") / name).read_bytes() == FILES[name]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (RemoteModel("hf", "org/tiny", "no-such"), "hf://org/tiny@no-such: RevisionNotFound"),
        (RemoteModel("hf", "org/other", "main"), "hf://org/other@main: RepositoryNotFound"),
    ],
)
def test_what_is_not_there_is_named(hub: Hub, store: ModelStore, source: RemoteModel, reason: str) -> None:
    with pytest.raises(ModelNotFetched, match=reason):
        store.obtain(source, "all")


def test_a_name_that_leaves_the_folder_is_refused(hub: Hub, store: ModelStore, tmp_path: Path) -> None:
    hub.files = {**FILES, "../../evil.json": b"{}"}
    with pytest.raises(ModelNotFetched, match="evil"):
        store.obtain(TINY, "all")
    assert not list(tmp_path.rglob("evil.json"))


def test_a_pull_fetches_a_newer_version_beside_the_one_in_use(hub: Hub, store: ModelStore) -> None:
    old = store.obtain(TINY, "all")
    hub.commit, hub.files = "f" * 40, {**FILES, "config.json": b'{"new": true}'}
    assert store.obtain(TINY, "all") == old
    new = store.obtain(TINY, "all", refresh=True)
    assert new != old
    assert store.obtain(TINY, "all") == new
    assert (old / "config.json").read_bytes() == FILES["config.json"]


def test_the_least_recently_used_is_deleted_for_a_new_one_but_none_in_use(hub: Hub, tmp_path: Path) -> None:
    size = sum(map(len, FILES.values())) - len(WEIGHTS)
    folders = []
    for number in range(3):
        hub.commit = str(number) * 40
        store = ModelStore(tmp_path / "store", 2 * size)
        folders.append(store.obtain(TINY, "all", refresh=True))
        store.close()
    assert [folder.exists() for folder in folders] == [False, True, True]
    hub.commit = "3" * 40
    stores = [ModelStore(tmp_path / "store", size) for _ in range(2)]
    stores[0].obtain(TINY, "all")  # the newest is in use
    with pytest.raises(ModelNotFetched, match="XYLEM_MODEL_STORE_BYTES"):
        stores[1].obtain(TINY, "all", refresh=True)
    assert [folder.exists() for folder in folders] == [False, False, True]
    for store in stores:
        store.close()


def _obtain(folder: Path) -> None:
    ModelStore(folder, MOST).obtain(TINY, "all")


def test_processes_that_start_together_fetch_once(hub: Hub, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_obtain, args=(tmp_path / "store",)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert sorted(name for name, begin in hub.fetched() if not begin) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert not ModelStore(tmp_path / "store", MOST).stored()[0].in_use  # locks end with their processes


def test_a_pull_that_broke_is_finished_by_two_at_once_and_only_one_of_them_fetches(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line pulls; the two are processes of their own."""
    monkeypatch.setenv("XYLEM_HOME", str(tmp_path))
    pull = ["pull", "hf://org/tiny"]
    hub.breaks_after = 2 * PIECE + 7
    result = CliRunner().invoke(cli, pull)
    assert (result.exit_code, "hf://org/tiny@main, model.safetensors:" in result.stderr) == (1, True)
    assert "no, 51%" in CliRunner().invoke(cli, ["models"], env={"COLUMNS": "250"}).stdout
    hub.breaks_after = None
    hub.asked.clear()
    argv = [sys.executable, "-m", "app.cli", *pull]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = {process.communicate(timeout=60)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    (folder,) = folders
    assert (Path(folder) / "model.safetensors").read_bytes() == WEIGHTS
    assert [begin for name, begin in hub.fetched() if name == "model.safetensors"] == [2 * PIECE]
    assert "yes" in CliRunner().invoke(cli, ["models"], env={"COLUMNS": "250"}).stdout


@pytest.mark.parametrize(
    ("lie", "room", "said"), [("config.json", "", "git:"), ("", "1000", "XYLEM_MODEL_STORE_BYTES")]
)
def test_a_pull_of_a_wrong_or_too_large_model_fails_and_says_why(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str, room: str, said: str
) -> None:
    monkeypatch.setenv("XYLEM_HOME", str(tmp_path))
    if room:
        monkeypatch.setenv("XYLEM_MODEL_STORE_BYTES", room)
    hub.lies_about = lie
    result = CliRunner().invoke(cli, ["pull", "hf://org/tiny"])
    assert (result.exit_code, said in result.stderr, result.stdout) == (1, True, "")


def test_a_bucket_is_fetched_checked_and_gone_on_with(tmp_path: Path, store: ModelStore) -> None:
    source = RemoteModel("s3", "bucket/models/tiny")
    with s3_server():
        bucket = fsspec.filesystem("s3")
        for name, data in FILES.items():
            bucket.pipe_file(f"bucket/models/tiny/{name}", data)
        text = store.obtain(source, "text")
        assert names(text) == {"config.json", "tokenizer.json"}
        (row,) = store.stored()
        part = text / f"model.safetensors.{row.record.version[:12]}.part"
        part.write_bytes(WEIGHTS[: 2**20])
        reports: list[int] = []
        folder = store.obtain(source, "all", progress=lambda done, _: reports.append(done))
        assert (folder / "model.safetensors").read_bytes() == WEIGHTS
        assert not part.exists()
        part_of_new = WEIGHTS[: 2**20][::-1]
        bucket.pipe_file("bucket/models/tiny/config.json", b'{"new": 1}')
        with pytest.raises(ModelNotFetched, match="md5"):
            newer = ModelStore(tmp_path / "other", MOST)
            _begin_wrongly(newer, source, part_of_new)
        with pytest.raises(ModelNotFetched, match="no files"):
            store.obtain(RemoteModel("s3", "bucket/none"), "all")


def _begin_wrongly(store: ModelStore, source: RemoteModel, data: bytes) -> None:
    """Begins the file with other bytes, as if these had arrived before a break."""
    folder = store.obtain(source, "text")
    (row,) = store.stored()
    (folder / f"model.safetensors.{row.record.version[:12]}.part").write_bytes(data)
    try:
        store.obtain(source, "all")
    finally:
        store.close()


def test_pools_get_the_folders_of_their_models(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder is looked up anywhere."""
    settings = load_settings(home=tmp_path)
    pools_file = PoolsFile.model_validate(
        {
            "pools": {
                "a": {"model": "m", "engine": "mock", "path": "hf://org/tiny"},
                "b": {"model": "n", "engine": "mock"},
            }
        }
    )
    pools = fetched_pools(pools_file, settings, "text").pools
    assert [pool.model_dir.is_dir() for pool in pools.values()] == [True, True]
    assert (pools["a"].model_dir / "tokenizer.json").exists()  # type: ignore[index]
    assert pools["a"].model_dir.is_relative_to(tmp_path / "fetched")  # type: ignore[index]
    monkeypatch.setattr(socket, "socket", None)
    local_pools = PoolsFile(pools={"b": pools_file.pools["b"]})  # type: ignore[dict-item,index]
    assert fetched_pools(local_pools, settings, "all") == local_pools
