# A worker with vLLM on CPU. Build from the project's root, with the address of PyTorch's CPU wheel index:
#   docker build -f docker/worker-cpu.Dockerfile --build-arg XYLEM_TORCH_INDEX=… -t xylem-worker-cpu .
FROM python:3.11-slim

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /srv/xylem

# libnuma: vLLM binds its threads to cores. g++: torch compiles small kernels for some models.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libnuma1 \
    && rm -rf /var/lib/apt/lists/*

ARG XYLEM_TORCH_INDEX
COPY requirements/cpu.txt requirements/
RUN pip install --no-deps --extra-index-url "${XYLEM_TORCH_INDEX:?set it to PyTorch CPU wheel index}" --requirement requirements/cpu.txt

COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY workers workers
RUN pip install --no-deps .

# /models belongs to the user, so that a volume mounted there does too.
RUN useradd --create-home --uid 10001 xylem && install --directory --owner=xylem /models
USER 10001
WORKDIR /home/xylem
STOPSIGNAL SIGTERM
ENTRYPOINT ["xylem", "worker"]
CMD ["decode-pool-a"]
