"""A process that compiles and renders chat templates of requests (`app/bounded/serving.py`)."""

import json
import time
from functools import lru_cache

import jinja2
import msgspec
from msgspec import structs

from app.bounded.serving import serve
from app.bounded.wire import Answer
from app.tokenizing.chat_template import compile_template
from app.tokenizing.own_template import MOST, Rendered, TemplateJob


def _work(job: bytes, _data: bytes) -> Answer:
    before = time.process_time()
    result = _rendered(msgspec.msgpack.decode(job, type=TemplateJob))
    return msgspec.msgpack.encode(structs.replace(result, cpu_s=time.process_time() - before)), []


def _rendered(job: TemplateJob) -> Rendered:
    try:
        template, variables = _compiled(job.source)
        if job.values is None:
            return Rendered(variables=sorted(variables))
        text = template.render(json.loads(job.values))
        text.encode()
    except MemoryError:
        return Rendered(error="it takes too much memory")
    except Exception as exc:  # noqa: BLE001 (it is somebody else's program: it may raise anything)
        return Rendered(error=str(exc) or type(exc).__name__, is_type_error=isinstance(exc, TypeError))
    return Rendered(text) if len(text) <= MOST else Rendered(error=f"it makes more than {MOST} characters")


@lru_cache(8)
def _compiled(source: str) -> tuple[jinja2.Template, frozenset[str]]:
    template, variables = compile_template(source)
    assert template is not None
    return template, variables


if __name__ == "__main__":
    serve(_work)
