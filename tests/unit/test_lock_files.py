"""Packages of the lock files: each has the hashes of its files, so that nothing is installed that wasn't checked."""

import re
from pathlib import Path

import pytest

from tests.stack import ROOT

UNHASHED = ("torch-cpu", "cpu-excludes", "cpu-overrides", "trtllm-overrides")
FOR_GPUS = ("gpu", "sglang", "trtllm")
LISTS = sorted(path for path in (ROOT / "requirements").glob("*.txt") if path.stem not in UNHASHED)


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_each_package_of_a_lock_file_has_hashes(path: Path) -> None:
    """Pip then refuses a package without one, also one that is added by hand."""
    lines = [
        line
        for line in path.read_text().replace("\\\n", " ").splitlines()
        if line and not line.lstrip().startswith("#")
    ]
    assert lines
    assert [line for line in lines if not re.match(r"[a-z0-9].*==\S+ .*--hash=sha256:[0-9a-f]{64}", line)] == []


def test_torch_for_cpus_is_named_once() -> None:
    """Its own index alone knows all builds of it: it has no hashes, and so can't be in a file with some."""
    assert re.fullmatch(r"torch==\d+\.\d+\.\d+\+cpu\n", (ROOT / "requirements/torch-cpu.txt").read_text())
    assert not [
        path for path in LISTS if path.stem not in FOR_GPUS and re.search("^torch==", path.read_text(), re.MULTILINE)
    ]


@pytest.mark.parametrize("name", ["cpu", "dev"])
def test_a_cpu_has_what_processors_of_pictures_and_sound_import(name: str) -> None:
    """Torchvision in the version that does without compiled operators, and none of what is left out."""
    versions = dict(
        re.findall(r"^([a-z0-9-]+)==([^ ]+)", (ROOT / f"requirements/{name}.txt").read_text(), re.MULTILINE)
    )
    overrides = (ROOT / "requirements/cpu-overrides.txt").read_text()
    assert re.findall(r"^torchvision==(\S+)", overrides, re.MULTILINE) == [versions["torchvision"]]
    assert {"timm", "av", "soundfile", "soxr", "opencv-python-headless"} <= set(versions)
    exclusions = (ROOT / "requirements/cpu-excludes.txt").read_text()
    assert "scipy" not in versions  # a second of CPU in each process of vLLM, for one model's resampling
    assert not set(re.findall(r"^[a-z].*$", exclusions, re.MULTILINE)) & set(versions)
