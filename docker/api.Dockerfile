# The API, batch workers, Flower and the command line: no torch. Build from the project's root:
#   docker build -f docker/api.Dockerfile -t xylem-api .
# A tag of one Debian release and one Python; give its digest, or a base of your own, with --build-arg BASE=…
ARG BASE=docker.io/library/python:3.11.15-slim-bookworm
FROM ${BASE}

LABEL org.opencontainers.image.title="xylem-api" \
    org.opencontainers.image.description="Xylem: API, batch workers, Flower, command line" \
    org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.licenses="Apache-2.0"

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /srv/xylem

COPY requirements/base.txt requirements/
RUN pip install --no-deps --requirement requirements/base.txt

COPY pyproject.toml README.md LICENSE xylem.py ./
COPY app app
COPY workers workers
# The programs that run as root whoever starts them are Debian's, and nothing here needs one.
RUN pip install --no-deps . && find / -xdev -type f -perm /6000 -exec chmod ug-s {} +

RUN useradd --create-home --uid 10001 xylem && install -d -o xylem /files
USER 10001
WORKDIR /home/xylem
ENV XYLEM_HOST=0.0.0.0
EXPOSE 8000
HEALTHCHECK --interval=5s --start-period=20s CMD ["python", "-c", "import httpx, os; httpx.get(f'http://127.0.0.1:{os.environ.get(\"XYLEM_PORT\", 8000)}/live', trust_env=False).raise_for_status()"]
CMD ["xylem", "api"]
