"""Which files of a purge need not be sorted together with others."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from lethe.files.bounds import FileBounds
from lethe.vacuum.plan import apart, stays_large

FILE = FileBounds("f", records=100, size=1000, lower="A", upper="C", null_count=0, partition="1")
letters = st.sampled_from("ABCDEFGH")
files = st.lists(
    st.tuples(st.one_of(st.none(), letters), st.one_of(st.none(), letters), st.sampled_from("12")), max_size=6
).map(lambda found: [replace(FILE, path=str(n), lower=a, upper=b, partition=p) for n, (a, b, p) in enumerate(found)])


def test_files_with_ranges_of_their_own_are_apart() -> None:
    one, next_, inside = (
        FILE,
        replace(FILE, path="g", lower="C", upper="E"),
        replace(FILE, path="h", lower="D", upper="D"),
    )

    assert apart([one, next_]) == {"f", "g"}
    assert apart([one, next_, inside]) == {"f"}
    assert apart([one, replace(next_, upper=None)]) == frozenset()
    assert apart([one, replace(inside, lower="B", partition="2")]) == {"f", "h"}


@given(files)
def test_a_file_is_apart_if_it_overlaps_with_no_other(found: list[FileBounds]) -> None:
    def known(f: FileBounds) -> bool:
        return f.lower is not None and f.upper is not None and f.lower <= f.upper

    found = [f for f in found if f.lower is None or f.upper is None or known(f)]

    def overlap(a: FileBounds, b: FileBounds) -> bool:
        """Whether they have more in common than an end."""
        if not (known(a) and known(b)):
            return True
        lower, upper = max(a.lower or "", b.lower or ""), min(a.upper or "", b.upper or "")
        inside = any((f.lower or "") < lower == upper < (f.upper or "") for f in (a, b))
        return lower < upper or inside

    expected = {
        f.path
        for f in found
        if known(f) and not any(g is not f and g.partition == f.partition and overlap(f, g) for g in found)
    }
    assert apart(found) == expected


def test_a_file_is_large_by_what_is_left_of_it() -> None:
    assert stays_large(FILE, rows=0, target=8000)
    assert not stays_large(FILE, rows=1, target=8000)
    assert stays_large(FILE, rows=50, target=4000)
    assert not stays_large(FILE, rows=100, target=8)
