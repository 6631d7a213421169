"""SGLang's own spans of a request are in the request's trace, below the attempt that they are a part of."""

from collections.abc import Iterator

import pytest

from tests.acceptance.test_sglang import LOADS_S, pool
from tests.acceptance.test_traces import ASKED, TEXT, asked, new_trace, one, post, traced
from tests.collector import Collector, Seen, collector
from tests.serving import begin
from tests.shallow import shallow_model
from tests.stack import Stack, stack, wait_until

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def served(valkey_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, Collector]]:
    path = tmp_path_factory.mktemp("sglang-traces")
    with collector(path) as sink:
        env = sink.environment() | {"XYLEM_DEPLOYMENT": path.name}
        with stack(valkey_url, path, {"decode-pool-a": pool("m", "sglang", shallow_model())}, **env) as s:
            begin(s, within_s=LOADS_S)
            yield s, sink


def test_sglangs_spans_are_below_ours(served: tuple[Stack, Collector]) -> None:
    """None for each token; and none of a request that isn't sampled."""
    s, sink = served
    trace_id = new_trace()
    assert post(s, TEXT, ASKED | {"model": "m"}, **traced(trace_id, "00")).status_code == 200
    spans = asked(s, sink, TEXT, ASKED | {"model": "m"})

    def theirs() -> list[Seen]:
        return [span for span in sink.of(spans[0].trace) if span.service == "sglang"]

    attempt = one(spans, "attempt").id
    wait_until(lambda: attempt in {span.parent for span in theirs()}, "SGLang's span of the request is here")
    wait_until(lambda: "decode_forward" in {span.name for span in theirs()}, "and those of its scheduler")
    assert "decode_loop" not in {span.name for span in theirs()}
    assert not sink.of(trace_id)
