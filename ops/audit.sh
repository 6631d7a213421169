#!/usr/bin/env bash
# Fails when a pinned version has a known vulnerability in the OSV database. Where that can't be reached, it says so and
# succeeds: a machine without internet has to be able to run the other checks.
set -euo pipefail
cd "$(dirname "$0")/.."
service=${OSV_URL:-https://api.osv.dev/v1/query}
audit=${PIP_AUDIT:-.venv/bin/pip-audit}

# First a test request: pip-audit's exit status doesn't tell an unreachable database from other failures.
ask='import sys, httpx; httpx.post(sys.argv[1], json={"package": {"name": "pip", "ecosystem": "PyPI"}}, timeout=10).raise_for_status()'
if ! why=$(.venv/bin/python -c "$ask" "$service" 2>&1); then
    printf '%s\n' "audit: NOT DONE, no vulnerability was looked for: $service can't be reached (${why##*$'\n'})"
    exit 0
fi
for list in dev gpu; do # dev has all of base and cpu
    "$audit" --no-deps --disable-pip --progress-spinner off -s osv --osv-url "$service" -r "requirements/$list.txt" 2>&1 |
        grep -v '^WARNING:pip_audit._cli:\(--no-deps\|Consider\)'
done
