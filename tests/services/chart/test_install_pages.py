"""Chart and operator take the values of the pages about installing, and each identity reaches the pods that the pages name."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from lethe_operator.settings import from_environment

from tests.services.chart.chart import environment, render
from tests.unit.docs.blocks import ROOT, blocks_of

PAGES = ("install-eks", "install-gke", "install-on-premises")
AWS, GOOGLE = "eks.amazonaws.com/role-arn", "iam.gke.io/gcp-service-account"


def values_of(page: str, title: str = "my-values.yaml") -> list[dict[str, Any]]:
    path = f"docs/{page}.md"
    blocks = blocks_of(path, Path(ROOT / path).read_text())
    return [yaml.safe_load(b.text) for b in blocks if b.language == "yaml" and b.title == title]


def identities(documents: list[dict[str, Any]], annotation: str) -> dict[str, str]:
    """ServiceAccount -> what its annotation names, without the account or project."""
    accounts = [d for d in documents if d["kind"] == "ServiceAccount"]
    found = {a["metadata"]["name"]: a["metadata"].get("annotations", {}).get(annotation, "") for a in accounts}
    return {name: value.rpartition("/")[2].partition("@")[0] for name, value in found.items()}


@pytest.mark.parametrize("page", PAGES)
def test_the_chart_and_the_operator_take_the_values_of_the_page(page: str) -> None:
    (values,) = values_of(page)

    settings = from_environment(environment(render(values)))

    assert settings.watch_namespaces == ("team-a",)


def test_each_role_on_eks_is_that_of_the_table() -> None:
    (values,) = values_of("install-eks")
    values |= {"inlet": {"enabled": True}, "warmDrivers": {"enabled": True}}

    assert identities(render(values), AWS) == {
        "lethe-operator": "lethe-operator",
        "lethe-gateway": "lethe-gateway",
        **dict.fromkeys(("lethe-committer", "lethe-inlet", "lethe-warm-driver"), "lethe-team-a"),
    }


def test_each_service_account_of_google_is_that_of_the_bindings() -> None:
    (values,) = values_of("install-gke")
    (impersonating,) = values_of("install-gke", title="")
    team = impersonating["boundaries"]["namespaces"]["team-a"]
    values["boundaries"]["namespaces"]["team-a"] |= team
    values |= {"serviceAccount": impersonating["serviceAccount"], "inlet": {"enabled": True}}
    values["gateway"] = {"enabled": True, **impersonating["gateway"]}

    assert identities(render(values), GOOGLE) == {
        "lethe-operator": "lethe-operator",
        "lethe-gateway": "lethe-gateway",
        **dict.fromkeys(("lethe-committer", "lethe-inlet"), "lethe-team-a"),
    }
    assert {mark["annotations"][GOOGLE] for mark in team["serviceAccounts"].values()} == {
        "lethe-team-a@example.iam.gserviceaccount.com"
    }
