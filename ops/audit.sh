#!/usr/bin/env bash
# Fails if a pinned version has a known vulnerability in the OSV database. If the database can't be reached, it reports
# that and does not fail: a machine without the internet has to be able to check the rest.
set -euo pipefail
cd "$(dirname "$0")/.."
service=${OSV_URL:-https://api.osv.dev/v1/query}
audit=${PIP_AUDIT:-.venv/bin/pip-audit}

# Test the connection first: other failures of pip-audit must not pass.
ask='import sys, httpx; httpx.post(sys.argv[1], json={"package": {"name": "pip", "ecosystem": "PyPI"}}, timeout=10).raise_for_status()'
if ! why=$(.venv/bin/python -c "$ask" "$service" 2>&1); then
    printf '%s\n' "audit: NOT DONE, no vulnerability was looked for: $service can't be reached (${why##*$'\n'})"
    exit 0
fi
for list in dev gpu sglang trtllm torch-cpu; do # dev has all of base and cpu
    "$audit" --no-deps --disable-pip --progress-spinner off -s osv --osv-url "$service" -r "requirements/$list.txt" 2>&1 |
        grep -v '^WARNING:pip_audit._cli:\(--no-deps\|Consider\)'
done
