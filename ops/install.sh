#!/usr/bin/env bash
# ops/install.sh [--dry-run] cpu|gpu|dev|sglang|images: installs requirements/<it>.txt and this project into .venv. Run by make.
# SGLang comes after cpu or dev, images after cpu, gpu or dev. app/cli/installing.py, which `xylem install` runs too, has
# the rest.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
say() { printf '%s\n' "xylem: $*" >&2; }

if [ "$1" = --dry-run ]; then
    exec "$python" -m app.cli.installing --dry-run "$2"
fi
what=$1
fresh=
if [ "$what" != sglang ] && [ "$what" != images ]; then
    "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || {
        say "needs Python 3.11 to 3.13, and $python is $("$python" --version 2>/dev/null || echo "not there"). Try: make PYTHON=python3.11 ..."
        exit 1
    }
    [ -x .venv/bin/pip ] || { fresh=1 && "$python" -m venv .venv; }
    if [ "$what" = gpu ]; then rm -f .venv/.cpu .venv/.dev .venv/.sglang .venv/.images; else rm -f .venv/.gpu; fi
fi
.venv/bin/python -m app.cli.installing "$what" || {
    [ -z "$fresh" ] || rm -rf .venv # the next try may name another Python
    exit 1
}
if [ "$what" != sglang ] && [ "$what" != images ]; then
    .venv/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --editable .
    [ "$what" = gpu ] || touch .venv/.cpu # dev has all of it
fi
touch ".venv/.$what"
