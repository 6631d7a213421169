"""The programs of examples/ whose packages are here, on one system; `make clients` runs the others."""

import json
import os
import subprocess

import httpx
import pytest

from ops.clients.tried import EXAMPLES
from tests.serving import served_by
from tests.stack import PYTHON, ROOT, Stack, mock_pool

FOLDER = ROOT / "examples"
HERE = {"openai_chat.py", "anthropic_messages.py", "team_with_budget.py", "open_webui.env"}
ADMIN = {"Authorization": "Bearer sesame"}

served = served_by({"decode-pool-a": mock_pool(step_ms=1.0)}, XYLEM_REQUIRE_KEYS="true", XYLEM_ADMIN_KEY="sesame")


@pytest.fixture(scope="module")
def environment(served: Stack) -> dict[str, str]:
    made_key = httpx.post(f"{served.url}/admin/keys", json={"name": "examples"}, headers=ADMIN)
    assert made_key.status_code == 200, made_key.text
    key = made_key.json()["key"]
    return os.environ | {
        "OPENAI_BASE_URL": f"{served.url}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": served.url,
        "ANTHROPIC_API_KEY": key,
        "XYLEM_ADMIN_KEY": "sesame",
        "MODEL": "mock",
    }


def output_of(*arguments: str, **environment: str) -> str:
    result = subprocess.run(
        [PYTHON, *arguments], check=False, env=environment, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_every_example_is_run_somewhere_and_in_the_list() -> None:
    files = {path.name for path in FOLDER.iterdir()} - {"README.md", "__pycache__"}
    assert files == HERE | {example.script for example in EXAMPLES}
    assert len(files) == 10
    text = (FOLDER / "README.md").read_text()
    assert [name for name in files if f"| [{name}]({name}) |" not in text] == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("openai_chat.py", "name='"),  # in the form of the class
        ("anthropic_messages.py", "output_tokens=50"),
        ("team_with_budget.py", "The tenant 'search' has spent"),
    ],
)
def test_an_example_runs_as_it_is(environment: dict[str, str], script: str, said: str) -> None:
    assert said in output_of(str(FOLDER / script), **environment)


def test_the_notebooks_cells_run_as_they_are(environment: dict[str, str]) -> None:
    cells = json.loads((FOLDER / "notebook.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert [line for line in output_of("-c", code, **environment).splitlines() if line.startswith("2 ")]


def test_open_webuis_settings_lead_to_models_and_chats(environment: dict[str, str]) -> None:
    """Open WebUI asks for the models at the address that it has, and streams chats; here at another host."""
    lines = (FOLDER / "open_webui.env").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert settings["OPENAI_API_BASE_URL"] == settings["RAG_OPENAI_API_BASE_URL"]
    path = settings["OPENAI_API_BASE_URL"].removeprefix("http://host.docker.internal:8000")
    url = environment["OPENAI_BASE_URL"].removesuffix("/v1") + path
    headers = {"Authorization": f"Bearer {environment['OPENAI_API_KEY']}"}
    models = [model["id"] for model in httpx.get(f"{url}/models", headers=headers).json()["data"]]
    assert models == ["mock"]
    body = {"model": models[0], "stream": True, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
    answer = httpx.post(f"{url}/chat/completions", json=body, headers=headers)
    assert answer.text.rstrip().endswith("data: [DONE]")
