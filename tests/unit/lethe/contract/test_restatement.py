"""What an Erase by records names, in either form of spec.rows."""

from typing import Any, Final

import pytest
from lethe.contract.restatement import RowsSpec

FROM: Final = {"secretKeyRef": {"name": "erase-x", "key": "k"}}
VIA: Final = {"dataset": "customers", "from": "email", "to": "id"}
FORMS: Final[dict[str, tuple[dict[str, Any], dict[str, str], set[str]]]] = {
    "one column": ({"column": "a", "valuesFrom": FROM}, {"spec.rows": "a"}, set()),
    "one column of another Dataset": (
        {"column": "a", "valuesFrom": FROM, "via": VIA},
        {"spec.rows": "a"},
        {"customers"},
    ),
    "several columns": (
        {"anyOf": [{"column": "a", "valuesFrom": FROM}, {"column": "b", "valuesFrom": FROM, "via": VIA}]},
        {"spec.rows.anyOf[0]": "a", "spec.rows.anyOf[1]": "b"},
        {"customers"},
    ),
}


@pytest.mark.parametrize(("rows", "columns", "lookups"), FORMS.values(), ids=FORMS)
def test_conditions_are_the_same_in_either_form(
    rows: dict[str, Any], columns: dict[str, str], lookups: set[str]
) -> None:
    spec = RowsSpec.model_validate(rows)

    assert {field: c.column for field, c in spec.by_field.items()} == columns
    assert spec.lookups == lookups
    assert {c.values_from.secret_key_ref.name for c in spec.conditions if c.values_from.secret_key_ref} == {"erase-x"}
