"""The reasons that the operator sets in conditions and events, each with its meaning. Pure.

The operator copies the reasons that a run reports (from `lethe.base.errors`, such as ReplacementAlreadyPromoted) unchanged.
The reference docs print this list.
"""

from enum import StrEnum


class Reason(StrEnum):
    """A CamelCase word for programs. It is a string, so it can be compared with the reason in a status."""

    meaning: str
    """The explanation in the reference docs."""

    def __new__(cls, value: str, meaning: str) -> "Reason":
        """Make a member that equals its value; the meaning is only an attribute."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    # --- a Dataset -------------------------------------------------------------------------------------------------
    AVAILABLE = "Available", "The operator can read the table, its ledger and the buffer. Runs start when they are due."
    WAITING_FOR_FIRST_BATCH = (
        "WaitingForFirstBatch",
        "The table does not exist yet. The first consolidation creates it.",
    )
    PAUSED = "Paused", "The annotation lethe.dev/paused is set. No run starts; active runs continue."
    NOT_PAUSED = "NotPaused", "The annotation lethe.dev/paused is not set."
    NOT_SUPPORTED = "NotSupported", "This version does not support the value of a field. The message names the field."
    INVALID_SPEC = "InvalidSpec", "The spec does not match the schema of the CRD. The message names the field."
    OUTSIDE_BOUNDARY = (
        "OutsideBoundary",
        "The resource, or the table that it names, uses a catalog, table, URI, queue, topic, size or operation that the chart's "
        "value `boundaries` does not allow in its namespace. The message names the boundary and the value. Nothing outside is "
        "read.",
    )
    INVALID_TABLE_DEFINITION = (
        "InvalidTableDefinition",
        "spec.table.create does not define a valid table. The message names the field.",
    )
    POD_TEMPLATE_NOT_ALLOWED = (
        "PodTemplateNotAllowed",
        "runTemplate.podTemplate sets a field or value that the chart does not allow. The message names it.",
    )
    UNKNOWN_CATALOG = "UnknownCatalog", "spec.table.catalog is not a catalog of the chart's value `catalogs`."
    UNSUPPORTED_CATALOG = (
        "UnsupportedCatalog",
        "spec.table.catalog names a catalog that a Dataset cannot use, such as one of type hadoop, or Nessie's REST catalog, "
        "which hides the history of tables. The message says why.",
    )
    UNSAFE_PROPERTY = (
        "UnsafeProperty",
        "The catalog answered with a host that the configuration does not name, or the table has a property that names a class "
        "or a host. The message names the property. `docs/catalogs.md` has the rules.",
    )
    CATALOG_UNAVAILABLE = "CatalogUnavailable", "The catalog does not answer. The operator retries."
    STORAGE_UNAVAILABLE = "StorageUnavailable", "The object store or file system does not answer. The operator retries."
    TABLE_NOT_FOUND = (
        "TableNotFound",
        "The table does not exist, and spec.table.create is not set.",
    )
    TABLE_IS_VIEW = "TableIsView", "spec.table.name is a view in the catalog. A Dataset needs a table."
    BATCH_COLUMN_MISSING = "BatchColumnMissing", "The table has no column named spec.batchColumn."
    TABLE_CLAIMED = "TableClaimed", "Another Dataset has claimed the table."
    TABLE_HOLDS_BATCHES = (
        "TableHoldsBatches",
        "spec.table.name is a table of batches, which Lethe itself writes for another table.",
    )
    TABLE_NOT_PREPARED = (
        "TableNotPrepared",
        "The existing table lacks the required sort order or metrics mode, and spec.table.adopt is false.",
    )
    FORMAT_VERSION_MISMATCH = (
        "FormatVersionMismatch",
        "The table's Iceberg format version does not support spec.deletes. The message says what to change.",
    )
    TABLE_ROLLED_BACK = (
        "TableRolledBack",
        "The table was rolled back: the last head that the operator saw is not an ancestor of the current head. All runs stop"
        " until the annotation lethe.dev/accept-head names the current head, or the table is rolled forward again.",
    )
    TABLE_REPLACED = (
        "TableReplaced",
        "The table has another UUID than before: it was dropped and created again, or renamed. All runs stop until the "
        "annotation lethe.dev/accept-head names the new UUID, or the previous table is restored.",
    )
    TABLE_DROPPED = (
        "TableDropped",
        "The table existed before and is no longer in the catalog under this name. Lethe does not create a new one until the "
        "annotation lethe.dev/accept-head accepts the loss, or the table is restored.",
    )
    LEDGER_LOST = (
        "LedgerLost",
        "The table had a ledger, and its current head does not lead to one: the table was replaced (CREATE OR REPLACE TABLE),"
        " or snapshots were expired while another writer's snapshot was the head. All runs stop until the head is rolled back"
        " or accepted.",
    )
    HEAD_ACCEPTED = (
        "HeadAccepted",
        "The operator accepted the annotation lethe.dev/accept-head. Work continues from the head or table that it names.",
    )
    INVALID_HOLD = (
        "InvalidHold",
        "The filter of one of spec.holds is not a condition on the columns of the table. The message names the hold. No vacuum "
        "and no Erase of the Dataset starts until it is corrected.",
    )
    LEGAL_HOLD = (
        "LegalHold",
        "A hold of the Dataset covers rows that would be removed. The message names the hold, and until when it lasts. What "
        "waits goes on by itself when the hold has ended or is removed.",
    )
    BUFFER_OVERLAPS_TABLE = (
        "BufferOverlapsTable",
        "The buffer is inside the table's location, or the table's location is inside the buffer.",
    )
    BUFFER_LOCAL = (
        "BufferLocal",
        "spec.buffer.uri is a file: URI, and the catalog is not local. Lethe reads nothing in it.",
    )
    BUFFER_HOLDS_TABLE = (
        "BufferHoldsTable",
        "The buffer is inside, equal to or above an Iceberg table or a catalog's warehouse, or holds files of a table. "
        "Lethe moves and deletes nothing in it.",
    )
    BUFFER_HOLDS_OTHER_OBJECTS = (
        "BufferHoldsOtherObjects",
        "The buffer is not claimed yet and contains objects that are not batches. Set spec.buffer.adopt: true to claim it "
        "anyway.",
    )
    BUFFER_CLAIMED = (
        "BufferClaimed",
        "Another Dataset, in this or another namespace, release or cluster, has claimed the buffer (object _lethe.json).",
    )
    TABLE_IN_OTHER_TABLE = (
        "TableInOtherTable",
        "The table's folders overlap those of an older Dataset's table.",
    )
    BUFFER_SHARED = "BufferShared", "The buffer is equal to, inside or above the buffer of an older Dataset."
    BUFFER_BEING_LISTED = (
        "BufferBeingListed",
        "Waiting for a listing of the buffer to finish: the first one, or that after a run.",
    )
    NOTHING_WAITS = "NothingWaits", "No batch in the buffer waits for promotion."
    ENOUGH_BATCHES = "EnoughBatches", "At least consolidation.minBatches batches wait."
    ENOUGH_BYTES = "EnoughBytes", "At least consolidation.minBytes wait."
    OLD_ENOUGH = "OldEnough", "A batch has waited longer than consolidation.maxAgeSeconds."
    PAUSE_AFTER_RUN = (
        "PauseAfterRun",
        "A run ended before it promoted or refused all its batches. Lethe retries them after a delay.",
    )
    PAUSE_BETWEEN_COMMITS = (
        "PauseBetweenCommits",
        "A run has just committed. The next one starts after a delay, so that other writers can commit too.",
    )
    RUN_RETRYING = "RunRetrying", "A run failed with a transient error. It is started again after a delay."
    NAME_TAKEN = "NameTaken", "An object with the name that Lethe needs exists and is not Lethe's."

    # --- the queue of a buffer -------------------------------------------------------------------------------------
    QUEUE_READ = "QueueRead", "The operator reads the queue of spec.buffer.events. It finds new batches within seconds."
    QUEUE_NOT_ASKED = (
        "QueueNotAsked",
        "The operator has not read the queue of spec.buffer.events since it started.",
    )
    QUEUE_UNAVAILABLE = (
        "QueueUnavailable",
        "The queue does not answer. The operator retries, and lists the buffer meanwhile.",
    )
    QUEUE_NOT_FOUND = "QueueNotFound", "There is no queue with this URL. The operator retries."
    QUEUE_ACCESS_DENIED = (
        "QueueAccessDenied",
        "The operator's credentials do not allow it to receive or delete messages of the queue.",
    )
    QUEUE_OVER_LIMIT = "QueueOverLimit", "The queue has too many messages in flight. The operator waits."
    QUEUE_SHARED = "QueueShared", "An older Dataset reads the same queue. This Dataset does not read it."

    # --- the condition SourceRead of a Dataset ---------------------------------------------------------------------
    SOURCE_READ = "SourceRead", "The topics of spec.source are read. status.source shows how far."
    SOURCE_STARTING = "SourceStarting", "The inlet begins to read the topics of spec.source."
    SOURCE_SUSPENDED = "SourceSuspended", "spec.source.kafka.suspend is true. Nothing is read."
    INLET_SILENT = (
        "InletSilent",
        "The inlet has not reported for some minutes, or never. Enable the chart's value inlet, or look at its pod's log.",
    )
    CLUSTER_NOT_FOUND = (
        "ClusterNotFound",
        "spec.source.kafka.cluster is not a cluster of the chart's value `inlet.clusters`.",
    )
    TOPIC_NOT_FOUND = "TopicNotFound", "The Kafka cluster lacks a topic of spec.source.kafka.topics."
    BROKER_AWAY = "BrokerAway", "The Kafka cluster does not answer. The inlet retries; nothing is lost."
    SOURCE_DENIED = (
        "SourceDenied",
        "The Kafka cluster rejects the inlet's credentials, or they may not read the topics. Correct the chart's value "
        "inlet.clusters. The inlet retries.",
    )
    SOURCE_REPLACED = (
        "SourceReplaced",
        "The cluster or a topic is another one than the one that was read before, so offsets mean something else. The message "
        "says which. Nothing is read.",
    )
    OFFSETS_LOST = (
        "OffsetsLost",
        "Messages have expired in Kafka before they were read. The message says which. Nothing is read until "
        "spec.source.kafka.lostOffsets is Skip.",
    )
    TABLE_NOT_READY = "TableNotReady", "The source waits until the Dataset has its table."
    REGISTRY_AWAY = "RegistryAway", "The schema registry does not answer. The inlet retries; nothing is lost."
    NO_SCHEMA_REGISTRY = (
        "NoSchemaRegistry",
        "The Kafka cluster has no schema registry, and the source's framing needs one.",
    )
    INVALID_SCHEMA = "InvalidSchema", "spec.source.kafka.schema cannot be used. The message says why."
    EPOCH_LOG_UNREADABLE = "EpochLogUnreadable", "A file of the epoch log in `_inlet/` of the buffer cannot be read."
    SOURCE_FAILED = (
        "SourceFailed",
        "Reading the source failed for another reason. The inlet retries; its log says more.",
    )

    # --- the condition EventsPublished of a Dataset ----------------------------------------------------------------
    EVENTS_DELIVERED = "EventsDelivered", "Status events are delivered to the sink, or there is nothing to deliver."
    SINK_UNAVAILABLE = (
        "SinkUnavailable",
        "The sink of status events does not answer, or answers that it is overloaded. The operator retries; no event is lost.",
    )
    SINK_DENIED = (
        "SinkDenied",
        "The sink of status events rejects the operator's credentials. Correct the Secret that the chart's value "
        "events.secretName names. The operator retries.",
    )
    SINK_NOT_FOUND = (
        "SinkNotFound",
        "The topic or the URL of the sink of status events does not exist. Create it, or correct the chart's value events. The "
        "operator retries.",
    )
    MESSAGE_TOO_LARGE = (
        "MessageTooLarge",
        "The sink takes no message of this size. Decrease the chart's value events.maxEventBytes, or increase the sink's limit. "
        "The operator retries; later events of the Dataset wait.",
    )
    MESSAGE_REFUSED = (
        "MessageRefused",
        "The sink refused a status event. The message says how it answered. The operator retries; later events of the Dataset "
        "wait.",
    )
    CURSOR_UNREADABLE = (
        "CursorUnreadable",
        "The file that says how far the status events of the table are published cannot be read. The message says what to do.",
    )

    # --- a run -----------------------------------------------------------------------------------------------------
    RUN_STARTED = "RunStarted", "The operator created a Job for a run."
    RUN_SUCCEEDED = "RunSucceeded", "A run succeeded. The message says what it did."
    HEAD_REANCHORED = (
        "HeadReanchored",
        "Another writer had committed. A run attached the ledger to the new head.",
    )
    RUN_FAILED = "RunFailed", "A run failed without a reason of its own."
    OOM_KILLED = "OOMKilled", "The driver exceeded its memory limit. Increase runTemplate.driver.memory."
    DEADLINE_EXCEEDED = (
        "DeadlineExceeded",
        "A run exceeded its time limit and was stopped, or a Restatement was not committed within spec.deadlineSeconds.",
    )
    DRIVER_LOST = "DriverLost", "The driver's pod disappeared before it reported a result."
    RUN_DELETED = (
        "RunDeleted",
        "The Job or SparkApplication of a run was deleted before it ended. What the run committed stays. If it is still due, it "
        "starts again.",
    )
    COMMITTER_AWAY = (
        "CommitterAway",
        "The committer of the namespace became unavailable after it received a run. A Job carries out the run instead.",
    )
    WARM_DRIVER_AWAY = (
        "WarmDriverAway",
        "The warm driver of the namespace did not start, or became unavailable, after it received a run. A Job carries out the "
        "run instead.",
    )
    WARM_DRIVER_MADE_WAY = (
        "WarmDriverMadeWay",
        "An idle warm driver ended, because no node had room for a run's pod. Small runs are Jobs for some minutes.",
    )
    COMMIT_NOT_SEEN = "CommitNotSeen", "A run reported success, but the table has no commit of it. It is started again."
    POD_WAITING = "PodWaiting", "A run's pod does not start. The message is that of Kubernetes."
    RUN_SUSPENDED = (
        "RunSuspended",
        "The Job or SparkApplication of a run is suspended, for example until Kueue admits it to its queue. The run waits; it "
        "has neither started nor failed, and no time limit runs.",
    )
    SUBMISSION_FAILED = (
        "SubmissionFailed",
        "Kubeflow's operator could not create the driver of a SparkApplication. The message is that of spark-submit.",
    )
    LAUNCHER_NOT_AVAILABLE = (
        "LauncherNotAvailable",
        "runTemplate.launcher is SparkApplication, and the chart's value sparkOperator.enabled is false.",
    )
    EXECUTORS_MISSING = (
        "ExecutorsMissing",
        "Executors of a run were lost or do not start, for example because of a quota or because no node has room. The run goes "
        "on with those it has; without any, its driver works alone after runTemplate.executors.waitSeconds.",
    )
    LAUNCH_FAILED = "LaunchFailed", "Kubernetes rejected an object of a run. The message says why."

    VERSION_SKEW = (
        "VersionSkew",
        "A run reported another version of Lethe than the operator's. Right after an upgrade this is normal; otherwise the "
        "chart's values image.operator and image.spark name different releases. A run that fails with it was asked for something "
        "that its image does not know, and changed nothing.",
    )

    # --- a Restatement ---------------------------------------------------------------------------------------------
    SUCCEEDED = "Succeeded", "The restatement is committed to the table."
    PLANNED = "Planned", "This is a dry run. status.plan says what would be done. Nothing was changed."
    QUEUED = "Queued", "Waiting for its turn. Runs that commit to the same table start one after the other."
    RUNNING = "Running", "The run is active."
    WAITING_FOR_RESTATEMENT = (
        "WaitingForRestatement",
        "Waiting for another Restatement, which creates a batch that this one restates, or is older and names the same batch.",
    )
    CREATES_TABLE = (
        "CreatesTable",
        "A consolidation without batches creates the table, for which spec.source waits.",
    )
    WAITS_FOR_BATCHES = (
        "WaitsForBatches",
        "An Erase by records, a Replay with keyColumns, or a Redact waits until the batches that were in the buffer when it was "
        "created are promoted, also those of the Datasets in which it looks up values. Their promotion starts at once.",
    )
    SECRET_NOT_ALLOWED = (
        "SecretNotAllowed",
        "A valuesFrom of spec.rows, or spec.redact.hashKeyFrom, names a Secret that the chart's value erase.allowedSecrets does "
        "not allow.",
    )
    SUSPENDED = "Suspended", "spec.suspend is true."
    CANCELLING = (
        "Cancelling",
        "spec.cancel is true. It is not known yet whether the restatement was committed before: its run is being stopped or "
        "continues for other Restatements of its group, or the table cannot be read.",
    )
    CANCELLED = (
        "Cancelled",
        "spec.cancel was set before the commit. Nothing was changed. Succeeded is False; Ready is True, because no action is "
        "needed.",
    )
    DATASET_NOT_FOUND = (
        "DatasetNotFound",
        "The namespace has no Dataset of this name: of spec.datasetRef, or of a via of spec.rows. The operator waits for it.",
    )
    ROLLED_BACK = (
        "RolledBack",
        "The restatement was committed, and then the table was rolled back to an earlier snapshot or replaced. The condition "
        "Succeeded becomes False, and True again if the table is restored.",
    )
    UNDONE_RESTATEMENT_NOT_FOUND = (
        "UndoneRestatementNotFound",
        "spec.undoes is not a Restatement of the same Dataset. The operator waits for it.",
    )
    UNDONE_RESTATEMENT_NOT_COMMITTED = (
        "UndoneRestatementNotCommitted",
        "The Restatement that spec.undoes names ended without a commit, so there is nothing to undo.",
    )
    REPLACEMENT_IN_BUFFER = (
        "ReplacementInBuffer",
        "The replacement is inside the buffer, so a consolidation would load it a second time.",
    )
    PLACE_IN_TABLE = (
        "PlaceInTable",
        "spec.replacement.uri or spec.batchIdsFrom.uri is inside, equal to or above an Iceberg table. Lethe reads nothing in "
        "it.",
    )
    PLACE_LOCAL = (
        "PlaceLocal",
        "spec.replacement.uri or spec.batchIdsFrom.uri is a file: URI, and the catalog is not local.",
    )
    LIST_NOT_FOUND = (
        "ListNotFound",
        "The ConfigMap, key or object that spec.batchIdsFrom or a valuesFrom of spec.rows names does not exist. The operator "
        "retries.",
    )
    LIST_NOT_ALLOWED = (
        "ListNotAllowed",
        'The ConfigMap that spec.batchIdsFrom names does not have the label lethe.dev/batch-ids: "true". The operator retries.',
    )
    INVALID_ID_LIST = (
        "InvalidIdList",
        "spec.batchIdsFrom does not name a valid list of batch ids. The message gives the line.",
    )
    UNKNOWN_BATCHES = (
        "UnknownBatches",
        "spec.batchIds or spec.batchIdsFrom names batches that are in neither the table nor the buffer, and "
        "spec.unknownBatches is not Allow; the message names similar ids. Or the run that spec.selector names delivered no batch "
        "that the operation can change. Nothing was changed.",
    )
    TOO_MANY_BATCHES = (
        "TooManyBatches",
        "The run that spec.selector names delivered more batches than one Restatement may change. Nothing was changed.",
    )
    LIST_CHANGED = (
        "ListChanged",
        "A list that spec.batchIdsFrom or a valuesFrom of spec.rows names has changed since it was first read. Nothing was "
        "committed.",
    )
    RECORD_NOT_SIGNED = (
        "RecordNotSigned",
        "The operator did not sign the record of an erasure, because the record differs from what the ledger says or the "
        "storage did not answer. Erased stays False until the record is signed.",
    )
    VALUES_CHANGED = (
        "ValuesChanged",
        "A Restatement of this name and spec was carried out with other values than those of spec.rows. Nothing was changed.",
    )
    VALUES_NOT_COMPARABLE = (
        "ValuesNotComparable",
        "A Restatement of this name and spec was carried out, and its values cannot be compared with those of spec.rows. "
        "Nothing was changed.",
    )
    NO_DATASETS = (
        "NoDatasets",
        "No Dataset that spec.datasetSelector selects declares one of the subject's identities. One that does joins by itself.",
    )
    DATASETS_BLOCKED = (
        "DatasetsBlocked",
        "A subject cannot be erased or redacted in some of the Datasets until something is changed. The message and "
        "status.subject say what. After a failure of a Restatement, delete it: the operator makes it again.",
    )
    DERIVED_WITHOUT_IDENTITY = (
        "DerivedWithoutIdentity",
        "A Dataset is derived from one that has rows of the subject, and declares neither an identity nor a column with ids of "
        "batches.",
    )
    LOOKUPS_IN_CIRCLE = (
        "LookupsInCircle",
        "Datasets look up keys in one another, so none of them can be erased first.",
    )
    LOOKUP_ERASED = (
        "LookupErased",
        "A Dataset that joined late looks up keys in one where the request has erased or redacted the subject already.",
    )
    WAITS_FOR_LOOKUPS = (
        "WaitsForLookups",
        "The rows of the Dataset are needed until other Datasets have looked up keys in them.",
    )
    TOO_MANY_COLUMNS = (
        "TooManyColumns",
        "A Dataset declares more columns for the identities of a request than one Restatement takes.",
    )
    VALUES_NOT_DELETED = (
        "ValuesNotDeleted",
        "The operator has not deleted a Secret that spec.subject.deleteValues asks it to delete. It may not, or another "
        "Restatement needs it.",
    )
    REQUESTER_NOT_ALLOWED = (
        "RequesterNotAllowed",
        "The user who made the request may not erase from a Dataset. The message names the missing right.",
    )
    ERASED = (
        "Erased",
        "Verified: no file that held the rows is left in the storage. status.erasure.record names the evidence.",
    )
    ROWS_IN_TABLE = "RowsInTable", "Data files of the table contain the rows until a vacuum purges them."
    ERASURE_BLOCKED = (
        "ErasureBlocked",
        "The table's data files no longer contain the rows, but a tag, branch, snapshot or object lock keeps old files. The "
        "message names it.",
    )
    GC_DISABLED = (
        "GcDisabled",
        "The table's data files no longer contain the rows, but the table property gc.enabled is not true, so old files must not "
        "be deleted. Set it to true, or unset it.",
    )
    ERASURE_NOT_VERIFIED = (
        "ErasureNotVerified",
        "The table's data files no longer contain the rows. The storage has not been checked yet.",
    )
    ERASURE_OVERDUE = (
        "ErasureOverdue",
        "The deadline has passed, and the rows are not erased. The message says what blocks it.",
    )
    ERASURE_UNDONE = "ErasureUndone", "The restatement was undone, so its rows are kept."
    ERASURE_NOT_WATCHED = (
        "ErasureNotWatched",
        "The restatement was committed by a version of Lethe that did not track erasures. evictBy still applies to its "
        "tombstones.",
    )
    NATIVE_DELETES_WRITTEN = (
        "NativeDeletesWritten",
        "Every engine that applies Iceberg's deletes sees the result of the Restatement.",
    )
    NATIVE_DELETES_FOLLOW = (
        "NativeDeletesFollow",
        "Lethe's readers see the result of the Restatement. Other engines do when a run has written native deletes.",
    )
    EXPIRED = (
        "Expired",
        "ttlSecondsAfterFinished has passed. The resource is deleted; the table's ledger keeps the result.",
    )

    # --- a VacuumPolicy --------------------------------------------------------------------------------------------
    IN_FORCE = "InForce", "The policy applies to the Datasets that it selects."
    INVALID_WINDOW = "InvalidWindow", "spec.window has an invalid schedule or time zone."
    WINDOW_NEVER_OPENS = (
        "WindowNeverOpens",
        "spec.window.schedule never matches. Only an evictBy or the annotation lethe.dev/vacuum-now starts a vacuum.",
    )
    EVICT_BY_NEAR = (
        "EvictByNear",
        "An evictBy is near: a vacuum must start now to finish in time, or triggers.evictByLeadSeconds has been reached.",
    )
    TOO_MANY_TOMBSTONES = "TooManyTombstones", "The table has at least triggers.activeTombstones active tombstones."
    TOO_MANY_HIDDEN_ROWS = (
        "TooManyHiddenRows",
        "Tombstones hide at least triggers.tombstonedRowsPercent of the table's rows.",
    )
    TOMBSTONE_TOO_OLD = (
        "TombstoneTooOld",
        "The oldest active tombstone is older than triggers.oldestTombstoneAgeSeconds.",
    )
    ROWS_TOO_OLD = (
        "RowsTooOld",
        "The table has rows that are too old by spec.retention, or may have some since its last vacuum.",
    )
    INVALID_RETENTION = (
        "InvalidRetention",
        "The table has no column as spec.retention names, or that column has no time. The message says why.",
    )
    VACUUM_NOW = "VacuumNow", "The annotation lethe.dev/vacuum-now requests a vacuum."
    INVALID_VACUUM_NOW = (
        "InvalidVacuumNow",
        "The value of the annotation lethe.dev/vacuum-now is invalid. The message says why.",
    )
    WINDOW_CLOSED = "WindowClosed", "A vacuum is due and waits for the window of its VacuumPolicy."
    WAITS_FOR_OTHER_VACUUMS = (
        "WaitsForOtherVacuums",
        "A vacuum is due and waits for vacuums of other Datasets, because limits.concurrentRuns is reached.",
    )
    NEEDS_APPROVAL = (
        "NeedsApproval",
        "A vacuum is due and planned. The message says how to approve the plan; then the vacuum purges.",
    )
    BELOW_TRIGGERS = "BelowTriggers", "No trigger has fired."
    NOTHING_LEFT = (
        "NothingLeft",
        "A vacuum of the current snapshot has ended, or the last vacuum found nothing to purge. The message says when the "
        "next starts.",
    )
    LESS_SPECIFIC = "LessSpecific", "A policy with more matching labels applies to this Dataset."
    TIE_LOST = "TieLost", "An equally specific, older policy applies to this Dataset."
    TIE_WON = "TieWon", "Another policy is equally specific. This one is older and applies."
    DATASET_NOT_READY = "DatasetNotReady", "The Dataset cannot be vacuumed now. Its condition Ready says why."

    # --- the condition EvictionOnTime of a Dataset -----------------------------------------------------------------
    ON_TIME = "OnTime", "The next vacuum is expected to finish before the first evictBy."
    NO_VACUUM_POLICY = (
        "NoVacuumPolicy",
        "Rows have an evictBy, and no VacuumPolicy selects the Dataset, so no vacuum purges them.",
    )
    EVICT_BY_INFEASIBLE = (
        "EvictByInfeasible",
        "Given the duration of earlier vacuums, the next one cannot finish before the evictBy.",
    )
    EVICT_BY_MISSED = "EvictByMissed", "An evictBy has passed, and the rows are not known to be gone."
