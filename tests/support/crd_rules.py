"""Manifests that the rules of the resource definitions accept or refuse, with the messages of the API server."""

from typing import Any

from tests.support.documents import Document as Object
from tests.support.manifests import ROWS, dataset_manifest, named, policy_manifest, restatement_manifest

CHANGES = {"batchId": "b", "uri": "s3://lake/restated/b/", "keyColumns": ["tailnum", "day"], "opColumn": "op"}


EXACTLY_ONE_LIST = (
    "exactly one of batchIds, batchIdsFrom and selector is required when operation is Replay, Revert or Approve"
)


def checks(*specs: Any, **more: Any) -> Object:
    return dataset_manifest(checks=[{"name": f"c{n}", **spec} for n, spec in enumerate(specs)], **more)


FROM_A_MAP = {"configMapKeyRef": {"name": "lists", "key": "ids"}}


A_KEY = {"name": "s", "key": "k"}
HASH_KEY = {"secretKeyRef": {"name": "erase-hash-2026", "key": "key"}}
REDACT: Object = {
    "columns": [
        {"column": "customer.email", "method": "SetNull"},
        {"column": "name", "method": "Constant", "value": ""},
        {"column": "passengers.element.email", "method": "KeyedHash"},
    ]
}


SUBJECT = {
    "datasetSelector": {},
    "subject": {"identity": "customer", "valuesFrom": {"secretKeyRef": A_KEY}},
}


def subject_manifest(subject: Any = None, operation: str = "Erase", **spec: Any) -> Object:
    """An Erase or a Redact of a subject; without `subject`, of the customers in a Secret."""
    of = SUBJECT if subject is None else {**SUBJECT, "subject": subject}
    return restatement_manifest(operation, **{"datasetRef": None, "rows": None, **of, **spec})


def container(**fields: Any) -> Object:
    return {"podTemplate": {"spec": {"containers": [{"name": "spark", **fields}]}}}


def env(**variable: Any) -> Object:
    return container(env=[{"name": "X", **variable}])


def mount(path: str) -> Object:
    return container(volumeMounts=[{"name": "v", "mountPath": path}])


def volume(**source: Any) -> Object:
    return {"podTemplate": {"spec": {"volumes": [{"name": "v", **source}]}}}


KAFKA = {"cluster": "main", "topics": ["flights"], "format": "JSON"}
QUEUE = {"queueUrl": "https://sqs.eu-west-1.amazonaws.com/123456789012/flights"}


ACCEPTED = {
    "a Dataset with nothing optional": dataset_manifest(),
    "a Dataset's name of 63 characters": named("d" * 63, dataset_manifest()),
    "a Dataset's name with scaled in it": named("flights-scaled-down", dataset_manifest()),
    "a table in a nested namespace": dataset_manifest(table={"catalog": "main", "name": "a.b.c"}),
    "a hold until the last day of February": dataset_manifest(
        holds=[{"name": "case-7", "until": "2028-02-29T23:59:59.5+01:00", "reason": "audit"}]
    ),
    "a batch column with a space that is not of ASCII": dataset_manifest(batchColumn="batch\u00a0id"),
    "a local buffer": dataset_manifest(buffer={"uri": "file:///data/buffer"}),
    "a buffer of another format": dataset_manifest(buffer={"uri": "s3://l/b", "format": "avro"}),
    "a buffer of another dialect of CSV": dataset_manifest(
        buffer={
            "uri": "s3://l/b",
            "format": "csv",
            "csv": {"delimiter": "\t", "quote": "'", "escape": "\\", "nullText": "", "ignoreColumns": ["", "index"]},
        }
    ),
    "CSV without quotes and a header": dataset_manifest(
        buffer={"uri": "s3://l/b", "format": "csv", "csv": {"quote": "", "header": False}}
    ),
    "a buffer of files": dataset_manifest(buffer={"uri": "s3://l/b", "format": "csv", "layout": "File"}),
    "files that are registered": dataset_manifest(consolidation={"mode": "Register"}),
    "a buffer with events": dataset_manifest(buffer={"uri": "s3://l/b", "events": QUEUE}),
    "a window of all that may be in flight": dataset_manifest(
        buffer={"uri": "s3a://l/b", "events": {**QUEUE, "maxMessages": 7, "maxInFlight": 7}}
    ),
    "columns that may be added": dataset_manifest(schemaEvolution="AddColumns"),
    "batches that are not tracked": dataset_manifest(batchTracking={"enabled": False}),
    "a check of each kind": checks(
        {"notNull": ["a", "b"]},
        {"unique": ["a"], "onFailure": "Hold"},
        {"range": {"column": "a", "min": 0, "max": "1.5"}},
        {"range": {"column": "a", "min": "2026-01-01T00:00:00+00:00"}},
        {"values": {"column": "a", "allowed": ["x", 1]}},
        {"pattern": {"column": "a", "matches": "^[A-Z]+$"}},
        {"rowCount": {"min": 0, "max": 10, "ofLast": 5, "atLeastPercent": 50, "atMostPercent": 200}},
        {"condition": "a > 3"},
    ),
    "holds": dataset_manifest(
        holds=[
            {"name": "all"},
            {"name": "case-7", "filter": "v > 3", "until": "2027-03-31T00:00:00Z", "reason": "case 7"},
            {"name": "zone", "until": "2027-03-31T00:00:00.5+02:00"},
        ]
    ),
    "tombstones alone": dataset_manifest(deletes="Ledger"),
    "deletion vectors": dataset_manifest(
        deletes="DeletionVectors",
        table={"catalog": "main", "name": "air.flights", "create": {"schema": "id INT", "formatVersion": 3}},
    ),
    "position deletes": dataset_manifest(deletes="PositionDeletes"),
    "native deletes that always follow": dataset_manifest(nativeDeletes={"maxFilesPerCommit": 0}),
    "native deletes of large tables": dataset_manifest(nativeDeletes={"maxBytesPerCommit": "4Gi"}),
    "bytes as a number": dataset_manifest(consolidation={"minBytes": 1000}),
    "bytes as a quantity": dataset_manifest(consolidation={"minBytes": "1Gi"}),
    "a topic of JSON messages": dataset_manifest(source={"kafka": KAFKA}),
    "framed Avro messages": dataset_manifest(
        source={"kafka": {**KAFKA, "format": "Avro", "framing": "SchemaRegistry"}}
    ),
    "Avro messages with their schema": dataset_manifest(
        source={"kafka": {**KAFKA, "format": "Avro", "schema": "{}", "epoch": {"maxBytes": "1Gi"}}}
    ),
    "as many snapshots to keep as there may be": dataset_manifest(snapshots={"minToKeep": 3, "maxCount": 3}),
    "as many executors as there may be": dataset_manifest(runTemplate={"executors": {"min": 2, "max": 2}}),
    "executors with only a minimum": dataset_manifest(runTemplate={"executors": {"min": 2}}),
    "runs as SparkApplications in a queue": dataset_manifest(
        runTemplate={"launcher": "SparkApplication", "queue": "team-a", "executors": {"waitSeconds": 10}}
    ),
    "a driver's size": dataset_manifest(runTemplate={"driver": {"cpu": 1, "memory": "2Gi", "scratch": "10Gi"}}),
    "a variable with a value": dataset_manifest(runTemplate=env(value="1")),
    "a mount": dataset_manifest(runTemplate=mount("/mnt/a.b/c/")),
    "a variable from a Secret": dataset_manifest(runTemplate=env(valueFrom={"secretKeyRef": A_KEY})),
    "a volume of one kind": dataset_manifest(runTemplate=volume(emptyDir={})),
    "a Revert": restatement_manifest("Revert"),
    **{
        f"a {operation} of what a run delivered": restatement_manifest(
            operation, rows=None, batchIds=None, selector={"reference": "scheduled__2026-11-28T00:00:00+00:00"}
        )
        for operation in ("Replay", "Revert", "Erase", "Approve")
    },
    "a Revert with a list by reference": restatement_manifest("Revert", batchIds=None, batchIdsFrom=FROM_A_MAP),
    "a Revert with a list in a file": restatement_manifest(
        "Revert", batchIds=None, batchIdsFrom={"uri": "s3://lake/ids.txt"}
    ),
    "a Revert of a thousand long ids": restatement_manifest(batchIds=[f"{i:0>256}" for i in range(1000)]),
    "a Revert with a deadline": restatement_manifest("Revert", deadlineSeconds=1),
    "a dry run": restatement_manifest("Revert", dryRun=True),
    "a Replay": restatement_manifest("Replay"),
    "a Replay of rows by their keys": restatement_manifest("Replay", batchIds=None, replacement=CHANGES),
    "a Replay of batches, and of rows by one key": restatement_manifest(
        "Replay", replacement={**CHANGES, "keyColumns": ["id"]}
    ),
    "a Replay of listed batches, and of rows": restatement_manifest(
        "Replay", batchIds=None, batchIdsFrom=FROM_A_MAP, replacement=CHANGES
    ),
    "an Undo": restatement_manifest("Undo"),
    "an Approve": restatement_manifest("Approve", reason="known", ticket="OPS-1"),
    "an Erase by rows": restatement_manifest("Erase"),
    "an Erase of a subject": subject_manifest(),
    "a Redact of a subject": subject_manifest(operation="Redact", redact={**REDACT, "hashKeyFrom": HASH_KEY}),
    "an Erase of a subject with two identities": subject_manifest(
        {"anyOf": [{"identity": name, "valuesFrom": {"secretKeyRef": A_KEY}} for name in ("customer", "phone")]}
    ),
    "identities, one of them in another table": dataset_manifest(
        identities=[
            {"name": "customer", "column": "passengers.element.email"},
            {"name": "customer", "column": "card", "via": {"dataset": "cards", "from": "email", "to": "id"}},
        ],
        derivedFrom=[{"dataset": "bookings", "batchColumn": "source"}],
    ),
    "an Erase by values of several columns": restatement_manifest(
        "Erase",
        rows={
            "anyOf": [
                {"column": "customer.email", "valuesFrom": {"secretKeyRef": {"name": "erase-x", "key": "emails"}}},
                {
                    "column": "loyalty_id",
                    "valuesFrom": {"uri": "s3://lake/erase/emails.txt"},
                    "via": {"dataset": "bookings", "from": "customer.email", "to": "loyalty_id"},
                },
            ]
        },
    ),
    "an Erase by values of another Dataset": restatement_manifest(
        "Erase",
        rows={
            "column": "loyalty_id",
            "valuesFrom": {"uri": "s3://lake/erase/emails.txt"},
            "via": {"dataset": "bookings", "from": "customer.email", "to": "loyalty_id"},
        },
    ),
    "an Erase by batches": restatement_manifest("Erase", rows=None, batchIds=["a"]),
    "a Redact by rows": restatement_manifest("Redact"),
    "a Redact by batches with each method": restatement_manifest(
        "Redact", rows=None, batchIds=["a"], redact={**REDACT, "hashKeyFrom": HASH_KEY}
    ),
    "ids in any script": restatement_manifest(batchIds=["2013-01-01.UA", "größe/1 %", "航班"]),
    "a policy": policy_manifest(),
    "a policy with a window": policy_manifest(
        window={"schedule": "0 1 * * *", "timeZone": "Europe/Berlin", "durationSeconds": 60}
    ),
    "a policy with limits": policy_manifest(
        limits={"maxBytesPerRun": "100Gi", "maxRunSeconds": 7200, "concurrentRuns": 2}
    ),
    "a policy with thresholds of zero": policy_manifest(
        triggers={"oldestTombstoneAgeSeconds": 0, "evictByLeadSeconds": 0}
    ),
    "a policy with a retention by a column": policy_manifest(retention={"column": "booking.time", "maxAgeDays": 1}),
    "a policy with a retention by batches": policy_manifest(retention={"by": "BatchAge", "maxAgeDays": 365}),
    "a policy with maintenance": policy_manifest(
        maintenance={
            "rewriteManifests": True,
            "removeOrphanFiles": {"olderThanSeconds": 86400},
            "compactSmallFiles": True,
        }
    ),
    "a policy that removes orphans as it likes": policy_manifest(maintenance={"removeOrphanFiles": {}}),
    "a selector by values": policy_manifest(
        datasetSelector={"matchExpressions": [{"key": "team", "operator": "In", "values": ["air"]}]}
    ),
    "a selector by existence": policy_manifest(
        datasetSelector={"matchExpressions": [{"key": "team", "operator": "Exists"}]}
    ),
}


REFUSED = {
    "a Dataset's name of 64 characters": (named("d" * 64, dataset_manifest()), "at most 63 characters, no dots"),
    "a Dataset's name that is that of another one's executors": (
        named("flights-scaled", dataset_manifest()),
        "no -scaled at its end",
    ),
    "a Dataset's name with a dot": (named("a.b", dataset_manifest()), "at most 63 characters, no dots"),
    "a Dataset of another namespace": (
        {
            **restatement_manifest(),
            "spec": {**restatement_manifest()["spec"], "datasetRef": {"name": "../../other/datasets/flights"}},
        },
        "spec.datasetRef.name",
    ),
    "a list of another namespace": (
        restatement_manifest(
            batchIds=None, batchIdsFrom={"configMapKeyRef": {"name": "../../other/configmaps/x", "key": "k"}}
        ),
        "spec.batchIdsFrom.configMapKeyRef.name",
    ),
    "a Secret of another namespace": (
        restatement_manifest(
            "Erase", rows={"column": "v", "valuesFrom": {"secretKeyRef": {"name": "other/erase-x", "key": "k"}}}
        ),
        "spec.rows.valuesFrom.secretKeyRef.name",
    ),
    "an Undo of a Restatement of another namespace": (
        restatement_manifest("Undo", undoes={"name": "other/revert"}),
        "spec.undoes.name",
    ),
    "a table without a namespace": (dataset_manifest(table={"catalog": "main", "name": "flights"}), "spec.table.name"),
    "a batch column with a dot": (dataset_manifest(batchColumn="a.b"), "spec.batchColumn"),
    "a buffer that is no URI": (dataset_manifest(buffer={"uri": "/data/buffer"}), "spec.buffer.uri"),
    "a dialect of CSV for another format": (
        dataset_manifest(buffer={"uri": "s3://l/b", "csv": {}}),
        "csv needs format csv",
    ),
    "a delimiter that is also the quote": (
        dataset_manifest(buffer={"uri": "s3://l/b", "format": "csv", "csv": {"delimiter": '"'}}),
        "delimiter, quote and escape must differ",
    ),
    "an escape that is also the quote": (
        dataset_manifest(buffer={"uri": "s3://l/b", "format": "csv", "csv": {"escape": '"'}}),
        "delimiter, quote and escape must differ",
    ),
    "an escape without a quote": (
        dataset_manifest(buffer={"uri": "s3://l/b", "format": "csv", "csv": {"escape": "\\", "quote": ""}}),
        "escape needs quote",
    ),
    "columns to ignore without a header": (
        dataset_manifest(buffer={"uri": "s3://l/b", "format": "csv", "csv": {"header": False, "ignoreColumns": ["x"]}}),
        "ignoreColumns needs header",
    ),
    "a delimiter of two characters": (
        dataset_manifest(buffer={"uri": "s3://l/b", "format": "csv", "csv": {"delimiter": "||"}}),
        "spec.buffer.csv.delimiter",
    ),
    "events of a local buffer": (
        dataset_manifest(buffer={"uri": "file:///data/buffer", "events": QUEUE}),
        "events needs a buffer in S3",
    ),
    "events without a queue": (
        dataset_manifest(buffer={"uri": "s3://l/b", "events": {"windowSeconds": 5}}),
        "spec.buffer.events.queueUrl",
    ),
    "a queue that is no URL": (
        dataset_manifest(buffer={"uri": "s3://l/b", "events": {"queueUrl": "arn:aws:sqs:eu-west-1:1:q"}}),
        "spec.buffer.events.queueUrl",
    ),
    "a larger window than may be in flight": (
        dataset_manifest(buffer={"uri": "s3://l/b", "events": {**QUEUE, "maxMessages": 8, "maxInFlight": 7}}),
        "maxMessages cannot be greater than maxInFlight",
    ),
    "a window that outlasts its messages": (
        dataset_manifest(buffer={"uri": "s3://l/b", "events": {**QUEUE, "windowSeconds": 30, "visibilitySeconds": 30}}),
        "windowSeconds must be less than visibilitySeconds",
    ),
    "an unknown layout": (
        dataset_manifest(buffer={"uri": "s3://l/b", "layout": "Tree"}),
        'supported values: "Directory", "File"',
    ),
    "an unknown format": (
        dataset_manifest(buffer={"uri": "s3://l/b", "format": "xml"}),
        'supported values: "parquet", "orc", "avro", "json", "csv"',
    ),
    "an unknown schema evolution": (
        dataset_manifest(schemaEvolution="Everything"),
        'supported values: "Refuse", "AddColumns"',
    ),
    "a word for whether batches are tracked": (
        dataset_manifest(batchTracking={"enabled": "sometimes"}),
        "spec.batchTracking.enabled",
    ),
    "an unknown kind of deletes": (
        dataset_manifest(deletes="CopyOnWrite"),
        'supported values: "Auto", "Ledger", "DeletionVectors", "PositionDeletes"',
    ),
    "equality deletes": (
        dataset_manifest(deletes="EqualityDeletes"),
        'supported values: "Auto", "Ledger", "DeletionVectors", "PositionDeletes"',
    ),
    "files of another format that are registered": (
        dataset_manifest(buffer={"uri": "s3://l/b", "format": "orc"}, consolidation={"mode": "Register"}),
        "consolidation.mode Register needs buffer.format parquet",
    ),
    "a negative retention": (
        dataset_manifest(buffer={"uri": "s3://l/b", "retentionSeconds": -1}),
        "spec.buffer.retentionSeconds",
    ),
    "no bytes": (dataset_manifest(consolidation={"minBytes": 0}), "must be a quantity greater than 0, such as 128Mi"),
    "bytes that are no quantity": (
        dataset_manifest(consolidation={"minBytes": "much"}),
        "must be a quantity greater than 0",
    ),
    "no target size": (
        dataset_manifest(consolidation={"targetFileSizeBytes": "0Mi"}),
        "must be a quantity greater than 0",
    ),
    "a source whose buffer has another format": (
        dataset_manifest(source={"kafka": KAFKA}, buffer={"uri": "s3://l/b", "format": "json"}),
        "source needs buffer.format parquet",
    ),
    "a source whose buffer has files": (
        dataset_manifest(source={"kafka": KAFKA}, buffer={"uri": "s3://l/b", "layout": "File"}),
        "source needs buffer.layout Directory",
    ),
    "a source of nothing": (dataset_manifest(source={}), "spec.source.kafka"),
    "Avro messages without a schema": (
        dataset_manifest(source={"kafka": {**KAFKA, "format": "Avro"}}),
        "format Avro needs framing SchemaRegistry, or a schema",
    ),
    "JSON messages with a schema": (
        dataset_manifest(source={"kafka": {**KAFKA, "schema": "{}"}}),
        "schema is for format Avro",
    ),
    "a schema beside that of the registry": (
        dataset_manifest(source={"kafka": {**KAFKA, "format": "Avro", "framing": "SchemaRegistry", "schema": "{}"}}),
        "with framing SchemaRegistry, the registry has the schema",
    ),
    "the same topic twice": (
        dataset_manifest(source={"kafka": {**KAFKA, "topics": ["a", "a"]}}),
        "spec.source.kafka.topics",
    ),
    "an epoch of more than can be in memory": (
        dataset_manifest(source={"kafka": {**KAFKA, "epoch": {"maxBytes": "2Gi"}}}),
        "must be a quantity from 1 to 1Gi",
    ),
    "a commit that reads more than a committer should": (
        dataset_manifest(nativeDeletes={"maxBytesPerCommit": "5Gi"}),
        "must be a quantity from 1 to 4Gi",
    ),
    "no batches": (dataset_manifest(consolidation={"minBatches": 0}), "spec.consolidation.minBatches"),
    "more snapshots to keep than there may be": (
        dataset_manifest(snapshots={"minToKeep": 4, "maxCount": 3}),
        "minToKeep cannot be greater than maxCount",
    ),
    "more executors than there may be": (
        dataset_manifest(runTemplate={"executors": {"min": 3, "max": 2}}),
        "min cannot be greater than max",
    ),
    "an unknown launcher": (
        dataset_manifest(runTemplate={"launcher": "Pod"}),
        'supported values: "Job", "SparkApplication"',
    ),
    "a queue that cannot exist": (
        dataset_manifest(runTemplate={"queue": "Team A"}),
        "spec.runTemplate.queue in body should match",
    ),
    "no time for an executor to start": (
        dataset_manifest(runTemplate={"executors": {"waitSeconds": 5}}),
        "should be greater than or equal to 10",
    ),
    "a driver without memory": (
        dataset_manifest(runTemplate={"driver": {"memory": "0"}}),
        "must be a quantity greater than 0",
    ),
    "a service account": (
        dataset_manifest(runTemplate={"podTemplate": {"spec": {"serviceAccountName": "admin"}}}),
        'unknown field "spec.runTemplate.podTemplate.spec.serviceAccountName"',
    ),
    "security settings": (
        dataset_manifest(runTemplate={"podTemplate": {"spec": {"securityContext": {"runAsUser": 0}}}}),
        'unknown field "spec.runTemplate.podTemplate.spec.securityContext"',
    ),
    "a folder of the node": (
        dataset_manifest(runTemplate=volume(hostPath={"path": "/"})),
        'unknown field "spec.runTemplate.podTemplate.spec.volumes[0].hostPath"',
    ),
    "a volume of two kinds": (
        dataset_manifest(runTemplate=volume(emptyDir={}, configMap={"name": "c"})),
        "exactly one of emptyDir, configMap, secret and persistentVolumeClaim is required",
    ),
    "a variable with two values": (
        dataset_manifest(runTemplate=env(value="1", valueFrom={"secretKeyRef": A_KEY})),
        "value and valueFrom exclude one another",
    ),
    "a variable from two places": (
        dataset_manifest(runTemplate=env(valueFrom={"secretKeyRef": A_KEY, "configMapKeyRef": A_KEY})),
        "exactly one of secretKeyRef and configMapKeyRef is required",
    ),
    "a variable that Lethe sets": (
        dataset_manifest(runTemplate=env(name="LETHE_RUN_FILE")),
        "Lethe, Spark or Kubernetes set this variable",
    ),
    "a variable that Spark sets": (
        dataset_manifest(runTemplate=env(name="_SPARK_AUTH_SECRET")),
        "Lethe, Spark or Kubernetes set this variable",
    ),
    "a function of the shell": (
        dataset_manifest(runTemplate=env(name="BASH_FUNC_exec%%")),
        "should match '^[A-Za-z_][A-Za-z0-9_]*$'",
    ),
    "a mount that climbs": (dataset_manifest(runTemplate=mount("/mnt/../etc")), "volumeMounts[0].mountPath"),
    "an image": (
        dataset_manifest(runTemplate=container(image="evil")),
        'unknown field "spec.runTemplate.podTemplate.spec.containers[0].image"',
    ),
    "a check of nothing": (checks({}), "exactly one of notNull, unique, range"),
    "a check of two kinds": (checks({"notNull": ["a"], "unique": ["a"]}), "exactly one of notNull, unique, range"),
    "two checks of one name": (
        dataset_manifest(checks=[{"name": "a", "notNull": ["a"]}, {"name": "a", "unique": ["a"]}]),
        "Duplicate value",
    ),
    "a check without a name": (dataset_manifest(checks=[{"notNull": ["a"]}]), "spec.checks[0].name"),
    "a range without an end": (checks({"range": {"column": "a"}}), "min or max is required"),
    "a range of objects": (checks({"range": {"column": "a", "min": {}}}), "spec.checks[0].range.min"),
    "a set without values": (checks({"values": {"column": "a", "allowed": []}}), "spec.checks[0].values.allowed"),
    "a number of rows without a limit": (checks({"rowCount": {"ofLast": 3}}), "one of min, max, atLeastPercent"),
    "a check that does what nobody knows": (checks({"notNull": ["a"], "onFailure": "Ignore"}), '"Refuse", "Hold"'),
    "two holds of one name": (
        dataset_manifest(holds=[{"name": "a"}, {"name": "a", "filter": "v = 1"}]),
        "Duplicate value",
    ),
    "a hold that a status cannot name": (dataset_manifest(holds=[{"name": "Case 7"}]), "spec.holds[0].name"),
    "a hold without a time zone": (
        dataset_manifest(holds=[{"name": "a", "until": "2027-03-31T00:00:00"}]),
        "spec.holds[0].until",
    ),
    "a hold until some day": (dataset_manifest(holds=[{"name": "a", "until": "next year"}]), "spec.holds[0].until"),
    "more checks than a Dataset may have": (checks(*[{"notNull": ["a"]}] * 33), "must have at most 32 items"),
    "checks of files that are registered": (
        checks({"notNull": ["a"]}, consolidation={"mode": "Register"}),
        "checks need consolidation.mode Rewrite, because Register does not read rows",
    ),
    "an Approve with a deadline for bytes": (
        restatement_manifest("Approve", evictBySeconds=1),
        "unknownBatches and evictBySeconds are not allowed when operation is Approve",
    ),
    "an Approve of nothing": (restatement_manifest("Approve", batchIds=None), EXACTLY_ONE_LIST),
    "an unknown operation": (
        restatement_manifest("Delete"),
        'supported values: "Replay", "Revert", "Erase", "Redact", "Undo", "Approve"',
    ),
    "a Revert of nothing": (restatement_manifest(batchIds=None), EXACTLY_ONE_LIST),
    "a Revert with two lists": (restatement_manifest(batchIdsFrom=FROM_A_MAP), EXACTLY_ONE_LIST),
    "a Revert of batches and of a run": (restatement_manifest(selector={"reference": "dag-7"}), EXACTLY_ONE_LIST),
    "a Revert of a run without an id": (restatement_manifest(batchIds=None, selector={}), "spec.selector.reference"),
    "a Redact of what a run delivered": (
        restatement_manifest("Redact", rows=None, selector={"reference": "dag-7"}),
        "selector is allowed only when operation is Replay, Revert, Erase or Approve",
    ),
    "a Revert of a run with unknown batches": (
        restatement_manifest(batchIds=None, selector={"reference": "dag-7"}, unknownBatches="Allow"),
        "unknownBatches is allowed only with batchIds or batchIdsFrom",
    ),
    "a Revert of an empty list": (restatement_manifest(batchIds=[]), "spec.batchIds"),
    "a Revert of an empty id": (restatement_manifest(batchIds=[""]), "spec.batchIds[0]"),
    "a Revert of one id twice": (restatement_manifest(batchIds=["a", "a"]), "Duplicate value"),
    "a Revert of 1001 ids": (
        restatement_manifest(batchIds=[str(i) for i in range(1001)]),
        "must have at most 1000 items",
    ),
    "an id of 257 characters": (restatement_manifest(batchIds=["a" * 257]), "spec.batchIds[0]"),
    "a deadline that is over at once": (restatement_manifest(deadlineSeconds=0), "spec.deadlineSeconds"),
    "a list in no URI": (restatement_manifest(batchIds=None, batchIdsFrom={"uri": "ids.txt"}), "spec.batchIdsFrom.uri"),
    "a list from two places": (
        restatement_manifest(batchIds=None, batchIdsFrom={**FROM_A_MAP, "uri": "s3://lake/ids.txt"}),
        "exactly one of configMapKeyRef and uri is required",
    ),
    "a Replay without a replacement": (
        restatement_manifest("Replay", replacement=None),
        "replacement is required when operation is Replay, and only then allowed",
    ),
    "a Replay of two lists and of rows": (
        restatement_manifest("Replay", batchIdsFrom=FROM_A_MAP, replacement=CHANGES),
        EXACTLY_ONE_LIST,
    ),
    "a Replay of nothing": (restatement_manifest("Replay", batchIds=None), EXACTLY_ONE_LIST),
    "a Revert by keys": (
        restatement_manifest("Revert", batchIds=None, replacement=CHANGES),
        EXACTLY_ONE_LIST,
    ),
    "no key columns": (
        restatement_manifest("Replay", replacement={**CHANGES, "keyColumns": []}),
        "spec.replacement.keyColumns",
    ),
    "a key column named twice": (
        restatement_manifest("Replay", replacement={**CHANGES, "keyColumns": ["id", "id"]}),
        "keyColumns must name each column once",
    ),
    "an op column among the keys": (
        restatement_manifest("Replay", replacement={**CHANGES, "opColumn": "day"}),
        "opColumn cannot be one of keyColumns",
    ),
    "an op column without keys": (
        restatement_manifest("Replay", replacement={"batchId": "b", "uri": "s3://l/b/", "opColumn": "op"}),
        "opColumn is allowed only with keyColumns",
    ),
    "a Revert with a replacement": (
        restatement_manifest("Revert", replacement={"batchId": "b", "uri": "s3://lake/b/"}),
        "replacement is required when operation is Replay, and only then allowed",
    ),
    "a Replay by itself": (
        restatement_manifest("Replay", batchIds=["a", "b"]),
        "replacement.batchId must be a new id, it cannot be one of the replaced batchIds",
    ),
    "unknown batches without batches": (
        restatement_manifest("Undo", unknownBatches="Allow"),
        "unknownBatches is allowed only with batchIds or batchIdsFrom",
    ),
    "an Undo of nothing": (restatement_manifest("Undo", undoes=None), "undoes is required when operation is Undo"),
    "an Undo of itself": (
        named("undo-a", restatement_manifest("Undo", undoes={"name": "undo-a"})),
        "undoes must name another Restatement",
    ),
    "a Revert that undoes": (restatement_manifest(undoes={"name": "x"}), "undoes is required when operation is Undo"),
    "an Undo of some batches": (
        restatement_manifest("Undo", batchIds=["a"]),
        "batchIds and batchIdsFrom are not allowed when operation is Undo",
    ),
    "a Revert of rows": (
        restatement_manifest(rows=restatement_manifest("Erase")["spec"]["rows"]),
        "rows is allowed only when operation is Erase or Redact",
    ),
    "a Redact of nothing": (
        restatement_manifest("Redact", rows=None),
        "exactly one of rows, batchIds, batchIdsFrom, selector and subject is required when operation is Erase or Redact",
    ),
    "a Redact without columns": (
        restatement_manifest("Redact", redact=None),
        "redact is required when operation is Redact",
    ),
    "a Revert that redacts": (
        restatement_manifest(redact=restatement_manifest("Redact")["spec"]["redact"]),
        "redact is required when operation is Redact, and only then allowed",
    ),
    "a Redact of unknown batches": (
        restatement_manifest("Redact", rows=None, batchIds=["a"], unknownBatches="Allow"),
        "unknownBatches is not allowed when operation is Redact",
    ),
    "hashes without a key": (restatement_manifest("Redact", redact=REDACT), "hashKeyFrom is required when a column"),
    "a key without hashes": (
        restatement_manifest("Redact", redact={"columns": REDACT["columns"][:1], "hashKeyFrom": HASH_KEY}),
        "hashKeyFrom is required when a column has the method KeyedHash, and only then allowed",
    ),
    "a constant without a value": (
        restatement_manifest("Redact", redact={"columns": [{"column": "email", "method": "Constant"}]}),
        "value is required when method is Constant",
    ),
    "a null with a value": (
        restatement_manifest("Redact", redact={"columns": [{"column": "email", "method": "SetNull", "value": "x"}]}),
        "value is required when method is Constant, and only then allowed",
    ),
    "one column redacted twice": (
        restatement_manifest("Redact", redact={"columns": [{"column": "email", "method": "SetNull"}] * 2}),
        "Duplicate value",
    ),
    "an Erase of rows and batches": (
        restatement_manifest("Erase", batchIds=["a"]),
        "exactly one of rows, batchIds, batchIdsFrom, selector and subject is required when operation is Erase or Redact",
    ),
    "an Erase of a subject that redacts": (
        subject_manifest(redact={"columns": REDACT["columns"][:1]}),
        "redact is required when operation is Redact, and only then allowed",
    ),
    "a Redact of a subject without columns": (
        subject_manifest(operation="Redact", redact=None),
        "redact is required when operation is Redact",
    ),
    "an Erase of a subject and of rows": (
        subject_manifest(rows=restatement_manifest("Erase")["spec"]["rows"]),
        "exactly one of rows, batchIds, batchIdsFrom, selector and subject is required when operation is Erase or Redact",
    ),
    "a subject of one Dataset": (
        subject_manifest(datasetSelector=None, datasetRef={"name": "flights"}),
        "datasetSelector is required with subject, and only then allowed",
    ),
    "no Dataset": (
        restatement_manifest(datasetRef=None),
        "exactly one of datasetRef and datasetSelector is required",
    ),
    "a Revert of a subject": (
        restatement_manifest(datasetRef=None, **SUBJECT),
        "subject is allowed only when operation is Erase or Redact",
    ),
    "an identity without values": (
        subject_manifest({"identity": "customer"}),
        "either identity and valuesFrom, or anyOf is required",
    ),
    "the same identity twice": (
        dataset_manifest(identities=[{"name": "customer", "column": "email"}] * 2),
        "spec.identities[1]: Duplicate value",
    ),
    "an Erase of rows without a column": (
        restatement_manifest("Erase", rows={"valuesFrom": {"uri": "s3://lake/emails.txt"}}),
        "either anyOf, or column and valuesFrom are required",
    ),
    "an Erase of rows with one column and several": (
        restatement_manifest("Erase", rows={**ROWS, "anyOf": [ROWS]}),
        "either anyOf, or column and valuesFrom are required",
    ),
    "an Erase of rows without conditions": (restatement_manifest("Erase", rows={"anyOf": []}), "spec.rows.anyOf"),
    "an Erase of rows by 17 conditions": (
        restatement_manifest("Erase", rows={"anyOf": [ROWS] * 17}),
        "must have at most 16 items",
    ),
    "values from two places": (
        restatement_manifest(
            "Erase",
            rows={"column": "v", "valuesFrom": {**ROWS["valuesFrom"], "uri": "s3://lake/emails.txt"}},
        ),
        "exactly one of secretKeyRef and uri is required",
    ),
    "a lookup in a Dataset of another namespace": (
        restatement_manifest("Erase", rows={**ROWS, "via": {"dataset": "other/bookings", "from": "a", "to": "b"}}),
        "spec.rows.via.dataset",
    ),
    "a lookup without a column": (
        restatement_manifest("Erase", rows={**ROWS, "via": {"dataset": "bookings", "from": "a"}}),
        "spec.rows.via.to",
    ),
    "a policy without triggers": (policy_manifest(triggers=None), "spec.triggers"),
    "a threshold of 0": (policy_manifest(triggers={"activeTombstones": 0}), "spec.triggers.activeTombstones"),
    "101 percent": (policy_manifest(triggers={"tombstonedRowsPercent": 101}), "spec.triggers.tombstonedRowsPercent"),
    "a schedule of four fields": (
        policy_manifest(window={"schedule": "0 1 * *", "durationSeconds": 60}),
        "spec.window.schedule",
    ),
    "a hold until a day that no year has": (
        dataset_manifest(holds=[{"name": "case-7", "until": "2027-02-30T00:00:00Z", "reason": "audit"}]),
        "spec.holds[0].until in body must be of type date-time",
    ),
    "a hold until the 24th hour": (
        dataset_manifest(holds=[{"name": "case-7", "until": "2027-02-20T24:00:00Z", "reason": "audit"}]),
        "spec.holds[0].until in body must be of type date-time",
    ),
    "a quantity with a blank": (dataset_manifest(consolidation={"minBytes": "1 Ki"}), "must be a quantity"),
    "a quantity of digits that are not of ASCII": (
        dataset_manifest(consolidation={"minBytes": "\u0661Ki"}),
        "must be a quantity",
    ),
    "a schedule with a line break at its end": (
        policy_manifest(window={"schedule": "0 1 * * *\n", "durationSeconds": 60}),
        "spec.window.schedule",
    ),
    "a catalog with a line break at its end": (
        dataset_manifest(table={"catalog": "main\n", "name": "a.b"}),
        "spec.table.catalog",
    ),
    "a window that never closes": (policy_manifest(window={"schedule": "0 1 * * *"}), "spec.window.durationSeconds"),
    "a limit of no bytes": (
        policy_manifest(limits={"maxBytesPerRun": 0}),
        "must be a quantity greater than 0, such as 100Gi",
    ),
    "no place for any run": (policy_manifest(limits={"concurrentRuns": 0}), "spec.limits.concurrentRuns"),
    "orphans that a commit may just have written": (
        policy_manifest(maintenance={"removeOrphanFiles": {"olderThanSeconds": 3600}}),
        "spec.maintenance.removeOrphanFiles.olderThanSeconds",
    ),
    "a retention by a column and by batches": (
        policy_manifest(retention={"column": "booked_at", "by": "BatchAge", "maxAgeDays": 1}),
        "set exactly one of column and by",
    ),
    "a retention by nothing": (policy_manifest(retention={"maxAgeDays": 1}), "set exactly one of column and by"),
    "a retention of no day": (
        policy_manifest(retention={"column": "booked_at", "maxAgeDays": 0}),
        "spec.retention.maxAgeDays",
    ),
    "an approval by nobody": (policy_manifest(approval="Never"), "spec.approval"),
    "a selector without values": (
        policy_manifest(datasetSelector={"matchExpressions": [{"key": "team", "operator": "In"}]}),
        "values is required when operator is In or NotIn, and only then allowed",
    ),
    "a selector with idle values": (
        policy_manifest(
            datasetSelector={"matchExpressions": [{"key": "team", "operator": "Exists", "values": ["air"]}]}
        ),
        "values is required when operator is In or NotIn, and only then allowed",
    ),
}


FIXED = {
    "another Dataset": ("revert", {"datasetRef": {"name": "x"}}, "datasetRef is immutable"),
    "another operation": ("revert", {"operation": "Erase"}, "operation is immutable"),
    "another batch": ("revert", {"batchIds": ["a", "b"]}, "batchIds is immutable"),
    "ids moved to a reference": ("revert", {"batchIds": None, "batchIdsFrom": FROM_A_MAP}, "batchIds is immutable"),
    "another reference": (
        "by reference",
        {"batchIdsFrom": {"configMapKeyRef": {"key": "x"}}},
        "batchIdsFrom is immutable",
    ),
    "another replacement": ("replay", {"replacement": {"batchId": "c"}}, "replacement is immutable"),
    "another thing to undo": ("undo", {"undoes": {"name": "x"}}, "undoes is immutable"),
    "unknown batches later": ("revert", {"unknownBatches": "Allow"}, "unknownBatches is immutable"),
    "other rows": ("erase", {"rows": {"column": "x"}}, "rows is immutable"),
    "another redaction": (
        "redact",
        {"redact": {"columns": [{"column": "email", "method": "Constant", "value": "x"}]}},
        "redact is immutable",
    ),
    "a reason later": ("revert", {"reason": "afterthought"}, "reason is immutable"),
    "a ticket later": ("revert", {"ticket": "X-1"}, "ticket is immutable"),
    "no time for the bytes to be gone": ("revert", {"evictBySeconds": None}, "evictBySeconds is immutable"),
    "a deadline later": ("revert", {"deadlineSeconds": 60}, "deadlineSeconds is immutable"),
    "a rehearsal later": ("revert", {"dryRun": True}, "dryRun is immutable"),
    "another catalog": ("dataset", {"table": {"catalog": "x"}}, "spec.table.catalog: Invalid value"),
    "another table": ("dataset", {"table": {"name": "x.y"}}, "spec.table.name: Invalid value"),
    "another batch column": ("dataset", {"batchColumn": "x"}, "is immutable; create another Dataset instead"),
    "another buffer": ("dataset", {"buffer": {"uri": "s3://x/y"}}, "spec.buffer.uri: Invalid value"),
}


FREE = {
    "suspend": ("revert", {"suspend": False}),
    "cancel": ("revert", {"cancel": True}),
    "a time to live": ("revert", {"ttlSecondsAfterFinished": 60}),
    "another order of ids": ("revert", {"batchIds": ["a"]}),
    "a Dataset's consolidation": ("dataset", {"consolidation": {"minBatches": 7}}),
    "a Dataset's deletes": ("dataset", {"deletes": "DeletionVectors"}),
}
