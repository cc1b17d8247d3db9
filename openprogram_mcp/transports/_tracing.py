"""Trace context on the way out: the caller's OpenTelemetry span becomes the parent of the server's.

Where the program uses no OpenTelemetry, as most do not, a request costs one look-up and nothing is added to it.

MCP specification: basic/patterns/tracing (SEP-414).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from mcp.shared.exceptions import MCPError
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.propagate import inject

__all__ = ["Trace", "Tracer"]

_tracer = trace.get_tracer("openprogram_mcp")
_NOTHING: Final[Mapping[str, str]] = {}


class Trace:
    """One request's part in a trace."""

    __slots__ = ("_span", "meta")

    def __init__(self, meta: Mapping[str, str], span: trace.Span | None = None) -> None:
        self.meta = meta
        self._span = span

    def outcome(self, outcome: object) -> None:
        """Tell the span how the request ended."""
        if self._span is not None and isinstance(outcome, MCPError):
            self._span.set_attributes({"error.type": str(outcome.code), "rpc.response.status_code": str(outcome.code)})
            self._span.set_status(trace.StatusCode.ERROR)


class _Untraced(AbstractContextManager["Trace", None]):
    """What every request without a trace shares."""

    _trace = Trace(_NOTHING)

    def __enter__(self) -> Trace:
        return self._trace

    def __exit__(self, *exc_info: object) -> None:
        return None


_UNTRACED: Final = _Untraced()


class Tracer:
    """Traces the requests of one connection.

    Whether the program has set OpenTelemetry up is looked at when the connection is made, since looking takes longer
    than the rest of a request; where it is set up later, requests made within a span are traced all the same.
    """

    def __init__(self) -> None:
        self._set_up = not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)

    def traced(
        self, method: str, params: Mapping[str, Any] | None, request_id: int | str
    ) -> AbstractContextManager[Trace]:
        """A client span around one request, and what to put into its ``_meta`` so that the server joins the trace."""
        if self._set_up or otel_context.get_current():
            return _span(method, params, request_id)
        return _UNTRACED


@contextmanager
def _span(method: str, params: Mapping[str, Any] | None, request_id: int | str) -> Iterator[Trace]:
    target = (params or {}).get("name")
    name = f"MCP send {method} {target}" if isinstance(target, str) else f"MCP send {method}"
    attributes = {"mcp.method.name": method, "jsonrpc.request.id": str(request_id)}
    with _tracer.start_as_current_span(
        name, kind=trace.SpanKind.CLIENT, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        meta: dict[str, str] = {}
        inject(meta)
        yield Trace(meta, span)
