"""The name of a column that a user writes leads to one field of the table, or is refused by name."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.iceberg.column_path import NoColumn, any_value, resolve_column, values_at
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

CUSTOMER = StructType(NestedField(3, "email", StringType()), NestedField(4, "last.name", StringType()))
PASSENGER = StructType(NestedField(7, "email", StringType()), NestedField(8, "tags", ListType(9, StringType())))
SCHEMA = Schema(
    NestedField(1, "day", LongType()),
    NestedField(2, "customer", CUSTOMER),
    NestedField(5, "passengers", ListType(6, PASSENGER)),
    NestedField(10, "notes", MapType(11, StringType(), 12, StringType())),
    NestedField(13, "ticket.id", LongType()),
)


@pytest.mark.parametrize(
    ("name", "parts", "field_id", "in_list"),
    [
        ("day", ("day",), 1, False),
        ("customer.email", ("customer", "email"), 3, False),
        ("customer.last.name", ("customer", "last.name"), 4, False),
        ("ticket.id", ("ticket.id",), 13, False),
        ("passengers", ("passengers",), 5, False),
        ("passengers.element.email", ("passengers", "element", "email"), 7, True),
        ("passengers.element.tags.element", ("passengers", "element", "tags", "element"), 9, True),
    ],
)
def test_a_full_name_leads_to_its_field(name: str, parts: tuple[str, ...], field_id: int, in_list: bool) -> None:
    """A dot may divide names, or be a part of one."""
    column = resolve_column(SCHEMA, name)

    assert (column.parts, column.field_id, column.in_list, column.name) == (parts, field_id, in_list, name)
    assert column.top.name == parts[0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("customer.emial", "but air.t has no such column; the nearest names are customer.email"),
        ("passengers.email", "but air.t has no such column; the nearest names are passengers.element.email"),
        ("Day", "but air.t has no such column; the nearest names are day"),
        ("zzz", "but air.t has no such column; its columns are day, customer, passengers, notes, ticket.id"),
        (
            "notes.value",
            "which is within a map; expected a column, a field of structs, or a field of structs in lists.",
        ),
    ],
)
def test_other_names_are_refused_with_what_was_meant(name: str, said: str) -> None:
    with pytest.raises(NoColumn) as refused:
        resolve_column(SCHEMA, name, "air.t")

    assert str(refused.value).startswith(said)


def test_case_matters_unless_the_names_are_those_of_spark() -> None:
    assert resolve_column(SCHEMA, "Customer.EMAIL", case_sensitive=False).name == "customer.email"


def test_a_name_of_two_columns_is_refused() -> None:
    """Iceberg allows them only if they differ in case."""
    both = Schema(
        NestedField(1, "a", StructType(NestedField(2, "b", LongType()))),
        NestedField(3, "A.b", LongType()),
    )

    assert resolve_column(both, "a.b").field_id == 2
    with pytest.raises(NoColumn, match=r"but the table has 2 columns of this name: `a`\.`b`, `A\.b`\. Rename"):
        resolve_column(both, "a.b", case_sensitive=False)


EMAILS = st.none() | st.sampled_from("abc")
PASSENGERS = st.none() | st.lists(
    st.none() | st.fixed_dictionaries({"seat": st.integers(0, 3), "emails": st.none() | st.lists(EMAILS, max_size=3)}),
    max_size=3,
)
OF_PASSENGERS = pa.list_(pa.struct([("seat", pa.int64()), ("emails", pa.list_(pa.string()))]))


@given(rows=st.lists(PASSENGERS, max_size=12), start=st.integers(0, 4))
def test_a_row_is_selected_if_one_of_its_elements_has_the_value(
    rows: list[list[dict[str, list[str]]]], start: int
) -> None:
    """Through structs and lists, null or empty, in an array that begins anywhere."""
    array = pa.array(rows, OF_PASSENGERS)[start:]

    selected = any_value(values_at(array, (None, "emails", None)), lambda values: pc.equal(values, "a"))

    expected = [any("a" in (p["emails"] or ()) for p in row or () if p is not None) for row in rows[start:]]
    assert selected.to_pylist() == expected
