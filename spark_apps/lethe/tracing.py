"""OpenTelemetry traces: a reconcile that starts a run, the run, and its commits are one trace.

Without OTEL_EXPORTER_OTLP_ENDPOINT nothing is traced, and nothing of OpenTelemetry is imported. The other variables of
OpenTelemetry's SDK apply, such as OTEL_TRACES_SAMPLER and OTEL_EXPORTER_OTLP_HEADERS.
Source: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from lethe.base.errors import LetheError
from lethe.version import version

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
VARIABLES: Final = (ENDPOINT, "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG")
"""The variables that the operator passes on to the pods of runs."""
FLUSH_MILLISECONDS: Final = 3_000
"""The longest wait for the collector when a process ends, in milliseconds."""

Attributes: TypeAlias = Mapping[str, str | int]
NONE: Final[Attributes] = MappingProxyType({})

log = logging.getLogger(__name__)

_provider: "TracerProvider | None" = None
_has_child: ContextVar[list[bool] | None] = ContextVar("lethe_has_child", default=None)
"""Whether the surrounding draft has a child; None: there is no draft."""


def start(service: str) -> None:
    """Trace this process if a collector is set.

    Args:
        service: The process's name in traces, such as "lethe-operator".
    """
    global _provider
    if not os.environ.get(ENDPOINT):
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    about = {"service.name": service, "service.version": version()}
    _provider = TracerProvider(resource=Resource.create(about))
    _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    log.info("traces go to %s", os.environ[ENDPOINT])


def stop() -> None:
    """Send what is not sent yet, for some seconds at most."""
    if _provider is not None:
        _provider.force_flush(FLUSH_MILLISECONDS)


@contextmanager
def span(name: str, attributes: Attributes = NONE, parent: str = "") -> Iterator[None]:
    """Trace the block, as a child of the span around it.

    Of an exception that leaves the block, only the type is shown, or the reason of a LetheError: messages may contain more than a
    trace should.

    Args:
        parent: A `traceparent`, for a block without a span around it; "": the block begins a trace.
    """
    if _provider is None:
        yield
        return
    if (has_child := _has_child.get()) is not None:
        has_child[:] = [True]
    with _opened(name, attributes, parent, lambda: True):
        yield


@contextmanager
def draft(name: str, attributes: Attributes = NONE) -> Iterator[None]:
    """Trace the block if it contains another span: most reconciles change nothing."""
    if _provider is None:
        yield
        return
    has_child = [False]
    token = _has_child.set(has_child)
    try:
        with _opened(name, attributes, "", lambda: has_child[0]):
            yield
    finally:
        _has_child.reset(token)


def note(name: str) -> None:
    """Add an event to the current span."""
    if _provider is not None:
        from opentelemetry import trace

        trace.get_current_span().add_event(name)


def describe(attributes: Attributes) -> None:
    """Add attributes to the current span."""
    if _provider is not None:
        from opentelemetry import trace

        trace.get_current_span().set_attributes(attributes)


def traceparent() -> str:
    """The current span for another process, as W3C Trace Context writes it; "": nothing is traced."""
    if _provider is None:
        return ""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent", "")


@contextmanager
def _opened(name: str, attributes: Attributes, parent: str, is_wanted: Callable[[], bool]) -> Iterator[None]:
    """`is_wanted`: asked at the end of the block. A span that does not end is not sent."""
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    assert _provider is not None
    around = trace.get_current_span().get_span_context().is_valid
    context = TraceContextTextMapPropagator().extract({"traceparent": parent}) if parent and not around else None
    opened = _provider.get_tracer("lethe").start_span(name, context, attributes=attributes)
    try:
        with trace.use_span(opened, record_exception=False, set_status_on_exception=False):
            yield
    except Exception as e:
        opened.set_status(trace.StatusCode.ERROR, e.reason if isinstance(e, LetheError) else type(e).__name__)
        raise
    finally:
        if is_wanted():
            opened.end()
