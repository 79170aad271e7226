"""Reads lists of batch ids that Restatements keep in ConfigMaps. I/O.

A list is read when its Restatement is first observed, and again periodically to notice changes. A run carries out the list as it
was first read, or nothing: its SHA-256 is in the status from then on.
"""

import base64
import binascii
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from lethe.base.errors import InputError
from lethe.restatement.id_list import IdList, parse_ids

from lethe_operator.decide.restatement.outcome import finished_before
from lethe_operator.kube import CONFIG_MAPS, Document, Kube, NotFound
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import LABEL_BATCH_IDS
from lethe_operator.resources.restatement import ConfigMapKey, NoList, Restatement

READ_AGAIN_AFTER: Final = timedelta(seconds=60)
MISSING_AGAIN_AFTER: Final = timedelta(seconds=15)
# ConfigMaps per reconcile of a Dataset. An API server answers within milliseconds.
READS_AT_ONCE: Final = 100
# Ids of one Dataset in memory, apart from the oldest list. Later lists are read when the Restatements of these have ended.
IDS_HELD_AT_MOST: Final = 200_000


@dataclass(frozen=True)
class _Read:
    at: datetime
    found: IdList | NoList


class IdLists:
    """One per operator, shared by its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], dict[ConfigMapKey, _Read]] = {}

    def attached(
        self, kube: Kube, namespace: str, dataset: str, restatements: Iterable[Restatement], now: datetime
    ) -> tuple[Restatement, ...]:
        """The Restatements of a Dataset; those that have not ended get the list that they refer to. Raises: KubeError."""
        every = tuple(restatements)
        listed_ones = [(r, key) for r in every if (key := _key(r)) is not None and finished_before(r) is None]
        wanted = sorted(listed_ones, key=lambda pair: (pair[0].created, pair[0].meta.name))
        with self._lock:
            before = dict(self._kept.get((namespace, dataset), {}))
        kept: dict[ConfigMapKey, _Read] = {}
        maps: dict[str, Document | None] = {}
        held = 0
        for _, key in wanted:
            if key in kept:
                continue
            if held >= IDS_HELD_AT_MOST:
                break
            known = before.get(key)
            if known is None or now - known.at >= _rest(known.found):
                if key.name not in maps and len(maps) < READS_AT_ONCE:
                    maps[key.name] = _get(kube, namespace, key.name)
                if key.name in maps:
                    known = _Read(now, listed(maps[key.name], key))
            if known is not None:
                kept[key] = known
                held += len(known.found.ids) if isinstance(known.found, IdList) else 0
        with self._lock:
            if kept:
                self._kept[namespace, dataset] = kept
            else:
                self._kept.pop((namespace, dataset), None)
        found = {r.meta.name: kept[key].found if key in kept else _NOT_YET for r, key in wanted}
        return tuple(replace(r, listed=found[r.meta.name]) if r.meta.name in found else r for r in every)

    def forget(self, namespace: str, dataset: str) -> None:
        """Drop the lists of a deleted Dataset."""
        with self._lock:
            self._kept.pop((namespace, dataset), None)


_NOT_YET: Final = NoList(
    Reason.QUEUED, "The operator reads its list of batch ids after the lists of older Restatements.", False, 5
)


def listed(config_map: Document | None, key: ConfigMapKey) -> IdList | NoList:
    """The list in a key of a ConfigMap, as text or as bytes. Pure.

    Args:
        config_map: None: it does not exist.
    """
    where = f"The list of batch ids in ConfigMap {key.name}, key {key.key}"
    if config_map is None:
        missing = f"{where}: this namespace has no ConfigMap of that name. Create it. The operator checks again."
        return NoList(Reason.LIST_NOT_FOUND, missing)
    labels = (config_map.get("metadata") or {}).get("labels") or {}
    if labels.get(LABEL_BATCH_IDS) != "true":
        # The operator may read ConfigMaps that the author of the Restatement may not.
        return NoList(
            Reason.LIST_NOT_ALLOWED,
            f'{where}: the ConfigMap has no label {LABEL_BATCH_IDS}: "true", so Restatements may not read batch ids '
            "from it. Set the label, or name another ConfigMap. The operator checks again.",
        )
    text: str | None = (config_map.get("data") or {}).get(key.key)
    encoded: str | None = (config_map.get("binaryData") or {}).get(key.key)
    if text is None and encoded is None:
        return NoList(
            Reason.LIST_NOT_FOUND, f"{where}: the ConfigMap has no such key. Add it. The operator checks again."
        )
    try:
        return parse_ids(text.encode() if text is not None else base64.b64decode(encoded or ""), where)
    except InputError as e:
        return NoList(e.reason, e.message, final=True)
    except binascii.Error:  # the API server accepts only base64
        return NoList(Reason.INVALID_ID_LIST, f"{where}: the value is not base64.", final=True)


def _get(kube: Kube, namespace: str, name: str) -> Document | None:
    try:
        return kube.get(CONFIG_MAPS, namespace, name)
    except NotFound:
        return None


def _key(restatement: Restatement) -> ConfigMapKey | None:
    source = restatement.spec.batch_ids_from
    return source.config_map_key_ref if source is not None else None


def _rest(found: IdList | NoList) -> timedelta:
    return READ_AGAIN_AFTER if isinstance(found, IdList) or found.final else MISSING_AGAIN_AFTER
