"""Tests what is in the images that `make images` builds, and what is not."""

import json
import re
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.container_spec import services
from tests.containers import STORE, Containers, needs
from tests.stack import ROOT

IMAGES = ("api", "worker-cpu", "worker-cuda", "worker-sglang", "worker-trtllm")
pytestmark = [pytest.mark.images, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module", params=[pytest.param(name, marks=needs(name)) for name in IMAGES])
def image(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """Containers that run any image, confined as the API of compose.yaml."""
    with ExitStack() as until:
        yield Containers(tmp_path_factory.mktemp("containers"), {}, until)


def _said(containers: Containers, image: str, *command: str) -> str:
    """The output of the command in a container of the image, confined as compose.yaml has it."""
    restrictions = {key: services({})["api"][key] for key in ("read_only", "cap_drop", "security_opt", "tmpfs")}
    name = f"{image}-{len(containers.procs)}"
    build = {"dockerfile": f"docker/{image}.Dockerfile"}
    containers.services[name] = {**restrictions, "build": build, "entrypoint": [], "command": list(command)}
    containers.start(name)
    status = containers.procs[name].wait(300)
    assert status == 0, containers.log(name)
    return containers.log(name)


def test_its_user_can_write_to_nothing_but_memory(image: str, containers: Containers) -> None:
    """Confined; `-writable` asks the kernel. The places of volumes can't be written without these."""
    search = "find / -xdev -writable -not -type l 2>/dev/null; find / -xdev -type f -perm /6000 2>/dev/null; true"
    assert _said(containers, image, "sh", "-c", search).split() == ["/tmp", "/home/xylem"]
    memory = "id -u; for place in /tmp /home/xylem; do echo x > $place/x && cat $place/x; done"
    assert _said(containers, image, "sh", "-c", memory).split() == ["10001", "x", "x"]


def test_its_user_owns_nothing_but_its_home_and_the_places_of_volumes(image: str, containers: Containers) -> None:
    root = containers.image(image).root
    own_paths = {str(path.relative_to(root)) for path in root.rglob("*") if path.lstat().st_uid == 10001}
    assert {path for path in own_paths if not path.startswith("home/xylem")} <= {"files", "models"}


def test_xylem_runs(image: str, containers: Containers) -> None:
    assert "doctor" in _said(containers, image, "xylem", "--help")


def test_nothing_of_the_build_is_left(image: str, containers: Containers) -> None:
    """No caches, no package lists, no tests, none of this machine's files; in the API's image no compiler."""
    root = containers.image(image).root
    for folder in ("root/.cache", "home/xylem/.cache", "tmp", "var/cache/apt/archives", "run/pip"):
        assert [path for path in (root / folder).rglob("*.*") if path.is_file() and path.stat().st_size] == [], folder
    assert [
        path.name for path in (root / "var/lib/apt/lists").rglob("*") if path.is_file() and path.stat().st_size
    ] == []
    assert (root / "etc/pip.conf").read_bytes() == b""
    assert list((root / "opt").iterdir()) == []
    assert {path.name for path in (root / "srv/xylem").iterdir()} == {
        "LICENSE", "README.md", "app", "pyproject.toml", "requirements", "workers", "xylem.py"
    }  # fmt: skip
    assert [path for path in (root / "srv/xylem").rglob("*") if path.name in {".git", "tests", "__pycache__"}] == []
    if image == "api":
        compilers = re.compile(r"(.+-)?(gcc|g\+\+|cc|c\+\+|clang|ld|as|make|rustc|go)(-\d+)?")
        assert [path.name for path in root.glob("usr/*bin/*") if compilers.fullmatch(path.name)] == []


def test_its_labels_say_what_it_is_and_no_variable_is_a_secret(image: str, containers: Containers) -> None:
    config = containers.image(image).config
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in config["Labels"].items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert labels["title"] == f"xylem-{image}"
    assert labels["version"] == project["version"]
    assert labels["licenses"] == project["license"]
    assert re.fullmatch("[0-9a-f]{40}", labels["revision"])
    names = {line.partition("=")[0] for line in config["Env"]}
    assert not {name for name in names if re.search("TOKEN|PASSWORD|SECRET|_KEY|REDIS|INDEX", name)}


def test_its_list_has_each_package_that_its_own_tools_list(image: str, containers: Containers) -> None:
    inventory = json.loads((STORE / f"{image}.cdx.json").read_text())
    urls = {re.sub(r"\?.*", "", one["purl"]) for one in inventory["components"]}
    pip = json.loads(_said(containers, image, "python", "-m", "pip", "list", "--format", "json").splitlines()[-1])
    dpkg = _said(containers, image, "dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Status}\\n")
    python = {f"{re.sub('[-_.]+', '-', one['name']).lower()}@{one['version']}" for one in pip}
    debian = {"@".join(line.split()[:2]) for line in dpkg.splitlines() if line.endswith(" installed")}
    plain_urls = {url.replace("%2B", "+").replace("%3A", ":").replace("%7E", "~") for url in urls}
    pypi_packages = {url.removeprefix("pkg:pypi/") for url in plain_urls if url.startswith("pkg:pypi/")}
    assert python <= pypi_packages
    # Of a package that is installed twice, pip lists the one that is imported.
    debians = {path.name.split("-")[0] for path in containers.image(image).root.glob("usr/lib/python3/*/*-info")}
    assert {name.partition("@")[0] for name in pypi_packages - python} <= debians
    assert {f"pkg:deb/debian/{name}" for name in debian} == {url for url in plain_urls if url.startswith("pkg:deb/")}
    assert len(python) > 50
    assert len(debian) > 50
