#!/usr/bin/env bash
# ops/images/build.sh IMAGE…: builds docker/IMAGE.Dockerfile as localhost/xylem-IMAGE with buildah, without a daemon, into
# .xylem/images, with the list of its packages (IMAGE.cdx.json). As root, on Debian or Ubuntu: it installs buildah,
# mmdebstrap, and runc and iproute2 for the tests. Variables:
#   BASE    the base image, such as docker.io/library/python:3.11.15-slim-bookworm@sha256:…, which is pulled. Without it
#           one is made of Debian's packages, which needs no registry.
#   SOURCE  where this code is published: becomes a label of the images.
# pip inside gets what pip here is told of indexes, proxies, certificates, and folders of packages.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$PWD/.venv/bin/python
here=$PWD/.xylem/images
export BUILDAH_ISOLATION=chroot
buildah() { command buildah --root "$here/storage" --runroot "$here/run" "$@"; }
say() { printf '%s\n' "xylem: $*" >&2; }

missing=()
# Not `command -v`, which finds the function above.
for tool in buildah mmdebstrap runc; do type -P "$tool" >/dev/null || missing+=("$tool"); done
command -v ip >/dev/null || missing+=(iproute2)
if [ "$(id -u)" != 0 ] || { [ ${#missing[@]} != 0 ] && ! command -v apt-get >/dev/null; }; then
    say "building images needs root, buildah, mmdebstrap, runc and iproute2${missing[*]:+; not installed: ${missing[*]}}"
    exit 1
fi
if [ ${#missing[@]} != 0 ]; then
    say "installing ${missing[*]} (apt-get)"
    export DEBIAN_FRONTEND=noninteractive
    install() { apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; }
    install 2>/dev/null || { apt-get update -qq && install; }
fi
mkdir -p "$here"

pull=always base=${BASE:-localhost/xylem-base}
if [ -z "${BASE:-}" ]; then # Debian's Python, where the Dockerfiles name Docker's
    pull=never
    if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
        say "making a base image of Debian bookworm"
        # As Debian's slim images: no manuals, no translations; licences stay.
        mmdebstrap --quiet --variant=minbase --include=python3,python3-pip,ca-certificates \
            --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
            --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
            --customize-hook='rm "$1"/usr/lib/python3*/EXTERNALLY-MANAGED; ln -s python3 "$1/usr/bin/python"' \
            bookworm "$here/base.tar"
        container=$(buildah from scratch)
        buildah add --quiet "$container" "$here/base.tar" /
        buildah config --env PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin --env LANG=C.UTF-8 "$container"
        buildah commit --quiet --rm "$container" "$base" >/dev/null
        rm "$here/base.tar"
    fi
fi

# Mounted, so that no image has it; only empty places stay.
mounts=(--volume "$here/pip.conf:/etc/pip.conf:ro")
places=$(umask 077 && "$python" -m ops.images.pip_config "$here/pip.conf")
for place in $places; do mounts+=(--volume "$place:ro"); done

labels=(--label "org.opencontainers.image.revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)")
[ -z "${SOURCE:-}" ] || labels+=(--label "org.opencontainers.image.source=$SOURCE")

for image in "$@"; do
    say "building xylem-$image"
    buildah bud --quiet --layers --pull="$pull" --network host --format docker "${mounts[@]}" "${labels[@]}" \
        --build-arg BASE="$base" --build-arg XYLEM_TORCH_INDEX="${XYLEM_TORCH_INDEX:-}" \
        --file "docker/$image.Dockerfile" --tag "localhost/xylem-$image" . >/dev/null
    container=$(buildah from --pull-never "localhost/xylem-$image")
    "$python" -m ops.images.sbom "$image" "$(buildah mount "$container")" "$here/$image.cdx.json"
    buildah rm "$container" >/dev/null
done
buildah images
