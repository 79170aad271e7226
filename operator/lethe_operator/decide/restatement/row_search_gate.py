"""Decides when an Erase by records, or a Replay with key columns, may start. Pure.

Such a run searches for rows in the table. So every batch that was in the buffer when the Restatement was created must be promoted
first; otherwise its rows would be added after the search. Batches that are added to the buffer later do not matter.

Invariant: no time of the API server or of the operator is compared with a time of the store. A listing that starts after the
operator knows the Restatement finds all batches that came before it. The write time of the youngest of them is the horizon. The
Restatement waits for all batches up to the horizon, including batches that the listing counted but did not name.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from lethe.base.patterns import matches_any
from lethe.buffer.digest import BufferDigest, WaitingBatch
from lethe.ledger.lineage import shown_again_since

from lethe_operator.decide.conditions import UNKNOWN
from lethe_operator.decide.restatement.assessment import Assessment, RestatementPhase, stalled
from lethe_operator.decide.restatement.outcome import finished_before
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import TableView, World
from lethe_operator.resources.restatement import Restatement
from lethe_operator.settings import Settings, catalogs_secret_of


def not_yet(restatement: Restatement, dataset: Dataset, world: World, settings: Settings) -> Assessment | None:
    """The assessment of a Restatement that cannot start now; None: it can."""
    name, rows = restatement.meta.name, restatement.spec.rows
    secret = rows.secret.name if rows is not None else ""
    if secret and not _is_allowed(secret, dataset.meta.namespace, settings):
        allowed = ", ".join(settings.erase_secrets) or "none"
        return stalled(
            Reason.SECRET_NOT_ALLOWED,
            f"Restatement {name}: spec.rows.valuesFrom names the Secret {secret}; the chart's value erase.allowedSecrets allows "
            f"{allowed}. Use a Secret with an allowed name, or extend that value.",
        )
    if not _searches(restatement):
        return None
    if not _is_listed_since(world.buffer, world.table, restatement):
        text = "Waiting for the next listing of the buffer, which shows which batches arrived before this Restatement."
        return Assessment(RestatementPhase.QUEUED, UNKNOWN, Reason.BUFFER_BEING_LISTED, text)
    before, hidden = _before(restatement, world.buffer), _may_hide(restatement, world.buffer)
    if not before and not hidden:
        return None
    least = "at least " if hidden else ""
    which = (
        f"{least}{len(before)} batches that arrived before it wait in the buffer (oldest: {before[0].id!r})"
        if before
        else "batches that the last listing did not name wait in the buffer, and some may have arrived before it"
    )
    if dataset.spec.consolidation.suspend:
        return stalled(
            Reason.WAITS_FOR_BATCHES,
            f"Restatement {name}: {which}, and spec.consolidation.suspend of Dataset {dataset.meta.name} is true. Set it to "
            "false, or remove the batches from the buffer.",
        )
    text = f"{which[:1].upper()}{which[1:]}. They are promoted first, so that the run finds their rows."
    return Assessment(RestatementPhase.QUEUED, UNKNOWN, Reason.WAITS_FOR_BATCHES, text)


def _searches(restatement: Restatement) -> bool:
    """Whether the run searches for rows by their values. A dry run reads metadata only."""
    return (restatement.spec.rows is not None and not restatement.spec.dry_run) or restatement.by_keys


def _is_allowed(secret: str, namespace: str, settings: Settings) -> bool:
    own = (settings.catalogs_secret, catalogs_secret_of(settings, namespace), settings.digest_key_secret)
    return secret not in own and matches_any(settings.erase_secrets, secret)


def _is_listed_since(buffer: object, table: object, restatement: Restatement) -> bool:
    """Whether the last listing shows which batches came before the Restatement: it started after the operator knew the
    Restatement, and no Undo was committed since, which could allow more batches to be promoted."""
    if _horizon(restatement, buffer) is None or not isinstance(buffer, BufferDigest):
        return False
    return not isinstance(table, TableView) or not shown_again_since(table.ancestry, table.head_id, buffer.head_id)


def wants_listing(restatements: Iterable[Restatement], buffer: object, table: object) -> bool:
    """Whether a Restatement needs a new listing: none has started since the operator knows it or since the last Undo, or all
    batches that the last listing named are promoted and more may wait."""
    return any(
        not _is_listed_since(buffer, table, r) or (_may_hide(r, buffer) and not _before(r, buffer))
        for r in _open(restatements)
    )


def listed_head(restatements: Iterable[Restatement], buffer: object) -> int | None:
    """For a run of these Restatements: the snapshot whose ledger showed which batches of the buffer it must wait for; None: it
    does not wait for batches."""
    searching = any(map(_searches, restatements))
    return buffer.head_id if searching and isinstance(buffer, BufferDigest) else None


def waits_for_batches(world: World) -> bool:
    """Whether a Restatement waits for batches in the buffer. The consolidation of these batches then starts at once."""
    return any(_before(r, world.buffer) for r in _open(world.restatements))


def searching(restatements: Iterable[Restatement]) -> frozenset[str]:
    """The UIDs of the Restatements that need a horizon from the next listing."""
    return frozenset(r.meta.uid for r in _open(restatements))


def _horizon(restatement: Restatement, buffer: object) -> datetime | None:
    """The write time of the youngest batch that may have come before the Restatement; None: no listing has shown it yet."""
    return buffer.horizons.get(restatement.meta.uid) if isinstance(buffer, BufferDigest) else None


def _before(restatement: Restatement, buffer: object) -> Sequence[WaitingBatch]:
    """The named batches that came before the Restatement and are not promoted yet."""
    horizon = _horizon(restatement, buffer)
    if horizon is None or not isinstance(buffer, BufferDigest):
        return ()
    return [b for b in buffer.oldest if b.oldest_time <= horizon]


def _may_hide(restatement: Restatement, buffer: object) -> bool:
    """Whether batches that the listing did not name may have come before the Restatement."""
    horizon = _horizon(restatement, buffer)
    return horizon is not None and isinstance(buffer, BufferDigest) and buffer.may_hide(horizon)


def _open(restatements: Iterable[Restatement]) -> Iterable[Restatement]:
    """The Restatements that search for rows and may still start."""
    return (
        r
        for r in restatements
        if _searches(r) and not (r.spec.suspend or r.spec.cancel or r.meta.deleting) and finished_before(r) is None
    )
