#!/usr/bin/env bash
# Provides the redis-server binary for the integration tests. As root on Debian or Ubuntu it installs it, without
# starting a service. Elsewhere it says how to install it.
set -euo pipefail
command -v redis-server >/dev/null && exit 0

say() { printf '%s\n' "xylem: $*" >&2; }
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "redis-server is not installed, so tests against it are skipped. Install it: apt-get install redis-server, brew install redis."
    [ -z "${CI:-}" ] || exit 1
    exit 0
fi

say "installing redis-server (apt-get)"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then # keeps the package from starting its service
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -y -qq --no-install-recommends redis-server >/dev/null; }
install 2>/dev/null || { apt-get update -qq && install; }
