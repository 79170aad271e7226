"""The kinds of Lethe's resources: their names, models, printed columns, and rules about whole objects. Pure.

`dev/generate.py` writes crds/ from them.
"""

from typing import Final

from lethe.contract.crd import PrinterColumn, Resource
from lethe.contract.dataset import DatasetSpec
from lethe.contract.restatement import RestatementSpec
from lethe.contract.schema import Rule
from lethe.contract.status import DatasetStatus, RestatementStatus, VacuumPolicyStatus
from lethe.contract.vacuum_policy import VacuumPolicySpec


def _condition(type_: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{type_}")].{field}'


_AGE: Final = PrinterColumn("Age", "date", ".metadata.creationTimestamp", "Time since creation.")
_REASON: Final = PrinterColumn(
    "Reason", "string", _condition("Ready", "reason"), "The reason of the condition Ready.", wide=True
)

DATASET: Final = Resource(
    kind="Dataset",
    plural="datasets",
    short_name="dset",
    description=(
        "A Dataset is an Iceberg table together with the buffer where producers put batches for it. Lethe moves the "
        "batches into the table and can take them back. Deleting a Dataset deletes neither the table nor the buffer."
    ),
    spec=DatasetSpec,
    status=DatasetStatus,
    columns=(
        PrinterColumn("Table", "string", ".spec.table.name", "The Iceberg table."),
        PrinterColumn(
            "Ready", "string", _condition("Ready", "status"), "Whether the operator can read the table and the buffer."
        ),
        PrinterColumn("Promoted", "integer", ".status.batches.promoted", "Batches that are part of the table."),
        PrinterColumn("Tombstones", "integer", ".status.tombstones.active", "Active tombstones."),
        PrinterColumn("Buffered", "integer", ".status.buffer.batches", "Complete batches that wait in the buffer."),
        PrinterColumn(
            "Vacuum",
            "string",
            ".status.vacuum.decision",
            "The decision about a vacuum: Due, Later, Running or NeedsApproval.",
        ),
        PrinterColumn("Vacuum reason", "string", ".status.vacuum.reason", "Why, or what it waits for.", wide=True),
        PrinterColumn(
            "On time",
            "string",
            _condition("EvictionOnTime", "status"),
            "Whether bytes are gone by their evictBy; empty when nothing has one.",
            wide=True,
        ),
        _AGE,
        PrinterColumn(
            "Refused", "integer", ".status.batches.refused", "Batches that could not be promoted.", wide=True
        ),
        _REASON,
        PrinterColumn(
            "Lag",
            "integer",
            ".status.source.lag",
            "Messages of the source's topics that are not in the buffer yet.",
            wide=True,
        ),
    ),
    rules=(
        Rule(
            "size(self.metadata.name) <= 63 && !self.metadata.name.contains('.')",
            "metadata.name can have at most 63 characters and no dots, since names of Jobs and ConfigMaps are "
            "derived from it",
        ),
    ),
)
RESTATEMENT: Final = Resource(
    kind="Restatement",
    plural="restatements",
    short_name="rst",
    description=(
        "A Restatement corrects a Dataset once: it replaces batches by a new one, reverts batches, erases records or "
        "undoes an earlier revert. With a subject, it erases the records of a person from several Datasets. It is a "
        "request, not a state: after creation only suspend, cancel and "
        "ttlSecondsAfterFinished can change, and applying the same request again changes nothing."
    ),
    spec=RestatementSpec,
    status=RestatementStatus,
    columns=(
        PrinterColumn(
            "Dataset", "string", ".spec.datasetRef.name", "The Dataset that is restated; empty for a subject."
        ),
        PrinterColumn("Operation", "string", ".spec.operation", "What is done to it."),
        PrinterColumn("Phase", "string", ".status.phase", "How far it is."),
        PrinterColumn("Rows deleted", "integer", ".status.result.rowsDeleted", "Rows that readers no longer see."),
        PrinterColumn("Rows added", "integer", ".status.result.rowsAdded", "Rows of the replacement."),
        PrinterColumn(
            "Rows erased",
            "integer",
            ".status.result.rowsErased",
            "Of an Erase by records, or by the keys of a replacement: rows that were removed from data files.",
        ),
        PrinterColumn(
            "Rows redacted", "integer", ".status.result.rowsRedacted", "Rows whose values a Redact replaced.", wide=True
        ),
        PrinterColumn(
            "Tombstones", "integer", ".status.result.tombstonesAdded", "Tombstones that the commit added.", wide=True
        ),
        PrinterColumn(
            "Erased",
            "string",
            _condition("Erased", "status"),
            "Whether its bytes are verified to be gone; empty if they need not be.",
        ),
        PrinterColumn(
            "Erased reason", "string", _condition("Erased", "reason"), "Why its bytes are not gone yet.", wide=True
        ),
        PrinterColumn(
            "Progress", "string", ".status.progress", "Of the active run, or of the Datasets of a subject.", wide=True
        ),
        PrinterColumn("Due", "string", ".status.erasure.dueTime", "When its bytes must be gone.", wide=True),
        PrinterColumn(
            "Snapshot", "integer", ".status.result.snapshotId", "The Iceberg snapshot that holds it.", wide=True
        ),
        _AGE,
        _REASON,
    ),
    rules=(
        Rule("size(self.metadata.name) <= 253", "metadata.name can have at most 253 characters"),
        Rule(
            "!has(self.spec.undoes) || self.spec.undoes.name != self.metadata.name",
            "undoes must name another Restatement",
            ".spec.undoes.name",
        ),
    ),
)
VACUUM_POLICY: Final = Resource(
    kind="VacuumPolicy",
    plural="vacuumpolicies",
    short_name="vacpol",
    description=(
        "A VacuumPolicy says when the rows that tombstones hide are purged from the data files of the Datasets that "
        "it selects. If several policies select a Dataset, the most specific one applies, and among equally specific "
        "ones the oldest."
    ),
    spec=VacuumPolicySpec,
    status=VacuumPolicyStatus,
    columns=(
        PrinterColumn("Ready", "string", _condition("Ready", "status"), "Whether the policy is in force."),
        PrinterColumn(
            "Threshold", "integer", ".spec.triggers.activeTombstones", "Active tombstones that make a vacuum due."
        ),
        PrinterColumn("Datasets", "integer", ".status.datasetsCount", "Datasets that the policy applies to."),
        PrinterColumn(
            "Vacuum",
            "string",
            ".status.datasets[0].decision",
            "The decision about the Dataset that needs attention first: NeedsApproval, Due, Running or Later.",
        ),
        PrinterColumn("Vacuum reason", "string", ".status.datasets[0].reason", "Why, or what it waits for.", wide=True),
        PrinterColumn("Last run", "date", ".status.lastRunTime", "When a vacuum under this policy ended last."),
        _AGE,
        PrinterColumn("Approval", "string", ".spec.approval", "Whether a vacuum waits for an approval.", wide=True),
        PrinterColumn("Next window", "string", ".status.nextWindowTime", "When its window opens next.", wide=True),
        _REASON,
    ),
)
RESOURCES: Final = (DATASET, RESTATEMENT, VACUUM_POLICY)
