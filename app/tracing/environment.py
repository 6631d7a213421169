"""OpenTelemetry's standard variables, as far as they are not left to its SDK.

On: an endpoint for traces is set. `opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables`.
"""

import os
from typing import Literal, cast, get_args

from app.errors import SettingsError

Protocol = Literal["grpc", "http/protobuf"]

ENDPOINT, PROTOCOL = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL"
TRACES_ENDPOINT, TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
_HTTP_PATH = "/v1/traces"  # below the endpoint of all signals


def is_on() -> bool:
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "").strip()
    return bool(_endpoint()) and not is_disabled and exporter != "none"


def protocol() -> Protocol:
    """Raises: SettingsError."""
    for name in (TRACES_PROTOCOL, PROTOCOL):
        if value := os.environ.get(name, "").strip():
            if value not in get_args(Protocol):
                raise SettingsError(f"{name}={value!r}: one of {', '.join(get_args(Protocol))}")
            return cast(Protocol, value)
    return "grpc"  # as in OpenTelemetry's Python SDK, and in vLLM


def engines_endpoint() -> str:
    """The address to which an engine that takes one sends its spans; "": it sends none. Raises: SettingsError."""
    if not is_on():
        return ""
    own = os.environ.get(TRACES_ENDPOINT, "").strip()
    return own or _endpoint().rstrip("/") + (_HTTP_PATH if protocol() == "http/protobuf" else "")


def engines_environment() -> dict[str, str]:
    """Variables for such an engine: its protocol, which may be set for all signals only. Raises: SettingsError."""
    return {TRACES_PROTOCOL: protocol()} if is_on() else {}


def _endpoint() -> str:
    return os.environ.get(TRACES_ENDPOINT, "").strip() or os.environ.get(ENDPOINT, "").strip()
