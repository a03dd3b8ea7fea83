"""Traces and metrics through OpenTelemetry. Without an exporter a span costs little more than its id, which still travels.

`setup` is called once, by boot; before it (in tests) the calls below do nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opentelemetry import metrics, trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

tracer = trace.get_tracer("allmende")
meter = metrics.get_meter("allmende")
_recording = False
_propagator = TraceContextTextMapPropagator()


def setup(service: str, instance: str, *, console: bool = False) -> None:
    """Install the providers of this process; `console` prints every span to stdout, for looking closely."""
    global _recording
    _recording = console
    resource = Resource({"service.name": f"allmende-{service}", "service.instance.id": instance})
    spans = TracerProvider(resource=resource, sampler=ALWAYS_ON if console else ALWAYS_OFF)
    if console:
        spans.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
    trace.set_tracer_provider(spans)
    metrics.set_meter_provider(MeterProvider(metric_readers=[PrometheusMetricReader()], resource=resource))


def current_trace() -> str | None:
    """The W3C traceparent of the span we are in, or None."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


@contextmanager
def span_of(name: str, traces: Sequence[str | None]) -> Iterator[trace.Span]:
    """A span for work on several messages: the child of a single one, linked to many (a batch has no one parent)."""
    if len(traces) > 1 and not _recording:
        # Links are only for whoever looks at spans, and a busy service has hundreds a second.
        traces = ()
    parents = [trace.get_current_span(_propagator.extract({"traceparent": it})).get_span_context() for it in traces if it]
    parents = [parent for parent in parents if parent.is_valid]
    context = trace.set_span_in_context(trace.NonRecordingSpan(parents[0])) if len(parents) == 1 else None
    links = [trace.Link(parent) for parent in parents] if len(parents) > 1 else None
    with tracer.start_as_current_span(name, context=context, links=links) as span:
        yield span
