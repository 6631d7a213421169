"""vLLM's own span of a request is in the request's trace, below the attempt that it is a part of."""

from collections.abc import Iterator

import pytest

from tests.acceptance.test_traces import ASKED, TEXT, asked, new_trace, one, post, traced
from tests.acceptance.test_vllm import ENGINE, ENV, MODEL, POOL
from tests.collector import Collector, collector
from tests.serving import begin
from tests.shallow import shallow_model
from tests.stack import Stack, stack, wait_until

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module", params=["grpc", "http/protobuf"])
def served(
    valkey_url: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[tuple[Stack, Collector]]:
    """A worker with a few layers of the model."""
    path = tmp_path_factory.mktemp("vllm-traces")
    with collector(path) as sink:
        env = ENV | sink.environment(request.param) | {"XYLEM_DEPLOYMENT": path.name}
        with stack(valkey_url, path, {POOL: ENGINE | {"path": str(shallow_model())}}, **env) as s:
            begin(s, within_s=200)
            yield s, sink


def test_vllms_span_is_below_ours(served: tuple[Stack, Collector]) -> None:
    s, sink = served
    spans = asked(s, sink, TEXT, ASKED | {"model": MODEL})
    trace = spans[0].trace
    (theirs,) = wait_until(lambda: [x for x in sink.of(trace) if x.name == "llm_request"], "vLLM's span is here")
    assert theirs.parent == one(spans, "attempt").id
    assert theirs.attributes["gen_ai.usage.completion_tokens"] == ASKED["max_tokens"]


def test_vllm_exports_nothing_of_a_request_that_is_not_sampled(served: tuple[Stack, Collector]) -> None:
    """The engine would begin a trace of its own if it were told nothing."""
    s, sink = served
    before = sum(span.name == "llm_request" for span in sink.spans)
    assert post(s, TEXT, ASKED | {"model": MODEL}, **traced(new_trace(), "00")).status_code == 200
    spans = asked(s, sink, TEXT, ASKED | {"model": MODEL})
    wait_until(lambda: [x for x in sink.of(spans[0].trace) if x.name == "llm_request"], "vLLM's span is here")
    assert sum(span.name == "llm_request" for span in sink.spans) == before + 1
