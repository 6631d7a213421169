"""Tracing is switched by OpenTelemetry's own variables, and sampled by its own samplers."""

import os
import sys

import pytest

from app.errors import SettingsError
from app.tracing.environment import engines_endpoint, engines_environment, is_on
from app.tracing.otel import OtelTracer
from app.tracing.tracer import tracer_of_environment

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HTTP = "http/protobuf"
ALL, OWN = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@pytest.fixture(autouse=True)
def only_these(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(("variables", "on"), [
    ({}, False),
    ({ALL: ""}, False),
    ({ALL: "http://c:4317"}, True),
    ({OWN: "http://c:4317"}, True),
    ({ALL: "http://c:4317", "OTEL_SDK_DISABLED": "true"}, False),
    ({ALL: "http://c:4317", "OTEL_TRACES_EXPORTER": "none"}, False),
    ({ALL: "http://c:4317", "OTEL_TRACES_EXPORTER": "otlp"}, True),
])  # fmt: skip
def test_an_endpoint_switches_it_on(variables: dict[str, str], on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_on() == on == bool(engines_endpoint()) == bool(engines_environment())


@pytest.mark.parametrize(("variables", "endpoint", "protocol"), [
    ({ALL: "http://c:4317"}, "http://c:4317", "grpc"),
    ({ALL: "http://c:4318/", "OTEL_EXPORTER_OTLP_PROTOCOL": HTTP}, "http://c:4318/v1/traces", HTTP),
    ({ALL: "http://a", OWN: "http://c/own", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": HTTP}, "http://c/own", HTTP),
])  # fmt: skip
def test_an_engine_is_told_where_spans_go(
    variables: dict[str, str], endpoint: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine takes one address and reads one variable, and OpenTelemetry has two of each."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert engines_endpoint() == endpoint
    assert engines_environment() == {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": protocol}


def test_an_unknown_protocol_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALL, "http://c:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    with pytest.raises(SettingsError, match="OTEL_EXPORTER_OTLP_PROTOCOL='http/json'"):
        tracer_of_environment()


def test_without_opentelemetry_an_endpoint_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ALL, "http://c:4317")
    monkeypatch.delitem(sys.modules, "app.tracing.otel")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SettingsError, match=r"pip install 'xylem-serve\[otel\]'"):
        tracer_of_environment()


@pytest.mark.parametrize(("sampler", "argument", "sampled", "refused", "begun"), [
    ("", "", True, False, True),
    ("parentbased_always_off", "", True, False, False),
    ("parentbased_traceidratio", "0", True, False, False),
    ("always_on", "", True, True, True),
    ("always_off", "", False, False, False),
])  # fmt: skip
def test_the_standard_sampler_decides(
    sampler: str, argument: str, sampled: bool, refused: bool, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """About requests that their caller has sampled, has not sampled, and those without a caller."""
    monkeypatch.setenv(ALL, "http://127.0.0.1:9")
    if sampler:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    tracer = OtelTracer()
    try:
        places = [tracer.begin(f"00-{TRACE}-{SPAN}-{flag}".encode()) for flag in ("01", "00")]
        places.append(tracer.begin(b""))
    finally:
        tracer.close()
    assert [place.sampled for place in places] == [sampled, refused, begun]
    assert [(place.trace, place.parent) for place in places[:2]] == [(TRACE, SPAN)] * 2
    assert (places[2].parent, places[2].trace == TRACE) == ("", False)
    assert len({place.span for place in places}) == 3


def test_a_share_of_the_traces_is_sampled_by_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """All services choose the same ones, therefore."""
    monkeypatch.setenv(ALL, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    tracer = OtelTracer()
    try:
        low, high = ("0" * 15 + "1" + "0" * 16, "0" * 15 + "1" + "f" * 16)
        assert [tracer.begin(f"00-{trace}-{SPAN}-00".encode()).sampled for trace in (low, high)] == [True, False]
    finally:
        tracer.close()
