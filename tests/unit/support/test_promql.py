"""The check of queries finds a metric or a label that does not exist, wherever an expression names it."""

import pytest

from tests.support.promql import Names, names_in, unknown

EXPOSED = {"a_total": frozenset({"namespace", "kind"}), "b_bucket": frozenset({"le"}), "c": frozenset({"kind"})}


def test_metrics_matchers_and_lists_of_labels_are_found() -> None:
    found = names_in('sum by (kind) (rate(a_total{namespace=~"$n", kind!="x{y}"}[5m])) / on (kind) c > 0.1')

    assert found == Names({"a_total": frozenset({"namespace", "kind"}), "c": frozenset()}, frozenset({"kind"}))


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("histogram_quantile(0.95, sum by (le) (rate(b_bucket[5m])))", []),
        ("max(c) == 0 unless c offset 5m", []),
        ("absent(gone)", ["no process exposes gone"]),
        ('c{namespace="x"}', ["c has no label namespace"]),
        ("sum by (dataset) (c)", ["c has no label dataset"]),
        ("a_total and on (instance) c", []),
        ("count by (kind, x) (a_total == 0)", ["a_total has no label x"]),
    ],
)
def test_what_no_process_exposes_is_named(expression: str, said: list[str]) -> None:
    assert unknown(expression, EXPOSED) == said


def test_an_expression_that_is_not_understood_is_refused() -> None:
    with pytest.raises(ValueError, match="no metric before it"):
        names_in('{job="x"}')
