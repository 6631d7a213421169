"""Claude Code: `claude -p` runs a command and reports its output."""

import json
import subprocess

command = ["claude", "-p", "Run the note, please.", "--allowedTools", "Bash", "--output-format", "json"]
done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
print(done.stdout, done.stderr)
assert done.returncode == 0, done.returncode
told = json.loads(done.stdout)
assert (told["result"], told["num_turns"]) == ("The note says 42.", 2)
