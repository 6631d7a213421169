# The API, batch workers, Flower and the command line: no torch. Build from the project's root:
#   docker build -f docker/api.Dockerfile -t xylem-api .
FROM python:3.11-slim

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /srv/xylem

COPY requirements/base.txt requirements/
RUN pip install --no-deps --requirement requirements/base.txt

COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY workers workers
RUN pip install --no-deps .

RUN useradd --create-home --uid 10001 xylem && install -d -o xylem /files
USER 10001
WORKDIR /home/xylem
ENV XYLEM_HOST=0.0.0.0
EXPOSE 8000
HEALTHCHECK --interval=5s --start-period=20s CMD ["python", "-c", "import httpx; httpx.get('http://127.0.0.1:8000/live').raise_for_status()"]
CMD ["xylem", "api"]
