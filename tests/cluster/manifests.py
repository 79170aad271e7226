"""Manifests that obey and that break each rule of the resource definitions, and edits of stored ones. Pure."""

from typing import Any

from tests.cluster.kube import Object

ROWS = {"column": "tailnum", "valuesFrom": {"secretKeyRef": {"name": "people", "key": "tails"}}}


def a_dataset(**spec: Any) -> Object:
    base = {
        "table": {"catalog": "main", "name": "air.flights"},
        "batchColumn": "batch_id",
        "buffer": {"uri": "s3://lake/buffer/flights"},
    }
    return _a("Dataset", {**base, **spec})


def a_restatement(operation: str = "Revert", **spec: Any) -> Object:
    base: Object = {"datasetRef": {"name": "flights"}, "operation": operation, "suspend": True}
    if operation in ("Revert", "Replay"):
        base["batchIds"] = ["a"]
    if operation == "Replay":
        base["replacement"] = {"batchId": "b", "uri": "s3://lake/restated/b/"}
    if operation == "Undo":
        base["undoes"] = {"name": "revert-a"}
    if operation == "Erase":
        base["rows"] = ROWS
    merged = {**base, **spec}
    return _a("Restatement", {k: v for k, v in merged.items() if v is not None})


def a_policy(**spec: Any) -> Object:
    return _a("VacuumPolicy", {"datasetSelector": {}, "triggers": {"activeTombstones": 10}, **spec})


def _a(kind: str, spec: Object) -> Object:
    return {
        "apiVersion": "lethe.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": f"crds-{kind.lower()}"},
        "spec": spec,
    }


def named(name: str, body: Object) -> Object:
    body["metadata"]["name"] = name
    return body


CHANGES = {"batchId": "b", "uri": "s3://lake/restated/b/", "keyColumns": ["tailnum", "day"], "opColumn": "op"}
EXACTLY_ONE_LIST = "exactly one of batchIds and batchIdsFrom is required when operation is Replay or Revert"
FROM_A_MAP = {"configMapKeyRef": {"name": "lists", "key": "ids"}}
A_KEY = {"name": "s", "key": "k"}


def container(**fields: Any) -> Object:
    return {"podTemplate": {"spec": {"containers": [{"name": "spark", **fields}]}}}


def env(**variable: Any) -> Object:
    return container(env=[{"name": "X", **variable}])


def mount(path: str) -> Object:
    return container(volumeMounts=[{"name": "v", "mountPath": path}])


def volume(**source: Any) -> Object:
    return {"podTemplate": {"spec": {"volumes": [{"name": "v", **source}]}}}


QUEUE = {"queueUrl": "https://sqs.eu-west-1.amazonaws.com/123456789012/flights"}

ACCEPTED = {
    "a Dataset with nothing optional": a_dataset(),
    "a Dataset's name of 63 characters": named("d" * 63, a_dataset()),
    "a table in a nested namespace": a_dataset(table={"catalog": "main", "name": "a.b.c"}),
    "a local buffer": a_dataset(buffer={"uri": "file:///data/buffer"}),
    "a buffer of another format": a_dataset(buffer={"uri": "s3://l/b", "format": "avro"}),
    "a buffer of files": a_dataset(buffer={"uri": "s3://l/b", "format": "csv", "layout": "File"}),
    "files that are registered": a_dataset(consolidation={"mode": "Register"}),
    "a buffer with events": a_dataset(buffer={"uri": "s3://l/b", "events": QUEUE}),
    "a window of all that may be in flight": a_dataset(
        buffer={"uri": "s3a://l/b", "events": {**QUEUE, "maxMessages": 7, "maxInFlight": 7}}
    ),
    "columns that may be added": a_dataset(schemaEvolution="AddColumns"),
    "batches that are not tracked": a_dataset(batchTracking={"enabled": False}),
    "tombstones alone": a_dataset(deletes="Ledger"),
    "deletion vectors": a_dataset(
        deletes="DeletionVectors",
        table={"catalog": "main", "name": "air.flights", "create": {"schema": "id INT", "formatVersion": 3}},
    ),
    "equality deletes": a_dataset(deletes="EqualityDeletes"),
    "bytes as a number": a_dataset(consolidation={"minBytes": 1000}),
    "bytes as a quantity": a_dataset(consolidation={"minBytes": "1Gi"}),
    "as many snapshots to keep as there may be": a_dataset(snapshots={"minToKeep": 3, "maxCount": 3}),
    "as many executors as there may be": a_dataset(runTemplate={"executors": {"min": 2, "max": 2}}),
    "executors with only a minimum": a_dataset(runTemplate={"executors": {"min": 2}}),
    "a driver's size": a_dataset(runTemplate={"driver": {"cpu": 1, "memory": "2Gi", "scratch": "10Gi"}}),
    "a variable with a value": a_dataset(runTemplate=env(value="1")),
    "a mount": a_dataset(runTemplate=mount("/mnt/a.b/c/")),
    "a variable from a Secret": a_dataset(runTemplate=env(valueFrom={"secretKeyRef": A_KEY})),
    "a volume of one kind": a_dataset(runTemplate=volume(emptyDir={})),
    "a Revert": a_restatement("Revert"),
    "a Revert with a list by reference": a_restatement("Revert", batchIds=None, batchIdsFrom=FROM_A_MAP),
    "a Revert with a list in a file": a_restatement("Revert", batchIds=None, batchIdsFrom={"uri": "s3://lake/ids.txt"}),
    "a Revert of a thousand long ids": a_restatement(batchIds=[f"{i:0>256}" for i in range(1000)]),
    "a Revert with a deadline": a_restatement("Revert", deadlineSeconds=1),
    "a dry run": a_restatement("Revert", dryRun=True),
    "a Replay": a_restatement("Replay"),
    "a Replay of rows by their keys": a_restatement("Replay", batchIds=None, replacement=CHANGES),
    "a Replay of batches, and of rows by one key": a_restatement(
        "Replay", replacement={**CHANGES, "keyColumns": ["id"]}
    ),
    "a Replay of listed batches, and of rows": a_restatement(
        "Replay", batchIds=None, batchIdsFrom=FROM_A_MAP, replacement=CHANGES
    ),
    "an Undo": a_restatement("Undo"),
    "an Erase by rows": a_restatement("Erase"),
    "an Erase by batches": a_restatement("Erase", rows=None, batchIds=["a"]),
    "ids in any script": a_restatement(batchIds=["2013-01-01.UA", "größe/1 %", "航班"]),
    "a policy": a_policy(),
    "a policy with a window": a_policy(
        window={"schedule": "0 1 * * *", "timeZone": "Europe/Berlin", "durationSeconds": 60}
    ),
    "a policy with limits": a_policy(limits={"maxBytesPerRun": "100Gi", "maxRunSeconds": 7200, "concurrentRuns": 2}),
    "a policy with thresholds of zero": a_policy(triggers={"oldestTombstoneAgeSeconds": 0, "evictByLeadSeconds": 0}),
    "a policy with maintenance": a_policy(
        maintenance={
            "rewriteManifests": True,
            "removeOrphanFiles": {"olderThanSeconds": 86400},
            "compactSmallFiles": True,
        }
    ),
    "a policy that removes orphans as it likes": a_policy(maintenance={"removeOrphanFiles": {}}),
    "a selector by values": a_policy(
        datasetSelector={"matchExpressions": [{"key": "team", "operator": "In", "values": ["air"]}]}
    ),
    "a selector by existence": a_policy(datasetSelector={"matchExpressions": [{"key": "team", "operator": "Exists"}]}),
}

REFUSED = {
    "a Dataset's name of 64 characters": (named("d" * 64, a_dataset()), "at most 63 characters and no dots"),
    "a Dataset's name with a dot": (named("a.b", a_dataset()), "at most 63 characters and no dots"),
    "a Dataset of another namespace": (
        {
            **a_restatement(),
            "spec": {**a_restatement()["spec"], "datasetRef": {"name": "../../other/datasets/flights"}},
        },
        "spec.datasetRef.name",
    ),
    "a list of another namespace": (
        a_restatement(
            batchIds=None, batchIdsFrom={"configMapKeyRef": {"name": "../../other/configmaps/x", "key": "k"}}
        ),
        "spec.batchIdsFrom.configMapKeyRef.name",
    ),
    "a Secret of another namespace": (
        a_restatement(
            "Erase", rows={"column": "v", "valuesFrom": {"secretKeyRef": {"name": "other/erase-x", "key": "k"}}}
        ),
        "spec.rows.valuesFrom.secretKeyRef.name",
    ),
    "an Undo of a Restatement of another namespace": (
        a_restatement("Undo", undoes={"name": "other/revert"}),
        "spec.undoes.name",
    ),
    "a table without a namespace": (a_dataset(table={"catalog": "main", "name": "flights"}), "spec.table.name"),
    "a batch column with a dot": (a_dataset(batchColumn="a.b"), "spec.batchColumn"),
    "a buffer that is no URI": (a_dataset(buffer={"uri": "/data/buffer"}), "spec.buffer.uri"),
    "events of a local buffer": (
        a_dataset(buffer={"uri": "file:///data/buffer", "events": QUEUE}),
        "events are told of a buffer in S3 only",
    ),
    "events without a queue": (
        a_dataset(buffer={"uri": "s3://l/b", "events": {"windowSeconds": 5}}),
        "spec.buffer.events.queueUrl",
    ),
    "a queue that is no URL": (
        a_dataset(buffer={"uri": "s3://l/b", "events": {"queueUrl": "arn:aws:sqs:eu-west-1:1:q"}}),
        "spec.buffer.events.queueUrl",
    ),
    "a larger window than may be in flight": (
        a_dataset(buffer={"uri": "s3://l/b", "events": {**QUEUE, "maxMessages": 8, "maxInFlight": 7}}),
        "maxMessages cannot be greater than maxInFlight",
    ),
    "a window that outlasts its messages": (
        a_dataset(buffer={"uri": "s3://l/b", "events": {**QUEUE, "windowSeconds": 30, "visibilitySeconds": 30}}),
        "windowSeconds must be less than visibilitySeconds",
    ),
    "an unknown layout": (
        a_dataset(buffer={"uri": "s3://l/b", "layout": "Tree"}),
        'supported values: "Directory", "File"',
    ),
    "an unknown format": (
        a_dataset(buffer={"uri": "s3://l/b", "format": "xml"}),
        'supported values: "parquet", "orc", "avro", "json", "csv"',
    ),
    "an unknown schema evolution": (
        a_dataset(schemaEvolution="Everything"),
        'supported values: "Refuse", "AddColumns"',
    ),
    "a word for whether batches are tracked": (
        a_dataset(batchTracking={"enabled": "sometimes"}),
        "spec.batchTracking.enabled",
    ),
    "an unknown kind of deletes": (
        a_dataset(deletes="PositionDeletes"),
        'supported values: "Ledger", "DeletionVectors", "EqualityDeletes"',
    ),
    "files of another format that are registered": (
        a_dataset(buffer={"uri": "s3://l/b", "format": "orc"}, consolidation={"mode": "Register"}),
        "consolidation.mode Register needs buffer.format parquet",
    ),
    "a negative retention": (
        a_dataset(buffer={"uri": "s3://l/b", "retentionSeconds": -1}),
        "spec.buffer.retentionSeconds",
    ),
    "no bytes": (a_dataset(consolidation={"minBytes": 0}), "must be a quantity greater than 0, such as 128Mi"),
    "bytes that are no quantity": (a_dataset(consolidation={"minBytes": "much"}), "must be a quantity greater than 0"),
    "no target size": (a_dataset(consolidation={"targetFileSizeBytes": "0Mi"}), "must be a quantity greater than 0"),
    "no batches": (a_dataset(consolidation={"minBatches": 0}), "spec.consolidation.minBatches"),
    "more snapshots to keep than there may be": (
        a_dataset(snapshots={"minToKeep": 4, "maxCount": 3}),
        "minToKeep cannot be greater than maxCount",
    ),
    "more executors than there may be": (
        a_dataset(runTemplate={"executors": {"min": 3, "max": 2}}),
        "min cannot be greater than max",
    ),
    "a driver without memory": (
        a_dataset(runTemplate={"driver": {"memory": "0"}}),
        "must be a quantity greater than 0",
    ),
    "a service account": (
        a_dataset(runTemplate={"podTemplate": {"spec": {"serviceAccountName": "admin"}}}),
        'unknown field "spec.runTemplate.podTemplate.spec.serviceAccountName"',
    ),
    "security settings": (
        a_dataset(runTemplate={"podTemplate": {"spec": {"securityContext": {"runAsUser": 0}}}}),
        'unknown field "spec.runTemplate.podTemplate.spec.securityContext"',
    ),
    "a folder of the node": (
        a_dataset(runTemplate=volume(hostPath={"path": "/"})),
        'unknown field "spec.runTemplate.podTemplate.spec.volumes[0].hostPath"',
    ),
    "a volume of two kinds": (
        a_dataset(runTemplate=volume(emptyDir={}, configMap={"name": "c"})),
        "exactly one of emptyDir, configMap, secret and persistentVolumeClaim is required",
    ),
    "a variable with two values": (
        a_dataset(runTemplate=env(value="1", valueFrom={"secretKeyRef": A_KEY})),
        "value and valueFrom exclude one another",
    ),
    "a variable from two places": (
        a_dataset(runTemplate=env(valueFrom={"secretKeyRef": A_KEY, "configMapKeyRef": A_KEY})),
        "exactly one of secretKeyRef and configMapKeyRef is required",
    ),
    "a variable that Lethe sets": (
        a_dataset(runTemplate=env(name="LETHE_RUN_FILE")),
        "Lethe, Spark or Kubernetes set this variable",
    ),
    "a variable that Spark sets": (
        a_dataset(runTemplate=env(name="_SPARK_AUTH_SECRET")),
        "Lethe, Spark or Kubernetes set this variable",
    ),
    "a function of the shell": (
        a_dataset(runTemplate=env(name="BASH_FUNC_exec%%")),
        "should match '^[A-Za-z_][A-Za-z0-9_]*$'",
    ),
    "a mount that climbs": (a_dataset(runTemplate=mount("/mnt/../etc")), "volumeMounts[0].mountPath"),
    "an image": (
        a_dataset(runTemplate=container(image="evil")),
        'unknown field "spec.runTemplate.podTemplate.spec.containers[0].image"',
    ),
    "an unknown operation": (a_restatement("Delete"), 'supported values: "Replay", "Revert", "Erase", "Undo"'),
    "a Revert of nothing": (a_restatement(batchIds=None), EXACTLY_ONE_LIST),
    "a Revert with two lists": (a_restatement(batchIdsFrom=FROM_A_MAP), EXACTLY_ONE_LIST),
    "a Revert of an empty list": (a_restatement(batchIds=[]), "spec.batchIds"),
    "a Revert of an empty id": (a_restatement(batchIds=[""]), "spec.batchIds[0]"),
    "a Revert of one id twice": (a_restatement(batchIds=["a", "a"]), "Duplicate value"),
    "a Revert of 1001 ids": (a_restatement(batchIds=[str(i) for i in range(1001)]), "must have at most 1000 items"),
    "an id of 257 characters": (a_restatement(batchIds=["a" * 257]), "spec.batchIds[0]"),
    "a deadline that is over at once": (a_restatement(deadlineSeconds=0), "spec.deadlineSeconds"),
    "a list in no URI": (a_restatement(batchIds=None, batchIdsFrom={"uri": "ids.txt"}), "spec.batchIdsFrom.uri"),
    "a list from two places": (
        a_restatement(batchIds=None, batchIdsFrom={**FROM_A_MAP, "uri": "s3://lake/ids.txt"}),
        "exactly one of configMapKeyRef and uri is required",
    ),
    "a Replay without a replacement": (
        a_restatement("Replay", replacement=None),
        "replacement is required when operation is Replay, and only then allowed",
    ),
    "a Replay of two lists and of rows": (
        a_restatement("Replay", batchIdsFrom=FROM_A_MAP, replacement=CHANGES),
        EXACTLY_ONE_LIST,
    ),
    "a Replay of nothing": (a_restatement("Replay", batchIds=None), EXACTLY_ONE_LIST),
    "a Revert by keys": (
        a_restatement("Revert", batchIds=None, replacement=CHANGES),
        EXACTLY_ONE_LIST,
    ),
    "no key columns": (
        a_restatement("Replay", replacement={**CHANGES, "keyColumns": []}),
        "spec.replacement.keyColumns",
    ),
    "a key column named twice": (
        a_restatement("Replay", replacement={**CHANGES, "keyColumns": ["id", "id"]}),
        "keyColumns must name each column once",
    ),
    "an op column among the keys": (
        a_restatement("Replay", replacement={**CHANGES, "opColumn": "day"}),
        "opColumn cannot be one of keyColumns",
    ),
    "an op column without keys": (
        a_restatement("Replay", replacement={"batchId": "b", "uri": "s3://l/b/", "opColumn": "op"}),
        "opColumn is allowed only with keyColumns",
    ),
    "a Revert with a replacement": (
        a_restatement("Revert", replacement={"batchId": "b", "uri": "s3://lake/b/"}),
        "replacement is required when operation is Replay, and only then allowed",
    ),
    "a Replay by itself": (
        a_restatement("Replay", batchIds=["a", "b"]),
        "replacement.batchId must be a new id, it cannot be one of the replaced batchIds",
    ),
    "an Undo of nothing": (a_restatement("Undo", undoes=None), "undoes is required when operation is Undo"),
    "an Undo of itself": (
        named("undo-a", a_restatement("Undo", undoes={"name": "undo-a"})),
        "undoes must name another Restatement",
    ),
    "a Revert that undoes": (a_restatement(undoes={"name": "x"}), "undoes is required when operation is Undo"),
    "an Undo of some batches": (
        a_restatement("Undo", batchIds=["a"]),
        "batchIds and batchIdsFrom are not allowed when operation is Undo",
    ),
    "a Revert of rows": (
        a_restatement(rows=a_restatement("Erase")["spec"]["rows"]),
        "rows is allowed only when operation is Erase",
    ),
    "an Erase of rows and batches": (
        a_restatement("Erase", batchIds=["a"]),
        "exactly one of rows, batchIds and batchIdsFrom is required when operation is Erase",
    ),
    "a policy without triggers": (a_policy(triggers=None), "spec.triggers"),
    "a threshold of 0": (a_policy(triggers={"activeTombstones": 0}), "spec.triggers.activeTombstones"),
    "101 percent": (a_policy(triggers={"tombstonedRowsPercent": 101}), "spec.triggers.tombstonedRowsPercent"),
    "a schedule of four fields": (
        a_policy(window={"schedule": "0 1 * *", "durationSeconds": 60}),
        "spec.window.schedule",
    ),
    "a window that never closes": (a_policy(window={"schedule": "0 1 * * *"}), "spec.window.durationSeconds"),
    "a limit of no bytes": (a_policy(limits={"maxBytesPerRun": 0}), "must be a quantity greater than 0, such as 100Gi"),
    "no place for any run": (a_policy(limits={"concurrentRuns": 0}), "spec.limits.concurrentRuns"),
    "orphans that a commit may just have written": (
        a_policy(maintenance={"removeOrphanFiles": {"olderThanSeconds": 3600}}),
        "spec.maintenance.removeOrphanFiles.olderThanSeconds",
    ),
    "an approval by nobody": (a_policy(approval="Never"), "spec.approval"),
    "a selector without values": (
        a_policy(datasetSelector={"matchExpressions": [{"key": "team", "operator": "In"}]}),
        "values is required when operator is In or NotIn, and only then allowed",
    ),
    "a selector with idle values": (
        a_policy(datasetSelector={"matchExpressions": [{"key": "team", "operator": "Exists", "values": ["air"]}]}),
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
    "other rows": ("erase", {"rows": {"column": "x"}}, "rows is immutable"),
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
