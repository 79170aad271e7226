"""`lethe erase --everywhere` and `lethe redact --everywhere`: what they create, and what they never show."""

from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from lethe.kube import DATASETS, RESTATEMENTS, SECRETS, Kube, RequestRefused, ResourceKind
from lethe_operator.resources.manifests import without_defaults

from tests.services.kubectl.conftest import LocalApi
from tests.support.documents import resource
from tests.tables.lethe.cli.conftest import Kept

VALUE = "ana@example.org"
KEYS = {"dataset": "bookings", "from": "customer", "to": "phone"}
EVERYWHERE = ("erase", "--everywhere")


@pytest.fixture
def lake(local: LocalApi) -> LocalApi:
    for name, identities in (("bookings", ("customer", "phone")), ("loyalty", ("customer",)), ("fleet", ())):
        declared = [{"name": i, "column": i} for i in identities]
        local.dataset(name, buffer={"uri": f"file://{local.folder.path}/{name}"}, identities=declared)
        local.kube.patch(DATASETS, "default", name, {"metadata": {"labels": {"app": name}}})
    return local


def created(lake: LocalApi) -> tuple[dict[str, Any], dict[str, str]]:
    """The only Restatement, and the values of each key of the Secret that belongs to it."""
    (restatement,) = lake.kube.list(RESTATEMENTS, "default")
    (secret,) = lake.kube.list(SECRETS, "default")
    (owner,) = secret["metadata"]["ownerReferences"]
    assert (owner["name"], owner["uid"]) == (restatement["metadata"]["name"], restatement["metadata"]["uid"])
    assert secret["metadata"]["name"].startswith("erase-")
    return restatement, {key: b64decode(text).decode() for key, text in secret["data"].items()}


def of_values(restatement: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """The Secret and the key of each identity."""
    subject = restatement["spec"]["subject"]
    refs = {i["identity"]: i["valuesFrom"]["secretKeyRef"] for i in subject.get("anyOf") or [subject]}
    return {name: (ref["name"], ref["key"]) for name, ref in refs.items()}


def silent(done: Result) -> Result:
    assert VALUE not in done.output
    return done


def test_the_values_of_one_identity_come_from_a_file(lake: LocalApi) -> None:
    done = silent(
        lake.lethe(*EVERYWHERE, "--subject", "customer", "--values", "-", "--ticket", "DSR-1", told=f"{VALUE}\n")
    )

    assert done.exit_code == 0, done.output
    restatement, values = created(lake)
    assert values == {"customer": f"{VALUE}\n"}
    assert set(of_values(restatement)) == {"customer"}
    assert VALUE not in str(restatement)
    subject = restatement["spec"].pop("subject")
    assert without_defaults(restatement["spec"]) == {"operation": "Erase", "datasetSelector": {}, "ticket": "DSR-1"}
    assert subject["deleteValues"] is True


def test_several_identities_have_a_key_each(lake: LocalApi, tmp_path: Path) -> None:
    file = tmp_path / "subject.txt"
    file.write_text(f"customer={VALUE}\n\nphone=+49 1\nphone=+49=2\n")

    done = silent(lake.lethe(*EVERYWHERE, "--subject", "customer", "--subject", "phone", "--values", str(file)))

    assert done.exit_code == 0, done.output
    restatement, values = created(lake)
    assert values == {"customer": f"{VALUE}\n", "phone": "+49 1\n+49=2\n"}
    ((secret, _), _) = of_values(restatement).values()
    assert of_values(restatement) == {"customer": (secret, "customer"), "phone": (secret, "phone")}


def test_a_value_on_the_command_line_is_one_value(lake: LocalApi) -> None:
    done = silent(
        lake.lethe(*EVERYWHERE, "--subject", f"customer={VALUE}", "--subject", "phone", "--values", "-", told="1\n2\n")
    )

    assert done.exit_code == 0, done.output
    assert created(lake)[1] == {"customer": f"{VALUE}\n", "phone": "1\n2\n"}


SELECTORS: dict[str, dict[str, Any]] = {
    "": {},
    "app=loyalty": {"matchLabels": {"app": "loyalty"}},
    "app==loyalty,tier!=test": {
        "matchLabels": {"app": "loyalty"},
        "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["test"]}],
    },
    "app in (loyalty, bookings), !old, app": {
        "matchExpressions": [
            {"key": "app", "operator": "In", "values": ["loyalty", "bookings"]},
            {"key": "old", "operator": "DoesNotExist"},
            {"key": "app", "operator": "Exists"},
        ]
    },
}


@pytest.mark.parametrize("selector", SELECTORS)
def test_a_selector_is_written_as_kubectl_takes_it(lake: LocalApi, selector: str) -> None:
    how = ("--selector", selector) if selector else ()

    done = lake.lethe(*EVERYWHERE, "--subject", "customer", "--values-from", "people/emails", *how)

    assert done.exit_code == 0, done.output
    (restatement,) = lake.kube.list(RESTATEMENTS, "default")
    assert restatement["spec"]["datasetSelector"] == SELECTORS[selector]
    assert of_values(restatement) == {"customer": ("people", "emails")}
    assert restatement["spec"]["subject"]["deleteValues"] is False, "the Secret is not one of this command"
    again = lake.lethe(*EVERYWHERE, "--subject", "customer", "--values-from", "people/emails", *how)
    assert (again.exit_code, "unchanged" in again.output) == (0, True), again.output


def test_a_secret_may_have_a_key_for_each_identity(lake: LocalApi) -> None:
    manifest = lake.lethe(
        *EVERYWHERE, "--subject", "customer", "--subject", "phone", "--values-from", "people", "-o", "yaml"
    )

    assert of_values(yaml.safe_load(manifest.stdout)) == {
        "customer": ("people", "customer"),
        "phone": ("people", "phone"),
    }


def test_a_redact_everywhere_names_its_columns_once(lake: LocalApi) -> None:
    columns = ("--set", "customer=hash:erase-hash/key", "--set", "phone=null")
    how = (*columns, "--everywhere", "--subject", "customer", "-l", "app=bookings", "--values", "-")
    done = silent(lake.lethe("redact", *how, told=f"{VALUE}\n"))

    assert done.exit_code == 0, done.output
    restatement, values = created(lake)
    assert values == {"customer": f"{VALUE}\n"}
    assert restatement["spec"]["operation"] == "Redact"
    assert restatement["spec"]["datasetSelector"] == {"matchLabels": {"app": "bookings"}}
    assert without_defaults(restatement["spec"]["redact"]) == {
        "columns": [{"column": "customer", "method": "KeyedHash"}, {"column": "phone", "method": "SetNull"}],
        "hashKeyFrom": {"secretKeyRef": {"name": "erase-hash", "key": "key"}},
    }
    for wrong in (("bookings", *how), (*how, "--column", "phone"), columns, ("bookings", *columns, "--everywhere")):
        assert lake.lethe("redact", *wrong).exit_code == 2


REFUSED = {
    "an identity that no Dataset declares": (("--subject", "custommer", "--values", "-"), 10, "UnknownIdentity"),
    "an identity of other Datasets": (
        ("--subject", "phone", "--values", "-", "-l", "app=loyalty"),
        10,
        "UnknownIdentity",
    ),
    "a Dataset": (("flights", "--subject", "customer", "--values", "-"), 2, "--selector"),
    "no subject": ((), 2, "--subject"),
    "no values": (("--subject", "customer"), 2, "--values"),
    "an identity twice": (("--subject", f"customer={VALUE}", "--subject", "customer"), 2, "twice"),
    "an empty value": (("--subject", "customer="), 2, "NAME=VALUE"),
    "a selector that is none": (("--subject", "customer", "--values", "-", "-l", "app=(x"), 2, "--selector"),
    "lines without names": (("--subject", "customer", "--subject", "phone", "--values", "-"), 10, "line 1"),
    "values for Git": (("--subject", f"customer={VALUE}", "-o", "yaml"), 2, "Git"),
}


@pytest.mark.parametrize(("arguments", "code", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_creates_nothing_and_shows_no_value(
    lake: LocalApi, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = silent(lake.lethe(*EVERYWHERE, *arguments, told=f"{VALUE}\n"))

    assert (done.exit_code, said in done.output) == (code, True), done.output
    assert (lake.kube.list(RESTATEMENTS, "default"), lake.kube.list(SECRETS, "default")) == ([], [])


def test_a_request_that_is_refused_leaves_no_values_and_says_why(
    lake: LocalApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who may create Secrets may not be allowed to delete any."""
    create = Kube.create

    def refusing(kube: Kube, kind: ResourceKind, namespace: str, document: Any, dry_run: bool = False) -> Any:
        if kind is RESTATEMENTS:
            raise RequestRefused(403, "Forbidden", "POST /r: restatements forget: ana may not create an Erase")
        return create(kube, kind, namespace, document, dry_run)

    def denied(*_: Any, **__: Any) -> None:
        raise RequestRefused(403, "Forbidden", 'DELETE /s: cannot delete resource "secrets" in API group ""')

    monkeypatch.setattr(Kube, "create", refusing)
    monkeypatch.setattr(Kube, "delete", denied)

    done = silent(lake.lethe(*EVERYWHERE, "--subject", "customer", "--values", "-", told=f"{VALUE}\n"))

    assert (done.exit_code, lake.kube.list(SECRETS, "default")) == (10, []), done.output
    assert "ana may not create an Erase" in done.output


def test_a_subject_needs_everywhere(lake: LocalApi) -> None:
    for arguments in (
        ("erase", "bookings", "--subject", "customer"),
        ("erase",),
        ("erase", "bookings", "A", "-l", "app=x"),
    ):
        assert lake.lethe(*arguments).exit_code == 2


def test_a_dry_run_plans_which_datasets_are_searched_and_stores_nothing(lake: LocalApi, kept: Kept) -> None:
    """By which columns, in how many files; `loyalty` has no such column, `fleet` no identity."""
    kept.append("A")
    identities = [{"name": "customer", "column": "v"}, {"name": "customer", "column": "w", "via": KEYS}]
    lake.dataset("flights", identities=identities[:1])
    lake.dataset("wrong", table={"catalog": "local", "name": "air.flights"}, identities=identities)

    dry = silent(lake.lethe(*EVERYWHERE, "--subject", "customer", "--values", "-", "--dry-run", told=f"{VALUE}\n"))

    said = " ".join(dry.stdout.split())
    assert dry.exit_code == 0, dry.output
    assert "4 Datasets, 1 of them blocked" in said
    assert "flights by v: a run searches 1 file (" in said
    assert "wrong ColumnNotFound: Dataset wrong: spec.identities names w" in said
    assert "fleet: declares none of the identities" in said
    assert (lake.kube.list(RESTATEMENTS, "default"), lake.kube.list(SECRETS, "default")) == ([], [])


def test_a_dry_run_of_a_redact_names_the_datasets_that_lack_a_column(lake: LocalApi, kept: Kept) -> None:
    kept.append("A")
    lake.dataset("flights", identities=[{"name": "customer", "column": "v"}])
    how = ("--everywhere", "--subject", "customer", "--values", "-", "--dry-run")

    fits, lacks = (
        " ".join(silent(lake.lethe("redact", "--set", f"{c}=null", *how, told=f"{VALUE}\n")).stdout.split())
        for c in ("v", "nowhere")
    )

    assert "flights by v: a run searches 1 file (" in fits
    assert "1 of them blocked" in lacks
    assert "flights ColumnNotFound: " in lacks
    assert "spec.redact.columns names nowhere" in lacks


DATASETS_OF_REQUEST = [
    {
        "name": "loyalty",
        "state": "Blocked",
        "reason": "RequesterNotAllowed",
        "message": "ana may not erase from loyalty.",
        "restatement": "forget-loyalty",
    },
    {"name": "bookings", "state": "Hidden", "reason": "RowsInTable", "restatement": "forget-bookings"},
]


@pytest.fixture
def request_of_two(lake: LocalApi) -> LocalApi:
    """A request with two Datasets, one of which is blocked."""
    subject = {"identity": "customer", "valuesFrom": {"secretKeyRef": {"name": "erase-a", "key": "customer"}}}
    spec = {"operation": "Erase", "datasetSelector": {}, "subject": subject}
    made = lake.kube.create(RESTATEMENTS, "default", resource("Restatement", "forget", spec))
    blocked = {"type": "Stalled", "status": "True", "reason": "RequesterNotAllowed", "message": "1 Dataset is blocked."}
    status = {
        "observedGeneration": made["metadata"]["generation"],
        "phase": "Running",
        "conditions": [{**blocked, "lastTransitionTime": "2026-03-01T00:00:00Z"}],
        "subject": {"selected": 2, "hidden": 1, "verified": 0, "blocked": 1, "datasets": DATASETS_OF_REQUEST},
    }
    lake.kube.patch(RESTATEMENTS, "default", "forget", {"status": status}, "status")
    return lake


def test_status_counts_the_datasets_of_a_request(request_of_two: LocalApi) -> None:
    done = request_of_two.lethe("status", "-o", "wide")

    assert "Erase of a subject 0/2 verified, 1 blocked" in " ".join(done.stdout.split())


def test_why_lists_the_datasets_of_a_request_and_leads_to_the_one_that_is_blocked(request_of_two: LocalApi) -> None:
    done = request_of_two.lethe("why", "restatement/forget")

    said = " ".join(done.stdout.split())
    assert "dataset/loyalty Blocked by restatement/forget-loyalty: RequesterNotAllowed. ana may not erase" in said
    assert "dataset/bookings Hidden by restatement/forget-bookings" in said
    assert "next: lethe why restatement/forget-loyalty" in said


def test_a_request_cannot_be_undone(request_of_two: LocalApi) -> None:
    done = request_of_two.lethe("undo", "forget")

    assert (done.exit_code, "NotUndoable" in done.output) == (10, True)
