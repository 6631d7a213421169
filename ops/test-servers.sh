#!/usr/bin/env bash
# Installs the servers that tests need besides Python's packages: redis-server, PostgreSQL, Prometheus with promtool, and
# sshd, nginx and HAProxy; and Chromium for the console's tests. As root on Debian or Ubuntu, without starting a service. Elsewhere it says what is missing.
set -euo pipefail
missing=()
command -v redis-server >/dev/null || missing+=(redis-server)
command -v initdb >/dev/null || compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null || missing+=(postgresql)
command -v prometheus >/dev/null && command -v promtool >/dev/null || missing+=(prometheus)
[ -x /usr/sbin/sshd ] && command -v ssh >/dev/null || missing+=(openssh-server openssh-client)
command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || missing+=(nginx-light)
command -v haproxy >/dev/null || [ -x /usr/sbin/haproxy ] || missing+=(haproxy)
command -v chromium >/dev/null || missing+=(chromium)
[ ${#missing[@]} != 0 ] || exit 0

say() { printf '%s\n' "xylem: $*" >&2; }
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "not installed, so tests against it fail: ${missing[*]}. Install it: apt-get install ${missing[*]}, brew install redis postgresql prometheus nginx haproxy chromium."
    [ -z "${CI:-}" ] || exit 1
    exit 0
fi

say "installing ${missing[*]} (apt-get)"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then # prevents the packages from starting their services
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; }
install 2>/dev/null || { apt-get update -qq && install; }
