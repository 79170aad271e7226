"""What a boundary allows and what not, of a run and of a table; each refusal names the boundary and the value."""

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


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str, str]] = {
    # name: boundary, what is allowed, what is not, the boundary's name, the value
    "catalog": (
        {"catalogs": ["main"]},
        {},
        {"table": TableRef(catalog="secret", name="team_a.orders")},
        "catalogs",
        "secret",
    ),
    "table": (
        {"tables": ["team_a.*"]},
        {},
        {"table": TableRef(catalog="main", name="team_ab.orders")},
        "tables",
        "team_ab.orders",
    ),
    "buffer": ({"uris": [TEAM]}, {}, {"buffer": BufferRef(uri=f"{TEAM}-b/inbox")}, "uris", f"{TEAM}-b/inbox"),
    "buffer with steps": (
        {"uris": [TEAM]},
        {},
        {"buffer": BufferRef(uri=f"{TEAM}/../team-b")},
        "uris",
        f"{TEAM}/../team-b",
    ),
    "replacement": (
        {"uris": [TEAM]},
        restating(operation="Replay", replacement=Replacement(batch_id="n", uri=f"{TEAM}/new")),
        restating(operation="Replay", replacement=Replacement(batch_id="n", uri="s3://lake/team-b/new")),
        "uris",
        "s3://lake/team-b/new",
    ),
    "list": (
        {"uris": [TEAM]},
        restating(batch_ids=(), batch_ids_uri="s3a://lake/team-a/ids.txt"),
        restating(batch_ids=(), batch_ids_uri="s3://lake/ids.txt"),
        "uris",
        "s3://lake/ids.txt",
    ),
    "path property": (
        {"uris": [TEAM]},
        {"table": TableRef(catalog="main", name="a.b", create=CreateTable(schema="v int"))},
        {
            "table": TableRef(
                catalog="main",
                name="a.b",
                create=CreateTable(schema="v int", properties={"write.data.path": "s3://lake/team-b"}),
            )
        },
        "uris",
        "s3://lake/team-b",
    ),
    **{
        operation.value: (but(operation), {}, restating(operation=operation.value), "operations", operation.value)
        for operation in (AllowedOperation.REVERT, AllowedOperation.ERASE, AllowedOperation.UNDO)
    },
    "create": (
        but(AllowedOperation.CREATE_TABLE),
        {},
        {"table": TableRef(catalog="main", name="a.b", create=CreateTable(schema="v int"))},
        "operations",
        "CreateTable",
    ),
    "adopt": (
        but(AllowedOperation.ADOPT_TABLE),
        {},
        {"table": TableRef(catalog="main", name="a.b", adopt=True)},
        "operations",
        "AdoptTable",
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


def test_registering_files_is_an_operation_of_its_own() -> None:
    spec = a_spec(but(AllowedOperation.REGISTER))
    registering = spec.model_copy(update={"consolidation": ConsolidationSpec(mode="Register")})

    assert outside_run(spec) is None
    found = outside_run(registering)
    assert found is not None
    assert (found.what, found.value) == ("spec.consolidation.mode", "Register")


def test_native_deletes_are_an_operation_of_their_own() -> None:
    spec = a_spec(but(AllowedOperation.NATIVE_DELETES), **restating())
    assert spec.restatement is not None
    native = RestatementGroupSpec(requests=spec.restatement.requests, deletes="DeletionVectors")

    assert outside_run(spec) is None
    found = outside_run(spec.model_copy(update={"restatement": native}))
    assert found is not None
    assert (found.boundary, found.value) == ("operations", "NativeDeletes")


def test_a_boundary_limits_a_vacuum_but_not_a_check_of_erasures() -> None:
    spec = a_spec(but(AllowedOperation.VACUUM), kind=RunKind.VACUUM)

    found = outside_run(spec)
    assert found is not None
    assert found.value == "Vacuum"
    looking = spec.model_copy(update={"vacuum": VacuumSpec(policy="ns/p", erasures_only=True)})
    assert outside_run(looking) is None


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
