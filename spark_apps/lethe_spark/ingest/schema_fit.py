"""Whether a file's columns fit a table's, and what the table would have to take over for them to fit. Pure: Arrow schemas
in, a sentence or the wanted columns out. A sentence names columns of the table only: what a file calls its own is its content.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from lethe_spark.ingest.arrow_types import as_column, fits, promotes

OPTION = "spec.schemaEvolution: AddColumns"
# Iceberg's own columns, and ours: a table that had one of its own could not be read any more.
RESERVED = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number", "_lethe_error"}
)


@dataclass(frozen=True)
class Rules:
    """How columns are compared.

    Args:
        required: Columns that the table requires; never the batch column, which files need not hold.
        add_columns: The table may take over columns and wider types, and optional columns may be missing.
        typed: Files say the types of their columns.
    """

    batch_column: str
    required: frozenset[str] = frozenset()
    add_columns: bool = False
    typed: bool = True


@dataclass(frozen=True)
class Fits:
    """Every column finds its place."""


@dataclass(frozen=True)
class Lacks:
    """The table could take over these columns: such as it does not have, or has of a narrower type."""

    columns: pa.Schema


@dataclass(frozen=True)
class Misfit:
    """Why the file cannot become rows of the table."""

    message: str


def compare(file: pa.Schema, table: pa.Schema, rules: Rules) -> Fits | Lacks | Misfit:
    """Compare a file's columns with the table's, by name."""
    wanted: list[pa.Field] = []
    for column in table:
        found = file.names.count(column.name)
        if found > 1:
            return Misfit(f"column {column.name} is there {found} times")
        if not found:
            if missing := _missing(column, file, rules):
                return Misfit(missing)
            continue
        actual = file.field(column.name).type
        if fits(actual, column.type):
            continue
        wider = as_column(actual)
        text = f"column {column.name} is {kind_of(actual)}, expected {column.type}"
        if wider is None or not promotes(column.type, wider) or column.name == rules.batch_column:
            return Misfit(f"{text}, which {OPTION} cannot change either")
        if not rules.add_columns:
            return Misfit(f"{text}; {OPTION} would widen the table's")
        wanted.append(pa.field(column.name, wider))
    for name in dict.fromkeys(n for n in file.names if n not in table.names):
        taken = _taken_over(name, file, table, rules)
        if isinstance(taken, str):
            return Misfit(taken)
        wanted += taken
    return Lacks(pa.schema(wanted)) if wanted else Fits()


def _missing(column: pa.Field, file: pa.Schema, rules: Rules) -> str:
    """Why a column may not be missing; nothing when it may."""
    required = column.name in rules.required
    if column.name == rules.batch_column or (rules.add_columns and not required):
        return ""
    why = "the table requires it" if required else f"{OPTION} would read it as null"
    return f"column {column.name} ({column.type}) is missing; the file has {len(file.names)} columns; {why}"


def _taken_over(name: str, file: pa.Schema, table: pa.Schema, rules: Rules) -> list[pa.Field] | str:
    """A column that the table does not have as one it could have, none if it has no values; or why it cannot."""
    at = f"number {file.names.index(name) + 1} of {len(file.names)}"
    if (count := file.names.count(name)) > 1:
        return f"a column that the table does not have ({at}) is there {count} times"
    actual = file.field(name).type
    text = f"the file has a column that the table does not have ({at}); the table has {_listed(table.names)}"
    if not rules.typed:
        return f"{text}; add it to the table first, since files of this format do not say of which type it is"
    if not rules.add_columns:
        return f"{text}; {OPTION} would add it ({kind_of(actual)})"
    if pa.types.is_null(actual):
        return []
    if clash := _clash(name, table.names):
        return f"{text}; it cannot be added beside {clash}, from which it differs only in case"
    if not name or "." in name or name.lower() in RESERVED:
        return f"{text}; it cannot be added, since its name is empty, has a dot in it or is reserved"
    column = as_column(actual)
    if column is None:
        return f"{text}; {OPTION} cannot add a column of type {kind_of(actual)}"
    return [pa.field(name, column)]


def _clash(name: str, known: Sequence[str]) -> str | None:
    """Spark does not tell names apart by case."""
    return next((k for k in known if k != name and k.lower() == name.lower()), None)


def kind_of(actual: pa.DataType) -> str:
    """A type as a file has it, without the names of fields within it."""
    if pa.types.is_struct(actual):
        return "a struct"
    if pa.types.is_map(actual):
        return "a map"
    return "a list" if pa.types.is_nested(actual) else str(actual)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:30]) + (", …" if len(names) > 30 else "")


@dataclass(frozen=True)
class Evolution:
    """`columns`: what the table takes over, added ones and those of a wider type; `refused`: batches that want what others
    do not allow, with the file and the sentence."""

    columns: pa.Schema
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def plan_evolution(table: pa.Schema, wanted: Mapping[str, Sequence[tuple[str, pa.Schema]]]) -> Evolution:
    """Unite what the batches of a run want of the table.

    Batches come in the order of their ids, so that the same batches always give the same table. One that contradicts the
    table or a batch before it is refused as a whole, and the table takes nothing over from it.

    Args:
        wanted: By batch id, each file's URI and the columns it lacks.
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
    """Put a column into `taken` if it is new or wider. `table`: the columns that may be named. Returns: why it cannot be."""
    current = known.get(column.name)
    if current is None:
        if clash := _clash(column.name, list(known)):
            beside = f"the column {clash}" if clash in table else "a column of another batch of this run"
            return f"a column that the table does not have cannot be added beside {beside}: their names differ only in case"
    elif fits(column.type, current):
        return None
    elif not promotes(current, column.type):
        which = f"column {column.name}" if column.name in table else "a column that the table does not have"
        return (
            f"{which} is {kind_of(column.type)}, and {kind_of(current)} in another batch of this run; {OPTION} adds it once, and "
            "Iceberg has no promotion between the two"
        )
    taken[column.name] = column.type
    return None
