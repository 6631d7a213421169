# A worker with vLLM on CUDA. The CUDA libraries come with the Python packages; the host provides the driver and the
# NVIDIA container toolkit. Build from the project's root:
#   docker build -f docker/worker-cuda.Dockerfile -t xylem-worker-cuda .
FROM python:3.11-slim

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /srv/xylem

# Triton compiles its launchers on the machine where they run.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev libnuma1 \
    && rm -rf /var/lib/apt/lists/*

COPY requirements/gpu.txt requirements/
RUN pip install --no-deps --requirement requirements/gpu.txt

COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY workers workers
RUN pip install --no-deps .

RUN useradd --create-home --uid 10001 xylem && install --directory --owner=xylem /models
USER 10001
WORKDIR /home/xylem
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
STOPSIGNAL SIGTERM
ENTRYPOINT ["xylem", "worker"]
CMD ["decode-pool-a"]
