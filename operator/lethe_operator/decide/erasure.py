"""When an Erase by records, or a Replay of rows by their keys, may start. Pure.

Rows are searched in the table. So every batch that lay in the buffer when the Restatement was created has to be promoted before,
or its rows would come afterwards. What is in the buffer later is not what was asked for.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from lethe.ledger.lineage import shown_again_since
from lethe.plan.digest import BufferDigest, WaitingBatch

from lethe_operator.decide.conditions import UNKNOWN
from lethe_operator.decide.ends import finished_before
from lethe_operator.decide.standing import Standing, stalled
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import TableView, World
from lethe_operator.resources.restatement import Restatement
from lethe_operator.settings import Settings

# The API server tells the time of a creation in whole seconds.
_SECOND = timedelta(seconds=1)


def not_yet(restatement: Restatement, dataset: Dataset, world: World, settings: Settings) -> Standing | None:
    """Why it cannot start now; None when it can."""
    name, rows = restatement.meta.name, restatement.spec.rows
    secret = rows.secret.name if rows is not None else ""
    if secret and not _is_allowed(secret, settings):
        allowed = ", ".join(settings.erase_secrets) or "none"
        return stalled(
            Reason.SECRET_NOT_ALLOWED,
            f"Restatement {name}: spec.rows.valuesFrom names the Secret {secret}; the chart's value erase.allowedSecrets allows "
            f"{allowed}. Name the Secret so, or extend that value.",
        )
    if not _searches(restatement):
        return None
    if not _is_listed_since(world.buffer, world.table, restatement.created):
        text = "Which batches came before it is told by the next listing of the buffer."
        return Standing("Queued", UNKNOWN, Reason.BUFFER_BEING_LISTED, text)
    before = _before(restatement, world)
    if not before:
        return None
    which = f"{len(before)} batches that came before it wait in the buffer, the oldest of them {before[0].id!r}"
    if dataset.spec.consolidation.suspend:
        return stalled(
            Reason.WAITS_FOR_BATCHES,
            f"Restatement {name}: {which}, and spec.consolidation.suspend of Dataset {dataset.meta.name} is true. Set it to "
            "false, or take them out of the buffer.",
        )
    text = f"{which}. They are promoted first, so that their rows are found."
    return Standing("Queued", UNKNOWN, Reason.WAITS_FOR_BATCHES, text)


def _searches(restatement: Restatement) -> bool:
    """A dry run only looks at metadata, as they are."""
    return (restatement.spec.rows is not None and not restatement.spec.dry_run) or restatement.by_keys


def _is_allowed(secret: str, settings: Settings) -> bool:
    own = (settings.catalogs_secret, settings.digest_key_secret)
    return secret not in own and any(fnmatchcase(secret, p) for p in settings.erase_secrets)


def _is_listed_since(buffer: object, table: object, created: datetime) -> bool:
    """Whether a listing tells which batches came before a moment: it is younger, and no Undo has let any in since."""
    if not isinstance(buffer, BufferDigest) or buffer.began is None or buffer.began <= created:
        return False
    return not isinstance(table, TableView) or not shown_again_since(table.ancestry, table.head_id, buffer.head_id)


def wants_listing(restatements: Iterable[Restatement], buffer: object, table: object) -> bool:
    """Whether one of them waits for a look at the buffer that is younger than itself, and than the last Undo."""
    return any(not _is_listed_since(buffer, table, r.created) for r in _open(restatements))


def listed_head(restatements: Iterable[Restatement], buffer: object) -> int | None:
    """For a run of these: the snapshot whose ledger told which batches of the buffer it has to wait for; None: for none."""
    searching = any(map(_searches, restatements))
    return buffer.head_id if searching and isinstance(buffer, BufferDigest) else None


def waits_for_batches(world: World) -> bool:
    """Whether one waits for batches of the buffer, which are then promoted without waiting for more."""
    return any(_before(r, world) for r in _open(world.restatements))


def _before(restatement: Restatement, world: World) -> Sequence[WaitingBatch]:
    if not isinstance(world.buffer, BufferDigest):
        return ()
    return [b for b in world.buffer.oldest if b.oldest_time < restatement.created + _SECOND]


def _open(restatements: Iterable[Restatement]) -> Iterable[Restatement]:
    """Those that search for rows and are still wanted."""
    return (
        r
        for r in restatements
        if _searches(r) and not (r.spec.suspend or r.spec.cancel or r.meta.deleting) and finished_before(r) is None
    )
