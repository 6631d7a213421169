"""Codex: `codex exec` runs a command and reports its output."""

import os
import subprocess
from pathlib import Path

CONFIG = """
model = "mock"
model_provider = "xylem"
web_search = "disabled"

[model_providers.xylem]
name = "Xylem"
base_url = "{url}"
wire_api = "responses"
"""

home = Path(os.environ["HOME"], ".codex")
home.mkdir(parents=True, exist_ok=True)
(home / "config.toml").write_text(CONFIG.format(url=os.environ["OPENAI_BASE_URL"]))
command = ["codex", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "--json", "Look at the note."]
done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
print(done.stdout, done.stderr)
assert done.returncode == 0, done.returncode
assert "42 is in the note" in done.stdout, "the command was not run"
assert "The note says 42." in done.stdout, "its output was not answered"
