# A worker with TensorRT-LLM, whose wheels are for Python 3.12. The CUDA libraries come with the Python packages; the host
# provides the driver and the NVIDIA container toolkit. Build from the project's root:
#   docker build -f docker/worker-trtllm.Dockerfile -t xylem-worker-trtllm .
# A tag of one Debian release and one Python; give its digest, or a base of your own, with --build-arg BASE=…
ARG BASE=docker.io/library/python:3.12.13-slim-bookworm
FROM ${BASE}

LABEL org.opencontainers.image.title="xylem-worker-trtllm" \
    org.opencontainers.image.description="Xylem: a worker with TensorRT-LLM" \
    org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.licenses="Apache-2.0"

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /srv/xylem

# Triton compiles its launchers at run time, and TensorRT-LLM's processes speak MPI.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libnuma1 libopenmpi-dev \
    && apt-get clean && rm -rf /var/lib/apt/lists/*

COPY requirements/trtllm.txt requirements/
# The source archive of tensorrt-llm fetches its wheel from NVIDIA's own index, which the build has to reach.
RUN pip install --no-deps --requirement requirements/trtllm.txt

COPY pyproject.toml README.md LICENSE xylem.py ./
COPY app app
COPY workers workers
# The programs that run as root whoever starts them are Debian's, and nothing here needs one.
RUN pip install --no-deps . && find / -xdev -type f -perm /6000 -exec chmod ug-s {} +

RUN useradd --create-home --uid 10001 xylem && install --directory --owner=xylem /models
USER 10001
WORKDIR /home/xylem
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
STOPSIGNAL SIGTERM
ENTRYPOINT ["xylem", "worker"]
CMD ["decode-pool-a"]
