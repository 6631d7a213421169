"""A request's place in a trace, and the names that its log lines have."""

from msgspec import Struct


class TracePlace(Struct, frozen=True, array_like=True):
    """A request's place in a trace, as W3C has it; ids are hexadecimal."""

    trace: str  # 32 digits: the client's, or a new one
    span: str  # 16 digits: the request's own
    parent: str = ""  # the client's span; "": it has none
    sampled: bool = False

    @property
    def traceparent(self) -> str:
        """W3C's header, for what is done within the request's span."""
        return f"00-{self.trace}-{self.span}-{'01' if self.sampled else '00'}"


def log_names(x_request_id: str, trace_id: str) -> dict[str, str]:
    """The fields of log lines about a request; `trace_id` only where there is one."""
    return {"x_request_id": x_request_id, "trace_id": trace_id} if trace_id else {"x_request_id": x_request_id}
