"""The chart's dashboard: Grafana finds it, and no query of it, or of an alert, names anything that no process exposes."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.services.chart.chart import CHART, ROOT, render
from tests.services.chart.test_alerts import promtool
from tests.support.exposed_metrics import exposed
from tests.support.promql import OF_TARGETS, names_in, unknown

BOARD: dict[str, Any] = json.loads((CHART / "files/dashboard.json").read_text())
PANELS: list[dict[str, Any]] = [p for p in BOARD["panels"] if p["type"] != "row"]
known = cache(exposed)


def _queries() -> Iterator[tuple[str, str, str]]:
    """The title of a panel, an expression and the names of its lines."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]


@pytest.mark.parametrize(("title", "expression", "legend"), list(_queries()))
def test_each_query_names_metrics_and_labels_that_exist(title: str, expression: str, legend: str) -> None:
    assert unknown(expression, known()) == [], title
    found = names_in(expression)
    labels = found.listed or frozenset().union(*(known()[m] for m in found.metrics)) | OF_TARGETS
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= labels, title


def test_each_variable_asks_for_a_label_that_exists() -> None:
    queries = [v["definition"] for v in BOARD["templating"]["list"] if v["type"] == "query"]
    assert len(queries) == 2

    for query in queries:
        (parts,) = re.findall(r"label_values\((.*), (\w+)\)", query)
        expression, label = parts
        assert unknown(f"sum by ({label}) ({expression})", known()) == []


def test_each_variable_of_a_query_is_declared() -> None:
    declared = {v["name"] for v in BOARD["templating"]["list"]}

    assert set(re.findall(r"\$\{?(\w+)", json.dumps(PANELS))) == declared


def test_each_expression_of_an_alert_names_metrics_and_labels_that_exist() -> None:
    groups = yaml.safe_load((CHART / "files/alerts.yaml").read_text())["groups"]
    rules = [r for g in groups for r in g["rules"]]
    for rule in rules:
        assert unknown(rule["expr"], known()) == [], rule["alert"]
        found = names_in(rule["expr"])
        labels = found.listed or frozenset().union(*(known()[m] for m in found.metrics))
        said = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", said)) <= labels, rule["alert"]
    assert len(rules) > 20


def test_prometheus_understands_each_query(tmp_path: Path) -> None:
    rules = [
        {"record": f"q:{n}", "expr": re.sub(r"\$\w+", "x", expression)}
        for n, (_, expression, _) in enumerate(_queries())
    ]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "q", "rules": rules}]}))

    assert f"{len(rules)} rules found" in promtool("check", "rules", "queries.yaml", folder=tmp_path)


def test_panels_explain_themselves_and_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        for place in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
            assert place[0] < 24
            assert place not in taken, (panel["title"], taken[place])
            taken[place] = panel["title"]
    assert all(p["description"].endswith(".") for p in PANELS)
    assert len({p["id"] for p in BOARD["panels"]}) == len(BOARD["panels"])


def test_grafanas_sidecar_finds_the_dashboard_by_its_label() -> None:
    dashboard = {"create": True, "annotations": {"grafana_folder": "Lake"}}
    (config_map,) = [
        d for d in render({"monitoring": {"dashboard": dashboard}}) if d["metadata"]["name"].endswith("-dashboard")
    ]

    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert config_map["metadata"]["annotations"] == {"grafana_folder": "Lake"}
    assert json.loads(config_map["data"]["lethe.json"]) == BOARD


def test_the_page_about_metrics_has_exactly_what_is_exposed_with_its_labels() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    listed: dict[str, frozenset[str]] = {}
    for names, kind, labels in re.findall(r"^\| (`lethe_.*?`) \| (gauge|counter|histogram) \| ([^|]*)\|", page, re.M):
        for name in re.findall(r"`(\w+)`", names):
            found = frozenset(filter(None, labels.strip().split(", ")))
            for suffix in ("_bucket", "_count", "_sum") if kind == "histogram" else ("",):
                listed[name + suffix] = found | ({"le"} if suffix == "_bucket" else set())

    mine = {n: labels for n, labels in known().items() if n.startswith("lethe_") and not n.endswith("_created")}
    assert listed == mine
