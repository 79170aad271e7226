"""Decides whether the columns of a file fit a table, and which columns the table would need. Pure: Arrow schemas in, a sentence
or the needed columns out.

Sentences do not contain names of columns that only the file has: these may be confidential, like its values. Of nested
fields that only the file has, `lethe.ingest.arrow_types.shown` says which names are shown.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from lethe.ingest.arrow_types import as_column, fits, kind_of, mismatch, promotes

OPTION = "spec.schemaEvolution: AddColumns"
# In the metadata of a column of a table: the type of the column in the table, which Lethe does not know.
UNKNOWN_TYPE = b"lethe.type"
# Metadata columns of Iceberg and Lethe. A table with a column of such a name could not be read.
RESERVED = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number", "_lethe_error"}
)


@dataclass(frozen=True)
class Rules:
    """How columns are compared."""

    batch_column: str
    # Required columns of the table, without the batch column, which files may lack.
    required: frozenset[str] = frozenset()
    add_columns: bool = False  # columns may be added or widened, and optional columns may be missing in a file
    typed: bool = True  # files declare the types of their columns


@dataclass(frozen=True)
class Fits:
    """All columns fit."""


@dataclass(frozen=True)
class Lacks:
    """The file would fit after these columns are added or widened."""

    columns: pa.Schema


@dataclass(frozen=True)
class Misfit:
    """The file cannot be used."""

    message: str


def compare(file: pa.Schema, table: pa.Schema, rules: Rules) -> Fits | Lacks | Misfit:
    """Compare a file's columns with the table's, by name."""
    wanted: list[pa.Field] = []
    # pyarrow makes a new list of names at each call, and a table may have thousands.
    counts, names = Counter(file.names), frozenset(table.names)
    for column in table:
        found = counts[column.name]
        if (unknown := unknown_type(column)) is not None:
            if found or column.name in rules.required:
                where = "in the file" if found else "missing; the table requires it"
                return Misfit(f"column {column.name} ({unknown}) is {where}, and Lethe does not write this type")
            continue
        if found > 1:
            return Misfit(f"column {column.name} is in the file {found} times")
        if not found:
            if missing := _missing(column, file, rules):
                return Misfit(missing)
            continue
        actual = file.field(column.name).type
        odd = mismatch(actual, column.type)
        if odd is None:
            continue
        wider = as_column(actual)
        text = f"column {column.name}{odd.path} {odd.text}"
        if wider is None or not promotes(column.type, wider) or column.name == rules.batch_column:
            return Misfit(f"{text}; {OPTION} cannot change this")
        if not rules.add_columns:
            return Misfit(f"{text}; with {OPTION}, Lethe would widen the table's column")
        wanted.append(pa.field(column.name, wider))
    for name in (n for n in counts if n not in names):
        taken = _taken_over(name, file, table, rules)
        if isinstance(taken, str):
            return Misfit(taken)
        wanted += taken
    return Lacks(pa.schema(wanted)) if wanted else Fits()


def of_unknown_type(name: str, kind: str, required: bool) -> pa.Field:
    """A column of a table with a type that Lethe does not know. Files must not have it, and its values are null."""
    return pa.field(name, pa.binary(), not required, {UNKNOWN_TYPE: kind.encode()})


def unknown_type(column: pa.Field) -> str | None:
    """The type of a column that `of_unknown_type` made. None: another column."""
    kind = (column.metadata or {}).get(UNKNOWN_TYPE)
    return None if kind is None else bytes(kind).decode()


def known_columns(columns: pa.Schema) -> pa.Schema:
    """The columns of a table whose types are known: those of which rows are written."""
    return pa.schema([f for f in columns if unknown_type(f) is None])


def _missing(column: pa.Field, file: pa.Schema, rules: Rules) -> str:
    """Why a column must not be missing; empty: it may be missing."""
    required = column.name in rules.required
    if column.name == rules.batch_column or (rules.add_columns and not required):
        return ""
    why = "the table requires it" if required else f"with {OPTION}, Lethe would read it as null"
    return f"column {column.name} ({column.type}) is missing; the file has {len(file.names)} columns; {why}"


def _taken_over(name: str, file: pa.Schema, table: pa.Schema, rules: Rules) -> list[pa.Field] | str:
    """The column to add for a column of the file that the table does not have, empty if its type is null; or why it cannot be
    added."""
    at = f"number {file.names.index(name) + 1} of {len(file.names)}"
    if (count := file.names.count(name)) > 1:
        return f"a column that the table does not have ({at}) is in the file {count} times"
    actual = file.field(name).type
    text = f"the file has a column that the table does not have ({at}); the table has {_listed(table.names)}"
    if not rules.typed:
        return f"{text}; add it to the table first, because files of this format do not declare types"
    if not rules.add_columns:
        return f"{text}; with {OPTION}, Lethe would add it ({kind_of(actual)})"
    if pa.types.is_null(actual):
        return []
    if clash := _clash(name, table.names):
        return f"{text}; it cannot be added, because its name differs from {clash} only in case"
    if not name or "." in name or name.lower() in RESERVED:
        return f"{text}; it cannot be added, because its name is empty, contains a dot or is reserved"
    column = as_column(actual)
    if column is None:
        return f"{text}; {OPTION} cannot add a column of type {kind_of(actual)}"
    return [pa.field(name, column)]


def _clash(name: str, known: Sequence[str]) -> str | None:
    """A known name that differs only in case, which Spark does not distinguish; None: there is none."""
    return next((k for k in known if k != name and k.lower() == name.lower()), None)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:30]) + (", …" if len(names) > 30 else "")


@dataclass(frozen=True)
class Evolution:
    """The schema change of a run."""

    columns: pa.Schema  # columns to add, and columns to widen with their new type
    # Batches that contradict the table or another batch, by id: the URI of a file, and why.
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def plan_evolution(table: pa.Schema, wanted: Mapping[str, Sequence[tuple[str, pa.Schema]]]) -> Evolution:
    """Combine the columns that the batches of a run need.

    Batches are considered in the order of their ids, so the same batches always give the same table. A batch that contradicts
    the table or an earlier batch is refused, and none of its columns are added.

    Args:
        table: The current columns.
        wanted: By batch id: each file's URI, and the columns to add or widen for it.
    """
    types = {f.name: f.type for f in table}
    taken: dict[str, pa.DataType] = {}
    refused: dict[str, tuple[str, str]] = {}
    for batch_id in sorted(wanted):
        here = dict(taken)
        for uri, columns in sorted(wanted[batch_id], key=lambda f: f[0]):
            for column in columns:
                if problem := _unite({**types, **here}, here, column, types.keys()):
                    refused.setdefault(batch_id, (uri, problem))
        if batch_id not in refused:
            taken = here
    return Evolution(pa.schema(list(taken.items())), refused)


def _unite(
    known: Mapping[str, pa.DataType], taken: dict[str, pa.DataType], column: pa.Field, table: Collection[str]
) -> str | None:
    """Put a column into `taken` if it is new or wider.

    Args:
        known: The types of the table's columns and of those added so far.
        table: The names of the table's columns, which messages may contain.
    Returns: Why that is impossible; None: done.
    """
    current = known.get(column.name)
    if current is None:
        if clash := _clash(column.name, list(known)):
            beside = f"that of column {clash}" if clash in table else "that of a column of another batch of this run"
            return f"a column that the table does not have cannot be added: its name differs from {beside} only in case"
    elif fits(column.type, current):
        return None
    elif not promotes(current, column.type):
        which = f"column {column.name}" if column.name in table else "a column that the table does not have"
        return (
            f"{which} is {kind_of(column.type)}, but {kind_of(current)} in another batch of this run; "
            f"{OPTION} adds one column, and Iceberg cannot promote one type to the other"
        )
    taken[column.name] = column.type
    return None
