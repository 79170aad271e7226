"""From which Datasets a subject is erased, and by which columns."""

from typing import Any

import pytest
from lethe_operator.request.targets import Targets, targets_of
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Invalid

from tests.support.resources import a_dataset, a_restatement

A_SECRET = {"secretKeyRef": {"name": "erase-12", "key": "values"}}


def dataset(name: str, *identities: tuple[str, ...], labels: Any = None, **spec: Any) -> Dataset:
    """A Dataset that declares identities, each as its name and column, and the table, `from` and `to` of a lookup."""
    declared = [
        {"name": n, "column": c, **({"via": dict(zip(("dataset", "from", "to"), via, strict=True))} if via else {})}
        for n, c, *via in identities
    ]
    return a_dataset(name, meta={"labels": labels or {"pii": "yes"}}, identities=declared, **spec)


def found(*datasets: Dataset | Invalid, identities: tuple[str, ...] = ("customer",), **selector: Any) -> Targets:
    subject = {"anyOf": [{"identity": i, "valuesFrom": A_SECRET} for i in identities]}
    spec = {"datasetSelector": selector, "subject": subject, "operation": "Erase"}
    return targets_of(a_restatement("erase-12", datasetRef=None, batchIds=[], **spec).spec, datasets)


def described(targets: Targets) -> dict[str, list[str] | str]:
    """By Dataset, the columns with the tables in which keys are looked up, or the reason of a problem."""
    return {
        t.name: str(t.problem.reason)
        if t.problem is not None
        else [f"{c.column} via {c.via.dataset}.{c.via.to_column}" if c.via else c.column for c in t.conditions]
        for t in targets.included
    }


BOOKINGS = dataset("bookings", ("customer", "email"), ("phone", "mobile"))
CARDS = dataset("cards", ("customer", "card", "bookings", "email", "card_id"))

CASES: dict[str, tuple[Targets, dict[str, list[str] | str], tuple[str, ...]]] = {
    "each column of the identity": (
        found(dataset("trips", ("customer", "payer"), ("customer", "passengers.element.email"))),
        {"trips": ["payer", "passengers.element.email"]},
        (),
    ),
    "several identities": (
        found(BOOKINGS, identities=("customer", "phone")),
        {"bookings": ["email", "mobile"]},
        (),
    ),
    "a Dataset without the identity": (found(BOOKINGS, dataset("weather")), {"bookings": ["email"]}, ("weather",)),
    "a selector": (
        found(BOOKINGS, dataset("old", ("customer", "email"), labels={"pii": "no"}), matchLabels={"pii": "yes"}),
        {"bookings": ["email"]},
        (),
    ),
    "a lookup": (found(BOOKINGS, CARDS), {"bookings": ["email"], "cards": ["card via bookings.card_id"]}, ()),
    "a derived Dataset with the identity, whatever its labels": (
        found(
            BOOKINGS,
            dataset("daily", ("customer", "who"), labels={"a": "b"}, derivedFrom=[{"dataset": "bookings"}]),
            matchLabels={"pii": "yes"},
        ),
        {"bookings": ["email"], "daily": ["who"]},
        (),
    ),
    "a derived Dataset by batches": (
        found(BOOKINGS, dataset("daily", derivedFrom=[{"dataset": "bookings", "batchColumn": "source"}])),
        {"bookings": ["email"], "daily": ["source via bookings.batch_id"]},
        (),
    ),
    "a Dataset that is derived from a derived one": (
        found(
            BOOKINGS,
            dataset("daily", ("customer", "who"), derivedFrom=[{"dataset": "bookings"}]),
            dataset("weekly", derivedFrom=[{"dataset": "daily", "batchColumn": "day"}]),
        ),
        {"bookings": ["email"], "daily": ["who"], "weekly": ["day via daily.batch_id"]},
        (),
    ),
    "a derived Dataset that says nothing": (
        found(BOOKINGS, dataset("daily", derivedFrom=[{"dataset": "bookings"}])),
        {"bookings": ["email"], "daily": "DerivedWithoutIdentity"},
        (),
    ),
    "batches of a Dataset that knows only keys": (
        found(BOOKINGS, CARDS, dataset("points", derivedFrom=[{"dataset": "cards", "batchColumn": "b"}])),
        {"bookings": ["email"], "cards": ["card via bookings.card_id"], "points": "DerivedWithoutIdentity"},
        (),
    ),
    "batches of a Dataset that knows one identity, and keys of another one": (
        found(
            BOOKINGS,
            dataset("cards", ("phone", "owner"), ("customer", "card", "bookings", "email", "card_id")),
            dataset("points", derivedFrom=[{"dataset": "cards", "batchColumn": "b"}]),
            identities=("customer", "phone"),
        ),
        {
            "bookings": ["email", "mobile"],
            "cards": ["card via bookings.card_id", "owner"],
            "points": "DerivedWithoutIdentity",
        },
        (),
    ),
    "a Dataset that is derived from another one, and from one that is derived": (
        found(
            BOOKINGS,
            dataset("daily", ("customer", "who"), labels={"a": "b"}, derivedFrom=[{"dataset": "bookings"}]),
            dataset(
                "both",
                labels={"a": "b"},
                derivedFrom=[
                    {"dataset": "bookings", "batchColumn": "source"},
                    {"dataset": "daily", "batchColumn": "day"},
                ],
            ),
            matchLabels={"pii": "yes"},
        ),
        {
            "bookings": ["email"],
            "both": ["source via bookings.batch_id", "day via daily.batch_id"],
            "daily": ["who"],
        },
        (),
    ),
    "a Dataset that is derived from another one, and from one that is derived by batches": (
        found(
            BOOKINGS,
            dataset("daily", derivedFrom=[{"dataset": "bookings", "batchColumn": "source"}]),
            dataset(
                "both",
                derivedFrom=[
                    {"dataset": "bookings", "batchColumn": "source"},
                    {"dataset": "daily", "batchColumn": "day"},
                ],
            ),
        ),
        {"bookings": ["email"], "both": "DerivedWithoutIdentity", "daily": ["source via bookings.batch_id"]},
        (),
    ),
    "lookups in a circle": (
        found(
            dataset("a", ("customer", "x", "b", "y", "x")),
            dataset("b", ("customer", "y", "a", "x", "y")),
            dataset("c", ("customer", "z", "a", "x", "z")),
        ),
        {"a": "LookupsInCircle", "b": "LookupsInCircle", "c": ["z via a.z"]},
        (),
    ),
    "a lookup in itself": (
        found(dataset("a", ("customer", "email"), ("customer", "id", "a", "email", "id"))),
        {"a": ["email", "id via a.id"]},
        (),
    ),
    "too many columns": (
        found(dataset("a", *(("customer", f"c{n}") for n in range(17)))),
        {"a": "TooManyColumns"},
        (),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_datasets_and_columns(case: str) -> None:
    targets, expected, without_identity = CASES[case]
    assert described(targets) == expected
    assert targets.without_identity == without_identity


def test_a_dataset_in_which_others_look_up_is_known() -> None:
    targets = found(BOOKINGS, CARDS, dataset("a", ("customer", "email"), ("customer", "id", "a", "email", "id")))
    assert targets.readers_of == {"bookings": {"cards"}, "cards": frozenset(), "a": frozenset()}


def test_a_dataset_with_an_invalid_spec_is_named_if_it_is_selected() -> None:
    broken = Invalid("Dataset", dataset("b").meta, dataset("b").stored, "spec.table: Field required")
    assert found(BOOKINGS, broken).invalid == ("b",)
    assert found(BOOKINGS, broken, matchLabels={"pii": "no"}).invalid == ()
