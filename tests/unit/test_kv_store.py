"""KV blocks outside engines: what is read is what was written, or nothing."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import SettingsError
from app.kv_store.block_store import FolderStore, open_store
from app.kv_store.fingerprint import fingerprint
from app.kv_store.seal import BlockSeal, Damaged, read_key
from app.kv_store.uses import Uses

KEY = bytes(range(32))
seals = pytest.mark.parametrize("seal", [BlockSeal(), BlockSeal(KEY)], ids=["plain", "encrypted"])


@seals
@given(name=st.binary(min_size=1, max_size=40), data=st.binary(max_size=200))
def test_a_block_is_read_as_it_was_written(seal: BlockSeal, name: bytes, data: bytes) -> None:
    assert bytes(seal.open(name, seal.close(name, memoryview(data)))) == data


@seals
@given(data=st.binary(min_size=1, max_size=60), at=st.integers(min_value=0), bit=st.integers(0, 7))
def test_a_flipped_bit_anywhere_is_found(seal: BlockSeal, data: bytes, at: int, bit: int) -> None:
    block = bytearray(seal.close(b"name", data))
    block[at % len(block)] ^= 1 << bit
    with pytest.raises(Damaged):
        seal.open(b"name", bytes(block))


@seals
@given(data=st.binary(max_size=60), left=st.integers(min_value=0))
def test_a_part_of_a_block_is_found(seal: BlockSeal, data: bytes, left: int) -> None:
    block = seal.close(b"name", data)
    with pytest.raises(Damaged):
        seal.open(b"name", block[: left % len(block)])


@seals
def test_another_blocks_content_is_found(seal: BlockSeal) -> None:
    with pytest.raises(Damaged):
        seal.open(b"one", seal.close(b"other", b"data"))


@pytest.mark.parametrize("reader", [BlockSeal(), BlockSeal(bytes(32))], ids=["without a key", "another key"])
def test_an_encrypted_block_says_nothing_without_its_key(reader: BlockSeal) -> None:
    block = BlockSeal(KEY).close(b"name", b"what was asked")
    assert b"what was asked" not in block
    with pytest.raises(Damaged):
        reader.open(b"name", block)


def test_a_plain_block_is_not_taken_by_an_encrypted_store() -> None:
    with pytest.raises(Damaged):
        BlockSeal(KEY).open(b"name", BlockSeal().close(b"name", b"data"))


@pytest.mark.parametrize(("content", "says"), [(b"short", "5 bytes"), (None, "No such file")])
def test_a_wrong_key_file_is_refused_by_name(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=f"tiers.key_file={path}: .*{says}"):
        read_key(path)


def test_files_and_folders_are_the_services_own(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        FolderStore(tmp_path / "kv").put("model/abc/block", b"data", 0)
    finally:
        os.umask(old)
    paths = sorted((tmp_path / "kv").rglob("*"))
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "kv", *paths)] == [0o700, 0o700, 0o700, 0o600]


def test_a_blocks_time_is_that_of_its_use_as_noted(tmp_path: Path) -> None:
    """Reads don't count: a prompt's blocks are read from its beginning, and that would be lost first."""
    store = FolderStore(tmp_path / "kv")
    store.put("model/abc/block", b"data", 1000)
    store.get("model/abc/block")
    assert [one.used for one in store.all()] == [1000]
    store.touch("model/abc/block", 2000)
    store.touch("model/abc/gone", 2000)
    assert [(one.path, one.used) for one in store.all()] == [("model/abc/block", 2000)]


def test_a_use_is_noted_once_in_a_period_tails_first() -> None:
    uses = Uses[str](600)
    assert uses.due([("head", 32), ("tail", 64)], 1000) == [("tail", 1200 - 64e-4), ("head", 1200 - 32e-4)]
    assert uses.due([("head", 32), ("tail", 64), ("more", 96)], 1100) == [("more", 1200 - 96e-4)]
    assert uses.due([("head", 32)], 1201) == [("head", 1800 - 32e-4)]


def test_a_folder_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"tiers\.disk=.*/file/kv: File exists"):
        open_store(str(tmp_path / "file" / "kv"))


def test_an_unknown_protocol_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match=r"tiers.disk=nowhere://kv"):
        open_store("nowhere://kv")


def test_a_model_has_the_same_fingerprint_wherever_it_lies_and_another_one_has_another(tmp_path: Path) -> None:
    for name in ("here", "there", "other", "longer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(bytes(3 * 2**20))
    (tmp_path / "other/model.safetensors").write_bytes(bytes(3 * 2**20 - 1) + b"x")
    (tmp_path / "longer/model.safetensors").write_bytes(bytes(3 * 2**20 + 1))
    here, *others = (fingerprint(tmp_path / name) for name in ("here", "there", "other", "longer"))
    assert here == others[0]
    assert len({here, *others}) == 3
