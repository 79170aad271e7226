"""A keyed digest of the values of an Erase by records: whether a request that comes again means the same values. Pure.

The ledger keeps the digest and never the values. Without the key nobody can try out values against it, however few there may be:
the key is in a Secret of the cluster, and not beside the table.
"""

import hashlib
import hmac
from typing import Final

from lethe.base.errors import InputError
from lethe.contract.result import RequestResult
from lethe.contract.run import RestatementRequest

KEY_BYTES_AT_LEAST: Final = 16


def values_digest(content: bytes, key: bytes) -> str:
    """`<id of the key>:<HMAC-SHA256 of the distinct lines>`; "" if there is no key, or one of fewer than 16 bytes.

    Args:
        content: As `lethe.files.values.parse_values` takes it. Neither the order of lines nor blank ones matter.
    """
    if len(key) < KEY_BYTES_AT_LEAST:
        return ""
    lines = {line.removesuffix(b"\r") for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n")}
    values = b"\n".join(sorted(line for line in lines if line.strip()))
    key_id = hashlib.sha256(b"lethe values digest\n" + key).hexdigest()[:8]
    return f"{key_id}:{hmac.new(key, values, hashlib.sha256).hexdigest()}"


def refuse_other_values(request: RestatementRequest, before: RequestResult) -> None:
    """Whether the result of an Erase by records may be told of a request with the same key.

    Args:
        before: What the ledger remembers of the request that was carried out.
    Raises: InputError: `ValuesChanged`, if it is about other values; `ValuesNotComparable`, if nobody can tell.
    """
    if request.rows is None or before.requested_time == request.creation_time:
        return
    now, then = request.rows.values_digest, before.values_digest
    if now and now == then:
        return
    where, name = f"Restatement {request.name}: spec.rows.valuesFrom", "Create a Restatement of another name"
    done = f"the one of this name and spec that was carried out at {before.committed_time:%Y-%m-%dT%H:%MZ}"
    if now and then and now.partition(":")[0] == then.partition(":")[0]:
        raise InputError(
            "ValuesChanged",
            f"{where}: the values are others than those of {done}. These have not been searched for, and nothing was erased. "
            f"{name} for them.",
        )
    why = (
        "this run has no key to compare them with (the chart's value erase.digestKey)"
        if not now
        else "the table remembers no digest of them"
        if not then
        else "the digest that the table remembers was made with another key"
    )
    raise InputError(
        "ValuesNotComparable",
        f"{where}: nobody can tell whether the values are those of {done}: {why}. Nothing was erased. {name} to have them "
        "searched for.",
    )
