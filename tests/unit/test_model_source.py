"""Addresses of models, and which of a model's files are fetched."""

from pathlib import Path

import pytest

from app.model_store.source import RemoteFile, RemoteModel, read_source, wanted
from app.pools.schema import Pool
from tests.models import pools_error


@pytest.mark.parametrize(
    ("given", "source", "shown"),
    [
        ("hf://org/name", RemoteModel("hf", "org/name", "main"), "hf://org/name@main"),
        ("hf://org/name.b@refs/pr/3", RemoteModel("hf", "org/name.b", "refs/pr/3"), "hf://org/name.b@refs/pr/3"),
        ("s3://bucket/models/tiny/", RemoteModel("s3", "bucket/models/tiny"), "s3://bucket/models/tiny"),
    ],
)
def test_an_address_is_read(given: str, source: RemoteModel, shown: str) -> None:
    assert read_source(given) == source
    assert str(source) == shown
    assert Pool(model="m", engine="mock", path=given).path == source


def test_whatever_has_no_scheme_is_a_folder() -> None:
    assert Pool(model="m", engine="mock", path="hf:/odd/folder").path == Path("hf:/odd/folder")


@pytest.mark.parametrize(
    "given", ["hf://name", "hf://../name", "hf://a/b@", "s3://bucket", "s3://b/../c", "http://a/b"]
)
def test_a_wrong_address_is_refused_by_its_pool(given: str, tmp_path: Path) -> None:
    assert "pools.p.path" in pools_error(tmp_path, f"pools: {{p: {{model: m, engine: mock, path: '{given}'}}}}")


def test_two_sources_never_share_a_name() -> None:
    assert RemoteModel("hf", "a/b--c", "main").slug != RemoteModel("hf", "a/b", "c--main").slug
    assert RemoteModel("hf", "a/b", "v1").family == RemoteModel("hf", "a/b", "v2").family


def test_pickled_weights_are_fetched_only_where_there_are_no_others() -> None:
    names = ["config.json", "pytorch_model.bin", "model.onnx", "original/a.safetensors", "1_Pooling/config.json"]
    files = [RemoteFile(name, 1) for name in names]
    assert [f.name for f in wanted(files, "all")] == ["config.json", "pytorch_model.bin", "1_Pooling/config.json"]
    assert [f.name for f in wanted(files, "text")] == ["config.json", "1_Pooling/config.json"]
    safe = [*files, RemoteFile("model.safetensors", 1)]
    assert "pytorch_model.bin" not in [f.name for f in wanted(safe, "all")]


@pytest.mark.parametrize("name", ["/etc/passwd.json", "../x.json", "a/../../x.json", "a//x.json", "a\\..\\x.json"])
def test_a_name_outside_the_folder_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="has the name"):
        wanted([RemoteFile(name, 1)], "all")
