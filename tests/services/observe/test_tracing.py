"""What is traced reaches a collector, and without one nothing is traced."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from lethe import tracing
from lethe.base.errors import InputError

from tests.support.trace_collector import TraceCollector, traced

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def collector() -> Iterator[TraceCollector]:
    with traced("lethe-test") as running:
        yield running


def test_without_a_collector_opentelemetry_is_not_even_imported() -> None:
    code = """
import sys
from lethe import tracing
tracing.start("x")
with tracing.draft("a"), tracing.span("b"):
    tracing.note("c")
    tracing.describe({"d": 1})
    assert tracing.traceparent() == ""
tracing.stop()
assert not [m for m in sys.modules if m.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_spans_have_their_parents_attributes_and_events(collector: TraceCollector) -> None:
    with tracing.span("run", {"lethe.dataset": "flights"}, PARENT):
        tracing.note("COMMITTING")
        with tracing.span("commit", parent=PARENT):  # the span around it comes first
            tracing.describe({"lethe.snapshot.id": 7})
    tracing.stop()

    run, commit = collector.named("run"), collector.named("commit")
    assert (run.service, run.trace, run.parent) == ("lethe-test", PARENT.split("-")[1], PARENT.split("-")[2])
    assert (run.attributes, run.events, run.error) == ({"lethe.dataset": "flights"}, ("COMMITTING",), "")
    assert (commit.trace, commit.parent, commit.attributes) == (run.trace, run.id, {"lethe.snapshot.id": 7})


def test_another_process_continues_the_trace(collector: TraceCollector) -> None:
    with tracing.span("start"):
        handed_over = tracing.traceparent()
    with tracing.span("run", parent=handed_over):
        pass
    tracing.stop()

    assert (collector.named("run").trace, collector.named("run").parent) == (
        collector.named("start").trace,
        collector.named("start").id,
    )


@pytest.mark.parametrize("broken", ["", "nonsense", "00-0-0-01"])
def test_a_parent_that_cannot_be_read_begins_a_trace(collector: TraceCollector, broken: str) -> None:
    with tracing.span("run", parent=broken):
        pass
    tracing.stop()

    assert collector.named("run").parent == ""


def test_a_draft_is_sent_only_if_something_happened_in_it(collector: TraceCollector) -> None:
    with tracing.draft("idle"):
        tracing.describe({"x": 1})
    with tracing.draft("busy"), tracing.span("start"):
        pass
    with tracing.draft("idle again"):
        pass
    tracing.stop()

    assert collector.names() == ["busy", "start"]


def test_an_error_is_shown_by_its_reason_and_never_by_its_message(collector: TraceCollector) -> None:
    with pytest.raises(InputError), tracing.span("a"):
        raise InputError("NoSuchColumn", "of ada@example.com")
    with pytest.raises(ValueError), tracing.span("b"):
        raise ValueError("of ada@example.com")
    tracing.stop()

    assert (collector.named("a").error, collector.named("b").error) == ("NoSuchColumn", "ValueError")
    assert "ada@" not in str(collector.spans)


def test_a_collector_that_is_away_costs_nothing_but_the_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "FLUSH_MILLISECONDS", 100)
    with traced("lethe-test") as gone:
        pass
    monkeypatch.setenv(tracing.ENDPOINT, gone.url)
    monkeypatch.setattr(tracing, "_provider", None)
    tracing.start("lethe-test")

    with tracing.span("run"):
        assert tracing.traceparent()
    tracing.stop()
