"""Whether the deletes that a Dataset asks for go with its table's format version. Pure."""

from collections.abc import Mapping
from typing import Final

from lethe.contract.run import Deletes

from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import NoTable, TableView

# Vectors came with format version 3, and stand there for the position deletes of version 2. Equality deletes are for the tables
# that cannot have vectors.
FORMAT_VERSIONS: Final[Mapping[Deletes, int]] = {"DeletionVectors": 3, "EqualityDeletes": 2}


def mismatch(dataset: Dataset, table: TableView | NoTable) -> str | None:
    """What about the format version does not go with `spec.deletes`, and what to do; None if all is well."""
    spec, create = dataset.spec, dataset.spec.table.create
    wanted = FORMAT_VERSIONS.get(spec.deletes)
    if isinstance(table, TableView):
        found, where = table.format_version, f"the table {spec.table.name} has {table.format_version}"
        # A format version can be raised, and never lowered.
        change = f"Set the table property format-version to {wanted}, which cannot be taken back, or set"
    elif create is not None:
        found, where = create.format_version, f"spec.table.create.formatVersion is {create.format_version}"
        change = f"Set that to {wanted}, or set"
    else:
        return None
    if wanted is None or found == wanted:
        return None
    fitting = [mode for mode, version in FORMAT_VERSIONS.items() if version == found]
    remedy = f"spec.deletes to {' or '.join([*fitting, 'Ledger'])}."
    remedy = f"{change} {remedy}" if found < wanted or isinstance(table, NoTable) else f"Set {remedy}"
    needs = f"spec.deletes {spec.deletes} needs Iceberg format version {wanted}"
    return f"Dataset {dataset.meta.name}: {needs}, and {where}. {remedy}"
