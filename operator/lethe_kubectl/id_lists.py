"""Long lists of batch ids: in a ConfigMap that belongs to the Restatement, or beside the buffer. I/O: writes them."""

from typing import Any, Final

from lethe.base.errors import InputError
from lethe.iceberg import catalogs
from lethe.kube import CONFIG_MAPS, AlreadyExists
from lethe.restatement.group import LISTED_IDS_AT_MOST, parse_ids
from lethe.storage.object_store import open_store
from lethe.uri import bucket_and_key, is_local
from lethe_operator.resources.common import LABEL_BATCH_IDS
from lethe_operator.resources.dataset import parse_dataset

from lethe_kubectl.lookup import one, use_catalogs
from lethe_kubectl.target import Connection

INLINE_AT_MOST: Final = 1000
"""As the schema of spec.batchIds says."""
CONFIG_MAP_BYTES: Final = 1_000_000
"""A ConfigMap has at most 1 MiB, with its metadata."""
_KEY: Final = "batch-ids"
_BESIDE: Final = "-restatements"
Document = dict[str, Any]


def beside(buffer_uri: str) -> str:
    """The folder beside a buffer for what Restatements read.

    Raises:
        InputError: `NoPlace`, if the buffer is a whole bucket.
    """
    if not is_local(buffer_uri) and not bucket_and_key(buffer_uri)[1].strip("/"):
        raise InputError(
            "NoPlace", f"the buffer {buffer_uri} is a whole bucket, so nothing is beside it. Name another URI."
        )
    return f"{buffer_uri.rstrip('/')}{_BESIDE}"


def with_list(document: Document) -> tuple[Document, str]:
    """The Restatement without inline ids that are too many, and the list; "": there is none.

    The list still has no place: see `config_map` and `put_list`.

    Raises:
        InputError: `TooManyIds`; `InvalidIdList`, if a list cannot hold one of the ids.
    """
    spec = document["spec"]
    ids = spec.get("batchIds") or ()
    if len(ids) <= INLINE_AT_MOST:
        return document, ""
    if len(ids) > LISTED_IDS_AT_MOST:
        raise InputError(
            "TooManyIds", f"{len(ids)} batches, expected at most {LISTED_IDS_AT_MOST}. Use several Restatements."
        )
    name = f"{document['metadata']['name']}-{_KEY}"
    content = "".join(f"{i}\n" for i in ids)
    if parse_ids(content.encode(), "the list of batches").ids != tuple(dict.fromkeys(ids)):
        raise InputError(
            "InvalidIdList",
            f"one of the {len(ids)} ids has a line break, so a list with one id per line would name other batches. Name at most "
            f"{INLINE_AT_MOST} batches at once.",
        )
    rest = {k: v for k, v in spec.items() if k != "batchIds"}
    return {**document, "spec": {**rest, "batchIdsFrom": {"configMapKeyRef": {"name": name, "key": _KEY}}}}, content


def config_map(document: Document, content: str) -> Document | None:
    """The ConfigMap with the list of a Restatement that `with_list` has made; None: no list, or too long for a ConfigMap."""
    if not content or len(content.encode()) > CONFIG_MAP_BYTES:
        return None
    name = document["spec"]["batchIdsFrom"]["configMapKeyRef"]["name"]
    metadata = {"name": name, "labels": {LABEL_BATCH_IDS: "true"}}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "immutable": True,
        "data": {_KEY: content},
    }


def too_long_to_print(content: str) -> InputError:
    """The error for a list that has to be in the object store, where printing a resource writes nothing."""
    return InputError(
        "ListTooLong",
        f"the list of batches has {len(content.encode())} bytes, expected at most {CONFIG_MAP_BYTES} for a ConfigMap. Put it "
        "into the object store, and name it in spec.batchIdsFrom.uri.",
    )


def create_list(at: Connection, list_map: Document) -> bool:
    """Create a ConfigMap. The same one again is no error.

    Returns:
        Whether it is new.

    Raises:
        InputError: `AlreadyExists`, if one of the name has another list.
    """
    name = list_map["metadata"]["name"]
    try:
        at.kube.create(CONFIG_MAPS, at.namespace, list_map)
    except AlreadyExists:
        if at.kube.get(CONFIG_MAPS, at.namespace, name).get("data") != list_map["data"]:
            raise InputError(
                "AlreadyExists", f"configmap/{name} exists and has another list. Choose another name with --name."
            ) from None
        return False
    return True


def put_list(at: Connection, document: Document, content: str, dry_run: bool) -> Document:
    """Write a list that no ConfigMap can hold beside the buffer, and let the Restatement name it.

    Raises:
        InputError: `AlreadyExists`, if there is another list, and what opening the store raises.
    """
    dataset = one(at, "dataset", document["spec"]["datasetRef"]["name"])
    use_catalogs(at, dataset)
    spec = parse_dataset(dataset).spec
    uri = f"{beside(spec.buffer.uri)}/lists/{document['metadata']['name']}.txt"
    store = open_store(uri, catalogs.properties(spec.table.catalog))
    if not dry_run and not store.put_if_absent(uri, content.encode()):
        existing = store.read(uri)
        if existing is None or existing.data != content.encode():
            raise InputError("AlreadyExists", f"{uri} has another list. Choose another name with --name.")
    return {**document, "spec": {**document["spec"], "batchIdsFrom": {"uri": uri}}}
