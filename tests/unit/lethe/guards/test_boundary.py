"""What a boundary allows and what not, of a run and of a table; each refusal names the boundary and the value."""

from datetime import date
from typing import Any

import pytest
from lethe.base.errors import InputError
from lethe.contract.run import (
    AllowedOperation,
    BufferRef,
    ConsolidationSpec,
    CreateTable,
    Replacement,
    RestatementGroupSpec,
    RetentionSpec,
    RunBoundary,
    RunKind,
    RunSpec,
    TableRef,
    VacuumSpec,
)
from lethe.guards.boundary import outside_run, outside_table, require_run_within, require_table_within

from tests.support.builders import a_request, a_run

TEAM = "s3://lake/team-a"
OPERATIONS = tuple(AllowedOperation)


def a_spec(boundary: dict[str, Any] | None = None, **changes: Any) -> RunSpec:
    """A run of the team, that touches nothing but the team's."""
    given: dict[str, Any] = {
        "table": TableRef(catalog="main", name="team_a.orders"),
        "buffer": BufferRef(uri=f"{TEAM}/inbox"),
        **changes,
    }
    kind = given.pop("kind", RunKind.CONSOLIDATION)
    limit = RunBoundary.model_validate(boundary) if boundary is not None else None
    return a_run(kind, **given).model_copy(update={"boundary": limit})


def restating(**changes: Any) -> dict[str, Any]:
    request = a_request("r", **changes)
    return {"kind": RunKind.RESTATEMENT, "requests": (request,)}


def but(*without: AllowedOperation) -> dict[str, Any]:
    return {"operations": [o for o in OPERATIONS if o not in without]}


def on(name: str, catalog: str = "main", adopt: bool = False, **create: Any) -> dict[str, Any]:
    definition = CreateTable(**{"schema": "v int", **create}) if create else None
    return {"table": TableRef(catalog=catalog, name=name, adopt=adopt, create=definition)}


def replaying(uri: str) -> dict[str, Any]:
    return restating(operation="Replay", replacement=Replacement(batch_id="n", uri=uri))


def listing(uri: str) -> dict[str, Any]:
    return restating(batch_ids=(), batch_ids_uri=uri)


ONLY_TEAM = {"uris": [TEAM]}
A_DAY = RetentionSpec(column="t", max_age_days=1, cutoff=date(2024, 6, 1))
CREATED: dict[str, Any] = on("a.b", schema="v int")
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str, str]] = {
    # name: boundary, what is allowed, what is not, the boundary's name, the value
    "catalog": ({"catalogs": ["main"]}, {}, on("team_a.orders", "secret"), "catalogs", "secret"),
    "table": ({"tables": ["team_a.*"]}, {}, on("team_ab.orders"), "tables", "team_ab.orders"),
    "buffer": (ONLY_TEAM, {}, {"buffer": BufferRef(uri=f"{TEAM}-b/inbox")}, "uris", f"{TEAM}-b/inbox"),
    "buffer with steps": (ONLY_TEAM, {}, {"buffer": BufferRef(uri=f"{TEAM}/../b")}, "uris", f"{TEAM}/../b"),
    "replacement": (ONLY_TEAM, replaying(f"{TEAM}/new"), replaying("s3://lake/b/new"), "uris", "s3://lake/b/new"),
    "list": (ONLY_TEAM, listing("s3a://lake/team-a/ids"), listing("s3://lake/ids"), "uris", "s3://lake/ids"),
    "path property": (
        ONLY_TEAM,
        CREATED,
        on("a.b", properties={"write.data.path": "s3://lake/team-b"}),
        "uris",
        "s3://lake/team-b",
    ),
    **{
        operation.value: (but(operation), {}, restating(operation=operation.value), "operations", operation.value)
        for operation in (AllowedOperation.REVERT, AllowedOperation.ERASE, AllowedOperation.UNDO)
    },
    "create": (but(AllowedOperation.CREATE_TABLE), {}, CREATED, "operations", "CreateTable"),
    "adopt": (but(AllowedOperation.ADOPT_TABLE), {}, on("a.b", adopt=True), "operations", "AdoptTable"),
    "vacuum": (
        but(AllowedOperation.VACUUM),
        {"kind": RunKind.ERASURE_CHECK},
        {"kind": RunKind.VACUUM},
        "operations",
        "Vacuum",
    ),
    "retention": (
        but(AllowedOperation.RETENTION),
        {"kind": RunKind.VACUUM},
        {"kind": RunKind.VACUUM, "vacuum": VacuumSpec(policy="a/b", retention=A_DAY)},
        "operations",
        "Retention",
    ),
    "nothing at all": ({"operations": []}, {}, restating(), "operations", "Revert"),
}


@pytest.mark.parametrize(("boundary", "inside", "beyond", "name", "value"), CASES.values(), ids=CASES)
def test_a_run_is_refused_for_what_its_boundary_does_not_allow(
    boundary: dict[str, Any], inside: dict[str, Any], beyond: dict[str, Any], name: str, value: str
) -> None:
    require_run_within(a_spec(boundary, **inside))
    require_run_within(a_spec(None, **beyond))
    with pytest.raises(InputError, match="OutsideBoundary") as refused:
        require_run_within(a_spec(boundary, **beyond))

    assert f"boundary {name} of namespace" in refused.value.message
    assert value in refused.value.message


def test_registering_and_native_deletes_are_operations_of_their_own() -> None:
    spec = a_spec(but(AllowedOperation.REGISTER, AllowedOperation.NATIVE_DELETES), **restating())
    assert spec.restatement is not None
    native = RestatementGroupSpec(requests=spec.restatement.requests, deletes="DeletionVectors")

    registering = outside_run(spec.model_copy(update={"consolidation": ConsolidationSpec(mode="Register")}))
    masking = outside_run(spec.model_copy(update={"restatement": native}))

    assert outside_run(spec) is None
    assert registering is not None
    assert (registering.what, registering.value) == ("spec.consolidation.mode", "Register")
    assert masking is not None
    assert (masking.boundary, masking.value) == ("operations", "NativeDeletes")


@pytest.mark.parametrize(
    ("location", "properties", "value"),
    [
        ("s3://lake/team-a/orders", {}, None),
        ("s3a://lake/team-a/orders", {"write.data.path": "s3://lake/team-a/files"}, None),
        ("s3://lake/team-ab/orders", {}, "s3://lake/team-ab/orders"),
        ("s3://lake", {}, "s3://lake"),
        ("s3://lake/team-a/orders", {"write.data.path": "s3://lake/x"}, "s3://lake/x"),
        ("s3://lake/team-a/orders", {"write.metadata.path": "s3://lake/x"}, "s3://lake/x"),
        ("s3://lake/team-a/orders", {"write.object-storage.path": "s3://lake/x"}, "s3://lake/x"),
    ],
)
def test_a_table_is_inside_with_all_its_files(location: str, properties: dict[str, str], value: str | None) -> None:
    found = outside_table(RunBoundary(uris=(TEAM,)), location, properties)

    assert (found.value if found is not None else None) == value
    if value is not None:
        with pytest.raises(InputError, match="OutsideBoundary"):
            require_table_within(a_spec({"uris": [TEAM]}), location, properties)
    require_table_within(a_spec(), location, properties)
