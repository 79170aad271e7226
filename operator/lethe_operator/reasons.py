"""Every reason of a condition or an event that the operator gives by itself, each with a line of meaning. Pure.

Reasons of runs (from `lethe.base.errors`, such as ReplacementAlreadyPromoted) are passed on as they come.
The reference docs print this list.
"""

from enum import StrEnum


class Reason(StrEnum):
    """A CamelCase word; `meaning` is what the reference prints."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> "Reason":
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    # --- a Dataset -------------------------------------------------------------------------------------------------
    AVAILABLE = "Available", "The table, its ledger and the buffer can be read; runs start when they are due."
    WAITING_FOR_FIRST_BATCH = "WaitingForFirstBatch", "The table is not there yet; the first consolidation creates it."
    PAUSED = "Paused", "The annotation lethe.dev/paused is set: nothing is started, what runs goes on."
    NOT_PAUSED = "NotPaused", "The annotation lethe.dev/paused is not set."
    NOT_SUPPORTED = "NotSupported", "A field asks for something that this version cannot do; the message names it."
    INVALID_SPEC = "InvalidSpec", "The spec does not have the shape that the CRD asks for; the message names the field."
    OUTSIDE_BOUNDARY = (
        "OutsideBoundary",
        "The resource, or the table that it names, uses a catalog, table, URI, queue, size or operation that the chart's value "
        "`boundaries` does not allow in its namespace; the message names the boundary and the value. Nothing outside is read.",
    )
    INVALID_TABLE_DEFINITION = (
        "InvalidTableDefinition",
        "No table can be made of spec.table.create; the message names the field.",
    )
    POD_TEMPLATE_NOT_ALLOWED = "PodTemplateNotAllowed", "runTemplate.podTemplate sets a field that it may not set."
    UNKNOWN_CATALOG = "UnknownCatalog", "spec.table.catalog names no catalog of the chart's value `catalogs`."
    UNSUPPORTED_CATALOG = (
        "UnsupportedCatalog",
        "spec.table.catalog names a catalog that a Dataset cannot use, such as one of type hadoop, or Nessie's REST catalog, "
        "which hides the history of tables; the message says which.",
    )
    CATALOG_UNAVAILABLE = "CatalogUnavailable", "The catalog does not answer; it is asked again."
    STORAGE_UNAVAILABLE = "StorageUnavailable", "The object store or file system does not answer; it is asked again."
    TABLE_NOT_FOUND = (
        "TableNotFound",
        "The table is not in the catalog and spec.table.create does not say how to make it.",
    )
    BATCH_COLUMN_MISSING = "BatchColumnMissing", "The table has no column named spec.batchColumn."
    TABLE_CLAIMED = "TableClaimed", "The table belongs to another Dataset."
    TABLE_HOLDS_BATCHES = (
        "TableHoldsBatches",
        "spec.table.name names the table that shows another one's batches, which Lethe writes itself.",
    )
    TABLE_NOT_PREPARED = (
        "TableNotPrepared",
        "An existing table lacks the sort order or the metrics mode, and spec.table.adopt is false.",
    )
    FORMAT_VERSION_MISMATCH = (
        "FormatVersionMismatch",
        "spec.deletes asks for deletes that do not go with the table's Iceberg format version; the message says what to change.",
    )
    TABLE_ROLLED_BACK = (
        "TableRolledBack",
        "The head that was seen last is no ancestor of the table's head. Everything stops until the annotation "
        "lethe.dev/accept-head names the head, or the table is brought back.",
    )
    TABLE_REPLACED = (
        "TableReplaced",
        "The table of this name is another one than the one seen before: it was dropped and created again, or renamed. "
        "Everything stops until the annotation lethe.dev/accept-head names the table's UUID, or the other table is brought back.",
    )
    TABLE_DROPPED = (
        "TableDropped",
        "The table that was seen before is no longer in the catalog under this name. No new one is created until the annotation "
        "lethe.dev/accept-head accepts that, or the table is brought back.",
    )
    LEDGER_LOST = (
        "LedgerLost",
        "The table's head leads to no ledger although the table had one: the table was replaced (CREATE OR REPLACE TABLE), or "
        "snapshots were expired while the head was another writer's. Everything stops until the head is rolled back or accepted.",
    )
    HEAD_ACCEPTED = (
        "HeadAccepted",
        "The annotation lethe.dev/accept-head was heard; work goes on from the head or the table that it names.",
    )
    BUFFER_OVERLAPS_TABLE = (
        "BufferOverlapsTable",
        "The buffer lies inside the table's location, or the other way round.",
    )
    BUFFER_LOCAL = (
        "BufferLocal",
        "spec.buffer.uri is a file: URI, and the catalog is not on the same machine. Nothing in it is read.",
    )
    BUFFER_HOLDS_TABLE = (
        "BufferHoldsTable",
        "The buffer is inside, equal to or above an Iceberg table or a catalog's warehouse, or holds files of a table. "
        "Nothing in it is moved or deleted.",
    )
    BUFFER_HOLDS_OTHER_OBJECTS = (
        "BufferHoldsOtherObjects",
        "The buffer is not claimed yet and holds objects that are no batches; spec.buffer.adopt would claim it all the same.",
    )
    BUFFER_CLAIMED = (
        "BufferClaimed",
        "The object _lethe.json in the buffer says that another Dataset owns it, of whatever namespace, release or cluster.",
    )
    TABLE_IN_OTHER_TABLE = (
        "TableInOtherTable",
        "The table keeps files in the folder of the table of an older Dataset, or the other way round.",
    )
    BUFFER_SHARED = "BufferShared", "An older Dataset has the same buffer, or one that contains it or lies in it."
    BUFFER_BEING_LISTED = "BufferBeingListed", "Which batches wait is told by a listing that is not done yet."
    NOTHING_WAITS = "NothingWaits", "No batch of the buffer waits for promotion."
    ENOUGH_BATCHES = "EnoughBatches", "At least consolidation.minBatches batches wait."
    ENOUGH_BYTES = "EnoughBytes", "At least consolidation.minBytes wait."
    OLD_ENOUGH = "OldEnough", "A batch waits for longer than consolidation.maxAgeSeconds."
    PAUSE_AFTER_RUN = "PauseAfterRun", "A run ended without settling its batches; they are tried again after a pause."
    PAUSE_BETWEEN_COMMITS = (
        "PauseBetweenCommits",
        "A run that commits has just ended; other writers of the table get a turn before the next one starts.",
    )
    RUN_RETRYING = "RunRetrying", "A run failed for a reason that may pass; it is started again after a pause."
    NAME_TAKEN = "NameTaken", "An object with the name that Lethe needs belongs to somebody else."

    # --- the events of a buffer ------------------------------------------------------------------------------------
    QUEUE_READ = "QueueRead", "The queue of spec.buffer.events answers; new batches are seen within a window."
    QUEUE_NOT_ASKED = (
        "QueueNotAsked",
        "The queue of spec.buffer.events has not answered yet since the operator started.",
    )
    QUEUE_UNAVAILABLE = (
        "QueueUnavailable",
        "The queue does not answer; it is asked again, the buffer is listed meanwhile.",
    )
    QUEUE_NOT_FOUND = "QueueNotFound", "There is no queue of that URL; it is asked for again."
    QUEUE_ACCESS_DENIED = (
        "QueueAccessDenied",
        "The operator's credentials may not read the queue, or not delete from it.",
    )
    QUEUE_OVER_LIMIT = "QueueOverLimit", "Too many messages of the queue were received and not deleted; it waits."
    QUEUE_SHARED = "QueueShared", "An older Dataset reads the same queue; this one leaves it alone."

    # --- a run -----------------------------------------------------------------------------------------------------
    RUN_STARTED = "RunStarted", "A Job was created for a run."
    RUN_SUCCEEDED = "RunSucceeded", "A run ended well; the message says what it did."
    HEAD_REANCHORED = (
        "HeadReanchored",
        "Another writer had committed; a run gave the table's head a ledger of its own again.",
    )
    RUN_FAILED = "RunFailed", "A run ended badly and said no reason of its own."
    OOM_KILLED = "OOMKilled", "The driver went over its memory limit. Raise runTemplate.driver.memory."
    DEADLINE_EXCEEDED = (
        "DeadlineExceeded",
        "A run took longer than a run may and was stopped; or a Restatement was not committed within spec.deadlineSeconds.",
    )
    DRIVER_LOST = "DriverLost", "The driver's pod went away before it could say how it ended."
    SHARED_RUN_ENDED = (
        "SharedRunEnded",
        "The driver that several Datasets share ended before it came to this one, which is tried again with one of its own.",
    )
    COMMITTER_AWAY = (
        "CommitterAway",
        "The committer of the namespace was asked for a run and went away; a Job carries it out instead.",
    )
    COMMIT_NOT_SEEN = "CommitNotSeen", "A run ended well, but the table does not know of it; it is started again."
    POD_WAITING = "PodWaiting", "A run's pod does not start; the message says what Kubernetes says."
    LAUNCH_FAILED = "LaunchFailed", "Kubernetes refused an object of a run; the message says why."

    # --- a Restatement ---------------------------------------------------------------------------------------------
    SUCCEEDED = "Succeeded", "The request is part of the table's history."
    PLANNED = "Planned", "It is a dry run, and status.plan says what would be done. Nothing was changed."
    QUEUED = "Queued", "It waits for its turn: runs that commit to one table do so one after the other."
    RUNNING = "Running", "Its run is under way."
    WAITING_FOR_RESTATEMENT = (
        "WaitingForRestatement",
        "Another Restatement goes first: it makes a batch that this one restates, or came before and is about the same batch.",
    )
    WAITS_FOR_BATCHES = (
        "WaitsForBatches",
        "An Erase by records, or a Replay with keyColumns, waits for the batches that lay in the buffer when it was created; "
        "they are promoted at once.",
    )
    SECRET_NOT_ALLOWED = (
        "SecretNotAllowed",
        "spec.rows.valuesFrom names a Secret that the chart's value erase.allowedSecrets does not allow.",
    )
    SUSPENDED = "Suspended", "spec.suspend is true."
    CANCELLING = (
        "Cancelling",
        "spec.cancel is true, and whether it came too late is not known yet: its run is being stopped, goes on for others of its "
        "group, or the table cannot be read.",
    )
    CANCELLED = (
        "Cancelled",
        "spec.cancel was set before it was committed; nothing was changed. Succeeded is False, and Ready True: what was "
        "asked for last is so, and nobody has to act.",
    )
    DATASET_NOT_FOUND = "DatasetNotFound", "There is no Dataset of that name in the namespace; it is waited for."
    ROLLED_BACK = (
        "RolledBack",
        "The request was committed, and the table was rolled back to before it, or is another one now. The condition Succeeded "
        "turns False, since what it promised is not true any more, and True again if the table is brought back.",
    )
    UNDONE_RESTATEMENT_NOT_FOUND = (
        "UndoneRestatementNotFound",
        "spec.undoes names no Restatement of the same Dataset that is there; it is waited for.",
    )
    UNDONE_RESTATEMENT_NOT_COMMITTED = (
        "UndoneRestatementNotCommitted",
        "The Restatement that spec.undoes names ended without a commit, so there is nothing to take back.",
    )
    REPLACEMENT_IN_BUFFER = (
        "ReplacementInBuffer",
        "The replacement lies in the buffer and would be loaded a second time.",
    )
    PLACE_IN_TABLE = (
        "PlaceInTable",
        "spec.replacement.uri or spec.batchIdsFrom.uri is inside, equal to or above an Iceberg table. Nothing in it is read.",
    )
    PLACE_LOCAL = (
        "PlaceLocal",
        "spec.replacement.uri or spec.batchIdsFrom.uri is a file: URI, and the catalog is not on the same machine.",
    )
    LIST_NOT_FOUND = (
        "ListNotFound",
        "The ConfigMap, key or object that spec.batchIdsFrom names is not there; it is looked for again.",
    )
    LIST_NOT_ALLOWED = (
        "ListNotAllowed",
        'The ConfigMap that spec.batchIdsFrom names has no label lethe.dev/batch-ids: "true"; it is looked at again.',
    )
    INVALID_ID_LIST = (
        "InvalidIdList",
        "What spec.batchIdsFrom names is no list of batch ids; the message says in which line.",
    )
    LIST_CHANGED = (
        "ListChanged",
        "The list that spec.batchIdsFrom names is another one than when it was first looked at; nothing was changed.",
    )
    RECORD_NOT_SIGNED = (
        "RecordNotSigned",
        "An event: the record of an erasure is not what the ledger says, or the storage did not answer, so the operator did not "
        "sign it. Erased does not become True before it is signed.",
    )
    VALUES_CHANGED = (
        "ValuesChanged",
        "The values of spec.rows are others than when a Restatement of this name and spec was carried out; nothing was erased.",
    )
    VALUES_NOT_COMPARABLE = (
        "ValuesNotComparable",
        "A Restatement of this name and spec was carried out, and whether its values were those of spec.rows is unknown; nothing "
        "was erased.",
    )
    ERASED = (
        "Erased",
        "The storage was seen to have none of the files that held its rows; status.erasure.record says how that was seen.",
    )
    ROWS_IN_TABLE = "RowsInTable", "Data files of the table hold its rows until a vacuum purges them."
    ERASURE_BLOCKED = (
        "ErasureBlocked",
        "Its rows left the table's data files; a tag, branch, snapshot or object lock holds them, which the message names.",
    )
    ERASURE_NOT_VERIFIED = (
        "ErasureNotVerified",
        "Its rows left the table's data files; that the storage has none of them is yet to be seen.",
    )
    ERASURE_OVERDUE = "ErasureOverdue", "Rows were to be gone by now and are not; the message says what they wait for."
    ERASURE_UNDONE = "ErasureUndone", "It was undone, so that its rows stay."
    ERASURE_NOT_WATCHED = (
        "ErasureNotWatched",
        "It was committed by a version of Lethe that left no obligation; evictBy is kept with the tombstones.",
    )
    EXPIRED = "Expired", "ttlSecondsAfterFinished has passed; the resource is deleted, the table remembers the request."

    # --- a VacuumPolicy --------------------------------------------------------------------------------------------
    IN_FORCE = "InForce", "The policy decides for the Datasets that it selects."
    INVALID_WINDOW = "InvalidWindow", "spec.window has a schedule or a time zone that cannot be understood."
    WINDOW_NEVER_OPENS = (
        "WindowNeverOpens",
        "spec.window.schedule names a day that never comes; only an evictBy, or the annotation lethe.dev/vacuum-now, starts one.",
    )
    EVICT_BY_NEAR = (
        "EvictByNear",
        "An evictBy is near: a vacuum has to start now to be done by then, or triggers.evictByLeadSeconds says so.",
    )
    TOO_MANY_TOMBSTONES = "TooManyTombstones", "The table has at least triggers.activeTombstones active tombstones."
    TOO_MANY_HIDDEN_ROWS = (
        "TooManyHiddenRows",
        "At least triggers.tombstonedRowsPercent of the table's rows are hidden by tombstones.",
    )
    TOMBSTONE_TOO_OLD = (
        "TombstoneTooOld",
        "The oldest active tombstone is older than triggers.oldestTombstoneAgeSeconds.",
    )
    VACUUM_NOW = "VacuumNow", "The annotation lethe.dev/vacuum-now asks for a vacuum."
    INVALID_VACUUM_NOW = (
        "InvalidVacuumNow",
        "The value of the annotation lethe.dev/vacuum-now cannot be read; the message says why.",
    )
    WINDOW_CLOSED = "WindowClosed", "A vacuum is due and waits until the window of its VacuumPolicy opens."
    WAITS_FOR_OTHER_VACUUMS = (
        "WaitsForOtherVacuums",
        "A vacuum is due and waits for those of other Datasets, since limits.concurrentRuns says how many may run at once.",
    )
    NEEDS_APPROVAL = (
        "NeedsApproval",
        "A vacuum is due and planned; the message says how to approve the plan, after which it purges.",
    )
    BELOW_TRIGGERS = "BelowTriggers", "No trigger has fired."
    NOTHING_LEFT = (
        "NothingLeft",
        "A vacuum of this very snapshot has ended, or the last one found nothing to purge; the message says when one follows.",
    )
    LESS_SPECIFIC = "LessSpecific", "A policy with more matching labels decides for this Dataset."
    TIE_LOST = "TieLost", "An equally specific, older policy decides for this Dataset."
    TIE_WON = "TieWon", "Another policy is equally specific; this one is older and decides."
    DATASET_NOT_READY = "DatasetNotReady", "The Dataset cannot be vacuumed now; its condition Ready says why."

    # --- evictBy, of a Dataset -------------------------------------------------------------------------------------
    ON_TIME = "OnTime", "A vacuum starts early enough for the first evictBy, as far as is known."
    NO_VACUUM_POLICY = (
        "NoVacuumPolicy",
        "Bytes must be gone by an evictBy, and no VacuumPolicy selects the Dataset, so that nobody purges them.",
    )
    EVICT_BY_INFEASIBLE = (
        "EvictByInfeasible",
        "By what earlier vacuums took, bytes cannot be gone by their evictBy any more.",
    )
    EVICT_BY_MISSED = "EvictByMissed", "An evictBy has passed, and the bytes are not gone, as far as is known."
