"""Safe defaults of what is shipped: nothing is unpickled, and only this machine reaches Flower."""

import ast
import os
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from app.cli import stack
from tests.stack import ROOT

SOURCES = sorted([*(ROOT / "app").rglob("*.py"), *(ROOT / "workers").rglob("*.py")])
# They run what they read.
UNSAFE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle"}


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_nothing_is_ever_unpickled() -> None:
    """Our own code does it nowhere.

    Libraries may among their own processes; their switches for it elsewhere stay off.
    """
    assert len(SOURCES) > 90
    for path in SOURCES:
        assert not {name.split(".")[0] for name in imported(path)} & UNSAFE, path
        assert not re.search("INSECURE_SERIALIZATION|allow_pickle", path.read_text()), path


def test_celery_takes_and_sends_json_only() -> None:
    """A message of any other kind is refused unread."""
    from app.celery import app

    assert list(app.conf.accept_content) == ["json"]
    assert not app.conf.result_accept_content
    assert {app.conf.task_serializer, app.conf.result_serializer, app.conf.event_serializer} == {"json"}


def test_flower_is_for_this_machine_only_unless_somebody_says_otherwise() -> None:
    """Both `celery -A app flower` and `xylem up` do so."""
    import app.celery  # noqa: F401 (sets it)

    assert os.environ["FLOWER_ADDRESS"] == "127.0.0.1"
    assert "--address=127.0.0.1" in stack.flower(5555, {}).argv


def test_flower_forgets_workers_that_are_gone_after_a_minute() -> None:
    """Flower reads the environment by itself. It would otherwise list each worker that there ever was."""
    from flower.command import apply_env_options
    from flower.options import options

    import app.celery  # noqa: F401 (sets it)

    apply_env_options()
    assert options.purge_offline_workers == 60


@pytest.fixture
def services() -> dict[str, dict[str, object]]:
    compose_services: dict[str, dict[str, object]] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())[
        "services"
    ]
    return compose_services


def test_flower_in_a_container_asks_for_a_password_that_has_to_be_set(services: dict[str, dict[str, object]]) -> None:
    """Flower listens to other containers there. Compose refuses to start without the variable."""
    environment = services["flower"]["environment"]
    assert isinstance(environment, dict)
    assert environment["FLOWER_BASIC_AUTH"].startswith("${XYLEM_FLOWER_AUTH:?")


def test_no_container_has_rights_of_root_or_writes_to_its_image(services: dict[str, dict[str, object]]) -> None:
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert ("cap_add" in service) == (name == "valkey"), name  # whose image starts as root


@pytest.mark.parametrize("dockerfile", sorted((ROOT / "docker").glob("*.Dockerfile")), ids=lambda path: path.name)
def test_an_image_has_one_base_and_this_version_and_an_ordinary_user(dockerfile: Path) -> None:
    text = dockerfile.read_text()
    (base,) = re.findall(r"^ARG BASE=(.+)$", text, re.MULTILINE)
    python = r"3\.12" if dockerfile.stem == "worker-trtllm" else r"3\.11"  # as its lock file
    assert re.fullmatch(rf"docker\.io/library/python:{python}\.\d+-slim-bookworm", base)
    assert re.findall(r"^FROM (.+)$", text, re.MULTILINE) == ["${BASE}"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f'org.opencontainers.image.version="{version}"' in text
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE) == ["10001"]


def test_containers_are_published_on_this_machine_only(services: dict[str, dict[str, object]]) -> None:
    """Redis is not published at all."""
    ports = [port for service in services.values() for port in service.get("ports", [])]  # type: ignore[attr-defined]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert "ports" not in services["valkey"]


def test_containers_are_given_longer_to_end_than_they_drain(services: dict[str, dict[str, object]]) -> None:
    drains = {name: service["environment"] for name, service in services.items() if name in ("api", "worker", "batch")}
    for name, environment in drains.items():
        assert isinstance(environment, dict)
        (number, unit) = re.fullmatch(r"(\d+)([sm])", str(services[name]["stop_grace_period"])).groups()  # type: ignore[union-attr]
        assert float(environment["XYLEM_DRAIN_TIMEOUT_S"]) < int(number) * {"s": 1, "m": 60}[unit], name
