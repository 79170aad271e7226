"""The file of boundaries: what it says of a namespace, and what is refused."""

from pathlib import Path

import pytest
from lethe.base.errors import InvalidSettings
from lethe.base.names import matches
from lethe.contract.kubernetes import GIB
from lethe.contract.run import AllowedOperation
from lethe_operator.resources.boundaries import UNLIMITED, InvalidBoundaries, parse_boundaries
from lethe_operator.settings import Settings, with_files

TEXT = """
default:
  operations: [Replay, Revert]
namespaces:
  team-a:
    catalogs: [main]
    tables: [team_a.*]
    uris: [s3://lake/team-a]
    queues: [https://sqs.eu-central-1.amazonaws.com/111122223333]
    driver: {cpu: 500m, memory: 4Gi}
    executors: {max: 4, memory: 8Gi}
    podTemplate: {env: [HTTP_*], priorityClasses: []}
    serviceAccounts:
      driver: {annotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::111122223333:role/team-a"}}
"""


def test_a_namespace_has_its_own_entry_alone_and_others_have_the_default() -> None:
    found = parse_boundaries(TEXT, "boundaries.yaml")

    own = found.of("team-a")
    assert own.operations is None
    assert (own.catalogs, own.tables, own.uris) == (("main",), ("team_a.*",), ("s3://lake/team-a",))
    assert (own.driver.cpu, own.driver.memory, own.executors.max) == (0.5, 4 * GIB, 4)
    assert (own.pod_template.env, own.pod_template.labels, own.pod_template.priority_classes) == (("HTTP_*",), None, ())
    assert found.of("team-b").operations == (AllowedOperation.REPLAY, AllowedOperation.REVERT)


def test_without_boundaries_nothing_is_limited() -> None:
    assert parse_boundaries("{}", "boundaries.yaml") == UNLIMITED
    assert UNLIMITED.of("anywhere").of_runs is None
    assert with_files(Settings(), {}).boundaries == UNLIMITED


def test_a_run_hears_of_what_it_can_check() -> None:
    found = parse_boundaries(TEXT, "boundaries.yaml")

    part = found.of("team-a").of_runs
    assert part is not None
    assert (part.catalogs, part.tables, part.uris, part.operations) == (
        ("main",),
        ("team_a.*",),
        ("s3://lake/team-a",),
        None,
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("namespaces: {a: {operation: []}}", "boundaries.namespaces.a.operation"),
        ("defaults: {}", "boundaries.defaults"),
        ("default: {operations: [Destroy]}", "boundaries.default.operations.0"),
        ("default: {executors: {max: -1}}", "boundaries.default.executors.max"),
        ("default: {driver: {memory: much}}", "boundaries.default.driver.memory"),
        ("default: {podTemplate: {envs: []}}", "boundaries.default.podTemplate.envs"),
        ("{", "is not YAML"),
    ],
)
def test_what_is_misspelt_is_refused_by_name_rather_than_ignored(text: str, named: str) -> None:
    with pytest.raises(InvalidBoundaries, match=named):
        parse_boundaries(text, "boundaries.yaml")


def test_the_file_is_read_and_a_missing_one_stops_the_operator(tmp_path: Path) -> None:
    file = tmp_path / "boundaries.yaml"
    file.write_text(TEXT)

    assert with_files(Settings(), {"LETHE_BOUNDARIES_FILE": str(file)}).boundaries.of("team-a").catalogs == ("main",)
    with pytest.raises(InvalidSettings, match="LETHE_BOUNDARIES_FILE"):
        with_files(Settings(), {"LETHE_BOUNDARIES_FILE": str(tmp_path / "none")})


def test_a_star_stands_for_any_characters_and_nothing_else_is_special() -> None:
    assert matches("team_a.*", "team_a.orders")
    assert not matches("team_a.*", "team_ab.orders")
    assert not matches("team_a.*", "xteam_a.orders")
    assert not matches("a?c", "abc")
    assert not matches("a[b]", "ab")
    assert not matches("", "x")
    assert matches("*", "anything\nat all")
