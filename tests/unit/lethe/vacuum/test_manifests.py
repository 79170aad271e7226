"""Manifests are written again where readers open fewer of them afterwards, and then not again."""

from collections.abc import Sequence
from dataclasses import replace

from lethe.files.bounds import FileBounds
from lethe.vacuum.housekeeping import DataManifest, ManifestPlan, plan_manifests

from tests.support.builders import a_file

TARGET = 8_000
OF_ONE = 100  # bytes of an entry


def of_day(day: int | None, batch: str = "A") -> FileBounds:
    partition = None if day is None else f"0/[{day}]"
    return replace(a_file(batch, path=f"day={day}/{batch}"), partition=partition)


def a_manifest(name: str, *files: FileBounds, spec_id: int = 0, removed: int = 0) -> DataManifest:
    entries = len(files) + removed
    return DataManifest(name, spec_id, entries * OF_ONE, entries, files)


def after(plan: ManifestPlan, manifests: Sequence[DataManifest]) -> list[DataManifest]:
    """The manifests as they are once the plan is carried out."""
    by_number: dict[int, list[FileBounds]] = {}
    for f in (f for m in manifests if m.path in plan.replaced for f in m.files):
        by_number.setdefault(plan.manifest_of[f.path], []).append(f)
    kept = [m for m in manifests if m.path not in plan.replaced]
    return [*kept, *(a_manifest(f"new-{n}", *files) for n, files in sorted(by_number.items()))]


def test_many_small_manifests_become_few() -> None:
    manifests = [a_manifest(f"m{n}", of_day(n)) for n in range(100)]

    plan = plan_manifests(manifests, TARGET)

    assert plan.replaced == {m.path for m in manifests}
    assert [len(m.files) for m in after(plan, manifests)] == [50, 50]


def test_every_live_file_is_listed_once_and_neighbouring_days_together() -> None:
    """Values are compared as such: as texts, day 10 would come before day 9."""
    manifests = [a_manifest(f"m{n}", *(of_day(d, f"{n:03}") for d in range(8, 12))) for n in range(50)]

    found = after(plan_manifests(manifests, TARGET), manifests)

    assert sorted(f.path for m in found for f in m.files) == sorted(f.path for m in manifests for f in m.files)
    assert [sorted({f.partition for f in m.files}) for m in found] == [
        ["0/[8]", "0/[9]"],
        ["0/[10]", "0/[9]"],
        ["0/[10]", "0/[11]"],
    ]


def test_manifests_in_good_order_are_left_alone() -> None:
    manifests = [a_manifest(f"m{n}", *(of_day(n, f"{b:03}") for b in range(70))) for n in range(20)]

    assert plan_manifests(manifests, TARGET).is_empty


def test_manifests_that_mix_all_days_are_rewritten_although_they_are_large() -> None:
    manifests = [a_manifest(f"m{n}", *(of_day(d, f"{n:03}") for d in range(70))) for n in range(20)]

    plan = plan_manifests(manifests, TARGET)

    assert len(plan.replaced) == 20
    assert max(len({f.partition for f in m.files}) for m in after(plan, manifests)) <= 6


def test_rewritten_manifests_are_not_rewritten_again() -> None:
    manifests = [a_manifest(f"m{n}", *(of_day(d, f"{n:03}") for d in range(30))) for n in range(40)]
    first = plan_manifests(manifests, TARGET)
    assert not first.is_empty

    assert plan_manifests(after(first, manifests), TARGET).is_empty


def test_small_manifests_are_merged_without_the_large_ones() -> None:
    large = [a_manifest(f"large{n}", *(of_day(n, f"{b:03}") for b in range(79))) for n in range(60)]
    small = [a_manifest(f"small{n}", of_day(100 + n)) for n in range(20)]

    assert plan_manifests([*large, *small], TARGET).replaced == {m.path for m in small}


def test_a_handful_of_manifests_is_not_worth_a_commit() -> None:
    assert plan_manifests([a_manifest(f"m{n}", of_day(1, str(n))) for n in range(8)], TARGET).is_empty
    assert plan_manifests([], TARGET).is_empty


def test_manifests_of_nothing_but_removed_files_go() -> None:
    manifests = [a_manifest(f"m{n}", removed=1) for n in range(9)]

    assert plan_manifests(manifests, TARGET) == ManifestPlan(frozenset(m.path for m in manifests), {})


def test_files_of_two_partition_specs_never_share_a_manifest() -> None:
    old = [a_manifest(f"old{n}", of_day(n)) for n in range(20)]
    new = [a_manifest(f"new{n}", replace(of_day(n, "B"), partition=f"1/[{n}]"), spec_id=1) for n in range(20)]

    plan = plan_manifests([*old, *new], TARGET)

    numbers = [{plan.manifest_of[f.path] for m in of_spec for f in m.files} for of_spec in (old, new)]
    assert numbers == [{0}, {1}]


def test_files_whose_partitions_have_no_text_are_kept_together_by_their_folders() -> None:
    manifests = [a_manifest(f"m{n}", replace(of_day(None, f"{n:03}"), path=f"x={n % 2}/{n}")) for n in range(100)]

    found = after(plan_manifests(manifests, TARGET), manifests)

    assert [{f.path[:3] for f in m.files} for m in found] == [{"x=0"}, {"x=1"}]
