"""The boundaries of the chart's values: what reaches the operator, which credentials each namespace gets, and what is refused."""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from lethe.contract.kubernetes import GIB
from lethe.contract.run import AllowedOperation
from lethe_operator.resources.boundaries import Boundary, parse_boundaries

from tests.services.chart.chart import CHART, container, helm, of_kind, refused, render

CATALOGS: dict[str, Any] = {
    "main": {"type": "rest", "uri": "https://c", "warehouse": "s3://lake", "s3.access-key-id": "all", "scope": "all"},
    "other": {"type": "rest", "uri": "https://d", "token": "secret"},
}
TEAM: dict[str, Any] = {
    "catalogs": ["main"],
    "tables": ["team_a.*"],
    "uris": ["s3://lake/team-a"],
    "queues": ["https://sqs.eu-west-1.amazonaws.com/1"],
    "topics": ["main/team-a.*"],
    "operations": [o.value for o in AllowedOperation if o is not AllowedOperation.ERASE],
    "driver": {"cpu": 2, "memory": "4Gi", "scratch": "20Gi"},
    "executors": {"cpu": "1500m", "memory": "8Gi", "scratch": "50Gi", "max": 4},
    "podTemplate": {
        name: ["/a" if name == "mountPaths" else "A_*" if name == "env" else "a"]
        for name in Boundary.model_fields["pod_template"].annotation.model_json_schema()["properties"]  # type: ignore[union-attr]
    },
    "credentials": {"main": {"s3.access-key-id": "team-a", "scope": "", "s3.secret-access-key": "team-a-secret"}},
    "serviceAccounts": {
        kind: {"annotations": {"role": kind}, "labels": {"a": "b"}, "podLabels": {"use": kind}}
        for kind in ("driver", "executor", "committer", "inlet")
    },
}


def values(boundaries: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    given = {"watchNamespaces": ["a", "b"], "catalogs": CATALOGS, **more}
    return {**given, "boundaries": {"namespaces": {"a": TEAM}} if boundaries is None else boundaries}


def file(documents: list[dict[str, Any]]) -> str:
    (only,) = (d for d in of_kind(documents, "ConfigMap") if "boundaries.yaml" in d["data"])
    return str(only["data"]["boundaries.yaml"])


def secrets(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Namespace -> its catalogs."""
    found = [s for s in of_kind(documents, "Secret") if ".pyiceberg.yaml" in s["data"]]
    return {
        s["metadata"]["namespace"]: yaml.safe_load(base64.b64decode(s["data"][".pyiceberg.yaml"]))["catalog"] or {}
        for s in found
    }


def test_the_operator_reads_what_the_values_say() -> None:
    documents = render(values())

    boundary = parse_boundaries(file(documents), "boundaries.yaml").of("a")
    assert (boundary.catalogs, boundary.tables, boundary.uris) == (("main",), ("team_a.*",), ("s3://lake/team-a",))
    assert boundary.queues == ("https://sqs.eu-west-1.amazonaws.com/1",)
    assert boundary.topics == ("main/team-a.*",)
    assert AllowedOperation.ERASE not in (boundary.operations or ())
    assert len(boundary.operations or ()) == len(AllowedOperation) - 1
    assert (boundary.driver.cpu, boundary.driver.memory, boundary.executors.max) == (2, 4 * GIB, 4)
    assert boundary.executors.cpu == 1.5
    assert None not in boundary.pod_template.model_dump().values()
    assert boundary.service_accounts.executor.annotations == {"role": "executor"}
    assert boundary.service_accounts.inlet.annotations == {"role": "inlet"}
    assert parse_boundaries(file(documents), "boundaries.yaml").of("b") == Boundary()


def test_it_is_mounted_where_tenants_cannot_write_and_a_change_restarts_the_operator() -> None:
    documents = render(values())
    (deployment,) = of_kind(documents, "Deployment")
    template = deployment["spec"]["template"]
    checksum = template["metadata"]["annotations"]["checksum/boundaries"]
    (other,) = of_kind(render(values({"default": {"catalogs": []}})), "Deployment")

    environment = {e["name"]: e.get("value") for e in container(documents)["env"]}
    assert environment["LETHE_BOUNDARIES_FILE"] == "/etc/lethe/boundaries/boundaries.yaml"
    (volume,) = (v for v in template["spec"]["volumes"] if v["name"] == "boundaries")
    (config_map,) = (d for d in of_kind(documents, "ConfigMap") if "boundaries.yaml" in d["data"])
    assert config_map["metadata"]["namespace"] == "lethe-system"
    assert volume["configMap"]["name"] == config_map["metadata"]["name"]
    assert checksum != other["spec"]["template"]["metadata"]["annotations"]["checksum/boundaries"]


def test_a_namespace_gets_the_credentials_of_its_own_catalogs_alone() -> None:
    found = secrets(render(values()))

    assert found["lethe-system"] == CATALOGS
    assert found["b"] == CATALOGS
    main = {"type": "rest", "uri": "https://c", "warehouse": "s3://lake", "s3.access-key-id": "team-a"}
    assert found["a"] == {"main": {**main, "s3.secret-access-key": "team-a-secret"}}
    assert secrets(render(values({"default": {"catalogs": []}})))["b"] == {}


def test_no_credential_is_in_the_file_of_boundaries() -> None:
    assert "team-a-secret" not in file(render(values()))


def test_the_default_is_for_namespaces_without_an_entry() -> None:
    documents = render(values({"default": {"catalogs": ["other"]}, "namespaces": {"a": {}}}))

    found = parse_boundaries(file(documents), "boundaries.yaml")
    assert (found.of("a").catalogs, found.of("b").catalogs) == (None, ("other",))
    assert [sorted(secrets(documents)[n]) for n in "ab"] == [["main", "other"], ["other"]]


def test_a_namespace_can_bring_its_own_secret() -> None:
    documents = render(values({"namespaces": {"a": {"catalogsSecret": "team"}}}))

    assert set(secrets(documents)) == {"lethe-system", "b"}
    assert parse_boundaries(file(documents), "boundaries.yaml").of("a").catalogs_secret == "team"
    volumes = {
        d["metadata"]["namespace"]: d["spec"]["template"]["spec"]["volumes"]
        for d in of_kind(documents, "Deployment", "committer")
    }
    mounted = {n: [v["secret"]["secretName"] for v in vs if "secret" in v] for n, vs in volumes.items()}
    assert mounted == {"a": ["team"], "b": ["lethe-catalogs"]}


def test_an_identity_for_all_namespaces_reaches_every_account_that_does_work() -> None:
    """The operator gives that of `driver` and `executor` to the accounts of runs; the chart has all others."""
    role = {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/lethe"}}
    documents = render(
        values({"default": {"serviceAccounts": dict.fromkeys(("driver", "executor", "committer", "inlet"), role)}}),
        "--set-json=serviceAccount=" + json.dumps(role),
        "--set-json=gateway=" + json.dumps({"enabled": True, "serviceAccount": role}),
        "--set=inlet.enabled=true,warmDrivers.enabled=true",
    )

    accounts = [d for d in documents if d["kind"] == "ServiceAccount"]
    assert {(a["metadata"]["namespace"], a["metadata"]["name"]) for a in accounts} == {
        ("lethe-system", "lethe-operator"),
        ("lethe-system", "lethe-gateway"),
        *((n, f"lethe-{part}") for n in ("a", "b") for part in ("committer", "inlet", "warm-driver")),
    }
    assert [a["metadata"]["annotations"] for a in accounts] == [role["annotations"]] * len(accounts)
    marks = parse_boundaries(file(documents), "boundaries.yaml").of("a").service_accounts
    assert (marks.driver.annotations, marks.executor.annotations) == (role["annotations"], role["annotations"])


def test_the_committer_has_the_marks_of_its_namespace() -> None:
    documents = render(values())
    accounts = {d["metadata"]["namespace"]: d["metadata"] for d in of_kind(documents, "ServiceAccount", "committer")}
    pods = {
        d["metadata"]["namespace"]: d["spec"]["template"]["metadata"]
        for d in of_kind(documents, "Deployment", "committer")
    }

    assert (accounts["a"]["annotations"], accounts["a"]["labels"]["a"]) == ({"role": "committer"}, "b")
    assert pods["a"]["labels"]["use"] == "committer"
    assert "annotations" not in accounts["b"]
    assert pods["a"]["annotations"]["checksum/catalogs"] != pods["b"]["annotations"]["checksum/catalogs"]


@pytest.mark.parametrize(
    ("boundaries", "named"),
    [
        ({"namespaces": {"c": {}}}, "boundaries.namespaces.c"),
        ({"namespaces": {"a": {"catalog": []}}}, "catalog"),
        ({"default": {"catalogs": ["third"]}}, 'boundaries.default.catalogs names "third"'),
        ({"default": {"operations": ["Destroy"]}}, "operations"),
        ({"default": {"uris": ["/lake"]}}, "uris"),
        ({"default": {"uris": ["s3://*"]}}, "uris"),
        ({"default": {"driver": {"memory": "much"}}}, "memory"),
        ({"default": {"credentials": {"main": {"warehouse": "s3://x"}}}}, "credentials.main sets type"),
        ({"default": {"catalogs": ["other"], "credentials": {"main": {"a": "b"}}}}, "credentials names"),
        ({"default": {"catalogsSecret": "x", "credentials": {"main": {"a": "b"}}}}, "credentials has no effect"),
    ],
)
def test_a_boundary_that_would_not_hold_is_refused(boundaries: dict[str, Any], named: str) -> None:
    assert named in refused(values(boundaries))


def notes(chart: Path, given: dict[str, Any]) -> str:
    """What `helm install` prints, which `helm template` does not: a copy of the chart renders its notes as a document."""
    if not chart.exists():
        shutil.copytree(CHART, chart)
        shutil.copy(chart / "templates/NOTES.txt", chart / "notes.tpl")
        text = '{{ tpl (.Files.Get "notes.tpl") . | toJson }}'
        (chart / "templates/notes.yaml").write_text(f"kind: Notes\ntext: {text}\n")
    done = helm("template", "lethe", str(chart), "--show-only", "templates/notes.yaml", values=given)
    assert done.returncode == 0, done.stderr
    return str(yaml.safe_load(done.stdout)["text"])


def test_the_notes_say_which_namespaces_have_no_boundary(tmp_path: Path) -> None:
    assert "No boundary is set for: b\n" in notes(tmp_path / "chart", values())
    assert "No boundary is set for: a, b\n" in notes(tmp_path / "chart", values({}))
    assert "No boundary" not in notes(tmp_path / "chart", values({"default": {"catalogs": []}}))


def test_the_example_in_the_values_is_one_that_the_chart_takes() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    first = lines.index("#   boundaries:")
    example = yaml.safe_load("\n".join(line[4:] for line in lines[first : lines.index("boundaries:")]))

    documents = render({"watchNamespaces": ["team-a"], "catalogs": {"main": CATALOGS["main"]}, **example})

    assert parse_boundaries(file(documents), "boundaries.yaml").of("team-a").tables == ("team_a.*",)
    assert json.dumps(secrets(documents)["team-a"]).count("team-a") == 1


def test_the_example_of_two_teams_gives_each_its_own_keys_and_the_sandbox_none() -> None:
    example = yaml.safe_load((CHART.parents[1] / "examples/boundaries/values.yaml").read_text())

    documents = render(example)

    found = secrets(documents)
    keys = {n: c.get("main", {}).get("s3.access-key-id") for n, c in found.items()}
    assert keys == {"lethe-system": "lethe", "team-a": "team-a", "team-b": None, "sandbox": None}
    assert found["sandbox"] == {}
    boundaries = parse_boundaries(file(documents), "boundaries.yaml")
    assert (boundaries.of("team-b").tables, boundaries.of("sandbox").catalogs) == (("team_b.*",), ())
