"""When an Erase by records, or a Replay of rows by their keys, may start. Pure.

Rows are searched in the table. So every batch that lay in the buffer when the Restatement was created has to be promoted before,
or its rows would come afterwards. What is in the buffer later is not what was asked for.

Invariant: no time of the API server or of the operator is compared with one of the store. A listing that begins once the
Restatement is known finds all batches that came before it; the youngest of them is the horizon. Batches as old as that are waited
for, also those of which a digest that is cut says nothing.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from lethe.base.patterns import matches_any
from lethe.buffer.digest import BufferDigest, WaitingBatch
from lethe.ledger.lineage import shown_again_since

from lethe_operator.decide.conditions import UNKNOWN
from lethe_operator.decide.restatement.assessment import Assessment, stalled
from lethe_operator.decide.restatement.outcome import finished_before
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import TableView, World
from lethe_operator.resources.restatement import Restatement
from lethe_operator.settings import Settings, catalogs_secret_of


def not_yet(restatement: Restatement, dataset: Dataset, world: World, settings: Settings) -> Assessment | None:
    """Why it cannot start now; None when it can."""
    name, rows = restatement.meta.name, restatement.spec.rows
    secret = rows.secret.name if rows is not None else ""
    if secret and not _is_allowed(secret, dataset.meta.namespace, settings):
        allowed = ", ".join(settings.erase_secrets) or "none"
        return stalled(
            Reason.SECRET_NOT_ALLOWED,
            f"Restatement {name}: spec.rows.valuesFrom names the Secret {secret}; the chart's value erase.allowedSecrets allows "
            f"{allowed}. Name the Secret so, or extend that value.",
        )
    if not _searches(restatement):
        return None
    if not _is_listed_since(world.buffer, world.table, restatement):
        text = "The next listing of the buffer shows which batches came before it."
        return Assessment("Queued", UNKNOWN, Reason.BUFFER_BEING_LISTED, text)
    before, hidden = _before(restatement, world.buffer), _may_hide(restatement, world.buffer)
    if not before and not hidden:
        return None
    least = "at least " if hidden else ""
    which = (
        f"{least}{len(before)} batches that came before it wait in the buffer, the oldest of them {before[0].id!r}"
        if before
        else "batches that the last listing did not name wait in the buffer, and some may have come before it"
    )
    if dataset.spec.consolidation.suspend:
        return stalled(
            Reason.WAITS_FOR_BATCHES,
            f"Restatement {name}: {which}, and spec.consolidation.suspend of Dataset {dataset.meta.name} is true. Set it to "
            "false, or take them out of the buffer.",
        )
    text = f"{which}. They are promoted first, so that their rows are found."
    return Assessment("Queued", UNKNOWN, Reason.WAITS_FOR_BATCHES, text)


def _searches(restatement: Restatement) -> bool:
    """A dry run only looks at metadata, as they are."""
    return (restatement.spec.rows is not None and not restatement.spec.dry_run) or restatement.by_keys


def _is_allowed(secret: str, namespace: str, settings: Settings) -> bool:
    own = (settings.catalogs_secret, catalogs_secret_of(settings, namespace), settings.digest_key_secret)
    return secret not in own and matches_any(settings.erase_secrets, secret)


def _is_listed_since(buffer: object, table: object, restatement: Restatement) -> bool:
    """Whether a listing shows which batches came before a Restatement: it began later, and no Undo has let any in since."""
    if _horizon(restatement, buffer) is None or not isinstance(buffer, BufferDigest):
        return False
    return not isinstance(table, TableView) or not shown_again_since(table.ancestry, table.head_id, buffer.head_id)


def wants_listing(restatements: Iterable[Restatement], buffer: object, table: object) -> bool:
    """Whether one of them needs a new listing: none began since it is known, or since the last Undo, or what the last one named
    is promoted, and more may wait."""
    return any(
        not _is_listed_since(buffer, table, r) or (_may_hide(r, buffer) and not _before(r, buffer))
        for r in _open(restatements)
    )


def listed_head(restatements: Iterable[Restatement], buffer: object) -> int | None:
    """For a run of these: the snapshot whose ledger showed which batches of the buffer it has to wait for; None: for none."""
    searching = any(map(_searches, restatements))
    return buffer.head_id if searching and isinstance(buffer, BufferDigest) else None


def waits_for_batches(world: World) -> bool:
    """Whether one waits for batches of the buffer, which are then promoted without waiting for more."""
    return any(_before(r, world.buffer) for r in _open(world.restatements))


def searching(restatements: Iterable[Restatement]) -> frozenset[str]:
    """The UIDs of those that have to know which batches came before them."""
    return frozenset(r.meta.uid for r in _open(restatements))


def _horizon(restatement: Restatement, buffer: object) -> datetime | None:
    """The write time of the youngest batch that may have come before it; None: no listing shows that yet."""
    return buffer.horizons.get(restatement.meta.uid) if isinstance(buffer, BufferDigest) else None


def _before(restatement: Restatement, buffer: object) -> Sequence[WaitingBatch]:
    """Those that wait and are known one by one."""
    horizon = _horizon(restatement, buffer)
    if horizon is None or not isinstance(buffer, BufferDigest):
        return ()
    return [b for b in buffer.oldest if b.oldest_time <= horizon]


def _may_hide(restatement: Restatement, buffer: object) -> bool:
    """Whether others may wait that are not known one by one."""
    horizon = _horizon(restatement, buffer)
    return horizon is not None and isinstance(buffer, BufferDigest) and buffer.may_hide(horizon)


def _open(restatements: Iterable[Restatement]) -> Iterable[Restatement]:
    """Those that search for rows and are still wanted."""
    return (
        r
        for r in restatements
        if _searches(r) and not (r.spec.suspend or r.spec.cancel or r.meta.deleting) and finished_before(r) is None
    )
