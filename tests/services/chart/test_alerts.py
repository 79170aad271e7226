"""The chart's alerts, evaluated by Prometheus's own promtool: when each one fires, when it is silent, and what it says."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.services.chart.chart import CACHE, CHART, ROOT, render

PROMTOOL = shutil.which("promtool", path=f"{CACHE / 'bin'}:{os.environ.get('PATH', '')}")
RUNBOOKS = "https://docs.example/runbooks/"
OF_DATASET = {"namespace": "air", "dataset": "flights"}
DATASET = 'namespace="air",dataset="flights"'
RESTATEMENT = f'{DATASET},restatement="fix"'


@dataclass(frozen=True)
class Case:
    """Series with a sample each minute, as promtool writes them, and when one alert fires."""

    alert: str
    series: Mapping[str, str]
    # What the alert says; "": it never fires.
    summary: str = ""
    # Without the severity.
    labels: Mapping[str, str] = field(default_factory=dict)
    # Minutes: silent at the first, firing at the second. A case that never fires is only looked at in the second.
    silent: int = 0
    fires: int = 0
    # If its text depends on values.
    description: str = ""


STALLED = {f'lethe_dataset_stalled{{{DATASET},reason="TableNotPrepared"}}': "1x30"}
RESTATEMENT_STALLED = f'lethe_restatement_stalled{{{RESTATEMENT},reason="UnknownBatches"}}'
CASES = [
    Case(
        "LetheDatasetStalled",
        STALLED,
        "Dataset air/flights is stalled (TableNotPrepared)",
        {**OF_DATASET, "reason": "TableNotPrepared"},
        4,
        5,
    ),
    # The reason changes: it is not ready all the time nevertheless.
    Case(
        "LetheDatasetNotReady",
        {
            f'lethe_dataset_ready{{{DATASET},reason="CatalogUnavailable"}}': "0x14 stale",
            f'lethe_dataset_ready{{{DATASET},reason="StorageUnavailable"}}': "_x15 0x30",
            f'lethe_dataset_stalled{{{DATASET},reason="CatalogUnavailable"}}': "0x45",
        },
        "Dataset air/flights is not ready",
        OF_DATASET,
        29,
        31,
    ),
    Case(
        "LetheDatasetNotReady",
        {f'lethe_dataset_ready{{{DATASET},reason="X"}}': "0x90", f"lethe_dataset_stalled{{{DATASET}}}": "1x90"},
        fires=90,
    ),
    Case(
        "LetheRestatementStalled",
        {RESTATEMENT_STALLED: "1x30"},
        "Restatement air/fix is stalled (UnknownBatches)",
        {**OF_DATASET, "restatement": "fix", "reason": "UnknownBatches"},
        4,
        5,
        "The Restatement of Dataset flights does not take effect until somebody changes something.",
    ),
    Case(
        "LetheRestatementWaits",
        {f'lethe_restatement_ready{{{RESTATEMENT},reason="Queued"}}': "0x400"},
        "Restatement air/fix has not taken effect for 6 hours",
        {**OF_DATASET, "restatement": "fix"},
        359,
        360,
        "It waits in the queue of Dataset flights, or its run takes very long or is retried.",
    ),
    Case("LetheRestatementWaits", {f'lethe_restatement_ready{{{RESTATEMENT},reason="Suspended"}}': "0x400"}, fires=400),
    Case(
        "LetheRestatementWaits",
        {f'lethe_restatement_ready{{{RESTATEMENT},reason="UnknownBatches"}}': "0x400", RESTATEMENT_STALLED: "1x400"},
        fires=400,
    ),
    Case(
        "LetheVacuumPolicyStalled",
        {'lethe_vacuum_policy_stalled{namespace="air",vacuum_policy="nightly",reason="InvalidWindow"}': "1x30"},
        "VacuumPolicy air/nightly is stalled (InvalidWindow)",
        {"namespace": "air", "vacuum_policy": "nightly", "reason": "InvalidWindow"},
        4,
        5,
    ),
    Case(
        "LetheBatchesWait",
        {f"lethe_buffer_oldest_batch_age_seconds{{{DATASET}}}": "3000+60x60"},
        "A batch of Dataset air/flights has waited for 1h 6m 0s",
        OF_DATASET,
        15,
        16,
    ),
    Case(
        "LetheRunsFail",
        {f'lethe_runs_total{{{DATASET},kind="Vacuum",outcome="Failed"}}': "0x9 1x9 2x9 3x9 5x60"},
        "Vacuum runs of Dataset air/flights fail",
        {**OF_DATASET, "kind": "Vacuum"},
        39,
        50,
        "About 5 runs have failed within an hour.",
    ),
    Case("LetheRunsFail", {f'lethe_runs_total{{{DATASET},kind="Vacuum",outcome="Succeeded"}}': "0+1x60"}, fires=60),
    Case(
        "LetheBatchesBehind",
        {f"lethe_batches_behind{{{DATASET}}}": "2x90"},
        "The table of batches of Dataset air/flights is not updated",
        OF_DATASET,
        59,
        60,
        "It does not show 2 commits. Batches and Restatements are not affected, only what is shown of them.",
    ),
    Case(
        "LetheListingsLate",
        {"lethe_listing_overdue_seconds": "0+60x30"},
        "A listing of a buffer has been due for 16m 0s",
        {},
        15,
        16,
    ),
    Case(
        "LetheEventsWait",
        {f'lethe_status_events_lag_seconds{{{DATASET},output="StatusEvents"}}': "0+60x30"},
        "Events of Dataset air/flights are not delivered (StatusEvents)",
        {**OF_DATASET, "output": "StatusEvents"},
        15,
        16,
        "The oldest undelivered commit was made 16m 0s ago. No event is lost; they are late.",
    ),
    Case(
        "LetheSourceNotRead",
        {f'lethe_inlet_source_reading{{{DATASET},reason="SourceDenied"}}': "0x30"},
        "The source of Dataset air/flights is not read",
        OF_DATASET,
        14,
        15,
    ),
    Case("LetheSourceNotRead", {f'lethe_inlet_source_reading{{{DATASET},reason="SourceSuspended"}}': "0x90"}, fires=90),
    Case(
        "LetheSourceLosesMessages",
        {f"lethe_source_lost_offsets{{{DATASET}}}": "7x59 107x60"},
        "Messages of the source of Dataset air/flights expired before they were read",
        OF_DATASET,
        59,
        90,
        "About 101.7 offsets were lost within an hour.",
    ),
    Case("LetheSourceLosesMessages", {f"lethe_source_lost_offsets{{{DATASET}}}": "7x90"}, fires=90),
    Case(
        "LetheEvictionLate",
        {f"lethe_eviction_on_time{{{DATASET}}}": "1x5 0x30"},
        "Rows of Dataset air/flights will not be gone by their evictBy",
        OF_DATASET,
        15,
        16,
    ),
    Case(
        "LetheErasureOverdue",
        {f"lethe_overdue_erasures{{{DATASET}}}": "2x30"},
        "2 erasures of Dataset air/flights are overdue",
        OF_DATASET,
        4,
        5,
    ),
    Case("LetheOperatorAbsent", {'lethe_leader{shard="0"}': "1x3 stale"}, "No operator of Lethe is seen", {}, 8, 9),
    Case("LetheOperatorAbsent", {'lethe_leader{shard="0"}': "0x30"}, fires=30),
    Case(
        "LetheNoOperatorActs",
        {'lethe_leader{shard="0",pod="a"}': "1x3 0x30", 'lethe_leader{shard="0",pod="b"}': "0x33"},
        "0 pods lead shard 0 of the operator instead of one",
        {"shard": "0"},
        5,
        6,
    ),
    # Two releases, which one Prometheus reads.
    Case(
        "LetheNoOperatorActs",
        {
            'lethe_leader{shard="0",job="one/lethe-operator",pod="a"}': "1x30",
            'lethe_leader{shard="0",job="two/lethe-operator",pod="b"}': "1x30",
        },
        fires=30,
    ),
    Case(
        "LetheNoOperatorActs",
        {
            'lethe_leader{shard="0",job="one/lethe-operator",pod="a"}': "1x30",
            'lethe_leader{shard="0",job="two/lethe-operator",pod="b"}': "0x30",
        },
        "0 pods lead shard 0 of the operator instead of one",
        {"shard": "0", "job": "two/lethe-operator"},
        1,
        2,
    ),
    Case(
        "LetheNamespaceNotHeld",
        {
            'lethe_namespace_held{namespace="air",pod="a"}': "0x30",
            'lethe_namespace_held{namespace="air",pod="b"}': "0x30",
        },
        "No pod of this release acts in namespace air",
        {"namespace": "air"},
        4,
        5,
    ),
    Case(
        "LetheNamespaceNotHeld",
        {
            'lethe_namespace_held{namespace="air",pod="a"}': "0x30",
            'lethe_namespace_held{namespace="air",pod="b"}': "1x30",
        },
        fires=30,
    ),
    Case(
        "LetheOperatorLate",
        {
            'lethe_queue_lateness_seconds_bucket{priority="Changed",le="10.0"}': "0+0x30",
            'lethe_queue_lateness_seconds_bucket{priority="Changed",le="30.0"}': "0+9x30",
            'lethe_queue_lateness_seconds_bucket{priority="Changed",le="+Inf"}': "0+9x30",
        },
        "The operator starts 5% of reconciles more than 29s late",
        {},
        10,
        12,
    ),
    Case(
        "LetheReconcilesFail",
        {
            'lethe_reconciles_total{kind="Dataset"}': "0+10x40",
            'lethe_reconcile_failures_total{kind="Dataset"}': "0+5x40",
        },
        "50% of the reconciles of Dataset fail",
        {"kind": "Dataset"},
        15,
        17,
    ),
    Case(
        "LetheVersionSkew",
        {'lethe_version_skew{namespace="air"}': "1x90"},
        "Runs in namespace air have another version than the operator",
        {"namespace": "air"},
        59,
        60,
    ),
    Case(
        "LetheCommitterUnhealthy",
        {'lethe_committer_healthy{namespace="air"}': "0x30"},
        "The committer of namespace air cannot work",
        {"namespace": "air"},
        4,
        5,
    ),
    Case(
        "LetheCommitterBehind",
        {'lethe_committer_mailbox_oldest_age_seconds{namespace="air"}': "0+60x30"},
        "The committer of namespace air is 16m 0s behind",
        {"namespace": "air"},
        15,
        16,
    ),
    Case(
        "LetheWarmDriverRestarts",
        {'lethe_warm_driver_sessions_total{namespace="air"}': "1x9 1+1x30"},
        "The Spark session of the warm driver of namespace air is replaced again and again",
        {"namespace": "air"},
        12,
        30,
        "About 20.69 sessions were started within 30 minutes. Each costs half a minute.",
    ),
    Case(
        "LetheGatewayErrors",
        {
            'lethe_gateway_requests_total{route="/v1",method="GET",status="200"}': "0+9x30",
            'lethe_gateway_requests_total{route="/v1",method="GET",status="503"}': "0+1x30",
            'lethe_gateway_requests_total{route="/v1",method="GET",status="404"}': "0+10x30",
        },
        fires=9,
    ),
    Case(
        "LetheGatewayErrors",
        {
            'lethe_gateway_requests_total{route="/v1",method="GET",status="200"}': "0+9x30",
            'lethe_gateway_requests_total{route="/v1",method="GET",status="503"}': "0+1x30",
        },
        "The gateway answers 10% of requests with an error",
        {},
        9,
        12,
    ),
]


def rules(**alerts: Any) -> dict[str, dict[str, Any]]:
    """The alerts of the rendered chart, by name."""
    return {r["alert"]: r for g in _groups(**alerts) for r in g["rules"]}


def _groups(**alerts: Any) -> list[dict[str, Any]]:
    values = {"monitoring": {"runbookUrl": RUNBOOKS, "alerts": {"create": True, **alerts}}}
    (rule,) = [d for d in render(values) if d["kind"] == "PrometheusRule"]
    return list(rule["spec"]["groups"])


def promtool(*arguments: str, folder: Path) -> str:
    assert PROMTOOL is not None, "promtool is not there: run dev/tools.sh promtool"
    done = subprocess.run([PROMTOOL, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_the_rendered_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": _groups()}))

    assert f"{len(rules())} rules found" in promtool("check", "rules", "--lint=all", "rules.yaml", folder=tmp_path)


def test_each_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    known, version = rules(), promtool("--version", folder=tmp_path)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": _groups()}))
    document = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [_test_of(case, known[case.alert], version) for case in CASES],
    }
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(document))

    assert "SUCCESS" in promtool("test", "rules", "tests.yaml", folder=tmp_path)


# Prometheus 3 leaves the first sample of a range out and extrapolates over it; Prometheus 2 counts it. By what version 3 says.
IN_PROMETHEUS_2 = {"About 101.7 offsets": "About 100 offsets", "About 20.69 sessions": "About 20 sessions"}


def _described(text: str, version: str) -> str:
    """What an alert says in a version of Prometheus."""
    if version.startswith("promtool, version 2."):
        for newer, older in IN_PROMETHEUS_2.items():
            text = text.replace(newer, older)
    return text


def _test_of(case: Case, rule: Mapping[str, Any], version: str) -> dict[str, Any]:
    looks: list[dict[str, Any]] = [{"eval_time": f"{case.fires}m", "alertname": case.alert, "exp_alerts": []}]
    if case.summary:
        looks = [{"eval_time": f"{case.silent}m", "alertname": case.alert, "exp_alerts": []}, *looks]
        looks[1]["exp_alerts"] = [
            {
                "exp_labels": {**rule["labels"], **case.labels},
                "exp_annotations": {
                    "summary": case.summary,
                    "description": _described(case.description or rule["annotations"]["description"], version),
                    "runbook_url": f"{RUNBOOKS}#{case.alert.lower()}",
                },
            }
        ]
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": looks,
    }


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    assert rules().keys() == {c.alert for c in CASES if c.summary}


def test_every_alert_has_a_runbook_with_its_meaning_a_check_and_a_fix() -> None:
    sections = _sections((ROOT / "docs/runbooks.md").read_text())

    assert list(sections) == sorted(rules())
    for alert, text in sections.items():
        for part in ("**Meaning.**", "**Check.**", "**Fix.**"):
            assert part in text, (alert, part)
        assert "kubectl" in text, alert


def test_the_page_about_metrics_lists_every_alert_with_its_severity() -> None:
    page = (ROOT / "docs/metrics.md").read_text()

    listed = {
        link: severity
        for severity, text in re.findall(r"^`(critical|warning)`: ((?:.+\n)+)", page, flags=re.MULTILINE)
        for link in re.findall(r"\[\w+\]\([^)]+\)", text)
    }

    assert listed == {f"[{n}](runbooks.md#{n.lower()})": r["labels"]["severity"] for n, r in rules().items()}


def _sections(page: str) -> dict[str, str]:
    """The sections of a page by their heading, whose anchor is the heading in lower case."""
    parts = re.split(r"^## (\w+)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_an_alert_can_be_left_out() -> None:
    assert rules().keys() - rules(disabled=["LetheVersionSkew"]).keys() == {"LetheVersionSkew"}


def test_each_alert_says_how_severe_it_is_and_what_is_wrong() -> None:
    for name, rule in rules().items():
        assert rule["labels"]["severity"] in ("critical", "warning"), name
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}, name


def test_the_file_is_in_the_format_of_prometheus() -> None:
    """So `promtool` of the linters reads it as it is."""
    plain = yaml.safe_load((CHART / "files/alerts.yaml").read_text())

    assert [r["alert"] for g in plain["groups"] for r in g["rules"]] == list(_in_order(_groups()))


def _in_order(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    return [r["alert"] for g in groups for r in g["rules"]]
