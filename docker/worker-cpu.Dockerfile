# A worker with vLLM on CPU. Build from the project's root, with the address of PyTorch's CPU wheel index:
#   docker build -f docker/worker-cpu.Dockerfile --build-arg XYLEM_TORCH_INDEX=… -t xylem-worker-cpu .
# A tag of one Debian release and one Python; give its digest, or a base of your own, with --build-arg BASE=…
ARG BASE=docker.io/library/python:3.11.15-slim-bookworm
FROM ${BASE}

LABEL org.opencontainers.image.title="xylem-worker-cpu" \
    org.opencontainers.image.description="Xylem: a worker with vLLM on a CPU" \
    org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.licenses="Apache-2.0"

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /srv/xylem

# libnuma: vLLM binds its threads to cores. g++: torch compiles small kernels for some models.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libnuma1 \
    && apt-get clean && rm -rf /var/lib/apt/lists/*

ARG XYLEM_TORCH_INDEX
COPY requirements/cpu.txt requirements/torch-cpu.txt requirements/
RUN pip install --no-deps ${XYLEM_TORCH_INDEX:+--extra-index-url "$XYLEM_TORCH_INDEX"} --requirement requirements/torch-cpu.txt \
    && pip install --no-deps --requirement requirements/cpu.txt

COPY pyproject.toml README.md LICENSE xylem.py ./
COPY app app
COPY workers workers
# The programs that run as root whoever starts them are Debian's, and nothing here needs one.
RUN pip install --no-deps . && find / -xdev -type f -perm /6000 -exec chmod ug-s {} +

# /models belongs to the user, so that a volume mounted there does too.
RUN useradd --create-home --uid 10001 xylem && install --directory --owner=xylem /models
USER 10001
WORKDIR /home/xylem
STOPSIGNAL SIGTERM
ENTRYPOINT ["xylem", "worker"]
CMD ["decode-pool-a"]
