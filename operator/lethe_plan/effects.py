"""Gathers what the effects of a plan depend on, as values that become `Observation`s. I/O: only reads.

That is: the resources of a namespace after the apply, tables and buffers, and the footers of some files, for the columns that
spec.schemaEvolution would add.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from lethe.base.errors import InputError, LetheError, Verdict
from lethe.base.objects import BufferedObject
from lethe.buffer.digest import BufferDigest, WaitingBatch
from lethe.buffer.layout import BufferedBatch
from lethe.contract.dataset import RunTemplate
from lethe.contract.kubernetes import APPROVE, VACUUM_NOW
from lethe.contract.result import RequestResult
from lethe.contract.run import ColumnRedaction, RestatementRequest
from lethe.contract.settings import FileFormat, SchemaEvolution, UnknownBatches
from lethe.ingest.buffer_files import COLUMNS_WANTED, FileOutcome, Reader, ReadSettings, decode_columns
from lethe.ingest.buffer_store import BufferAway, FileTask
from lethe.ingest.checking import columns_of
from lethe.ingest.schema_fit import plan_evolution
from lethe.ingest.shared_folders import open_buffer
from lethe.kube import (
    CONFIG_MAPS,
    DATASETS,
    RESTATEMENTS,
    VACUUM_POLICIES,
    KubeError,
    NotFound,
    RequestRefused,
    ResourceKind,
)
from lethe.ledger_chunks import delivered
from lethe.restatement.selection import Deliveries, with_selected
from lethe.restatement.unknown import UNKNOWN_BATCHES, refuse_unknown, unknown_ids_of
from lethe.search.columns import ColumnUse, redactable_columns, require_columns, searchable_column
from lethe_kubectl.dry_run import Uploads
from lethe_kubectl.target import Connection, no_such_path
from lethe_operator.guards.holds import holds_now
from lethe_operator.guards.preconditions import blocker
from lethe_operator.request.targets import Target, targets_of
from lethe_operator.resources.dataset import Dataset, parse_dataset
from lethe_operator.resources.observed import LookupView, NoTable, NotListed, Observation, Unavailable
from lethe_operator.resources.restatement import Restatement, Unmet, parse_restatement
from lethe_operator.resources.vacuum_policy import VacuumPolicy, parse_vacuum_policy
from lethe_operator.resources.vacuum_policy import match as match_policy
from lethe_operator.restatement.assess import RestatementContext, assess, undone
from lethe_operator.restatement.observe import listed
from lethe_operator.restatement.outcome import NEVER_TRIED
from lethe_operator.runs import spec as run_specs
from lethe_operator.settings import Settings
from lethe_operator.vacuum.decide import decide_vacuum
from lethe_spark.commit.replacement_files import find_replacements, with_ids

from lethe_plan import datasets, policies, restatements, subjects
from lethe_plan.changes import Change, Document
from lethe_plan.datasets import DatasetFacts
from lethe_plan.effect import NO_EFFECT, Effect
from lethe_plan.policies import Decided
from lethe_plan.restatements import RestatedTable
from lethe_plan.subjects import SearchedTable
from lethe_plan.tables import Observed, ReadTable, Tables, unreadable, view

# The oldest batches, one file of each: files of a batch have the same columns.
_BATCHES_AT_MOST: Final = 20


def new_columns(dataset: Dataset, table: ReadTable, buffer: BufferDigest) -> Sequence[str]:
    """The columns that the next run would add or widen, each with its type.

    Files that cannot be read count as without new columns, and so do all for a table with columns that cannot be compared here:
    the run reports them.
    """
    spec = dataset.spec
    if spec.schema_evolution is not SchemaEvolution.ADD_COLUMNS or spec.buffer.format is not FileFormat.PARQUET:
        return ()
    try:
        columns = columns_of(table.table.schema())
    except InputError:
        return ()
    store = open_buffer(spec.buffer.uri, spec.batch_column, table.properties, spec.buffer.layout)
    tasks: list[FileTask] = []
    for waiting in buffer.oldest[:_BATCHES_AT_MOST]:
        batch = store.folder(waiting.folder)
        if isinstance(batch, BufferedBatch) and batch.data_objects:
            first = batch.data_objects[0]
            tasks.append(FileTask(batch.id, first.key, first.size, first.etag))
    outcomes: dict[tuple[str, str], FileOutcome] = {}
    settings = ReadSettings(spec.batch_column, dict(table.properties), spec.buffer.format, add_columns=True)
    with suppress(BufferAway):
        Reader(columns, settings).compare_columns(tasks, outcomes)
    lacking = {
        batch_id: [(uri, decode_columns(o.error.message))]
        for (batch_id, uri), o in outcomes.items()
        if o.error is not None and o.error.reason == COLUMNS_WANTED
    }
    return [f"{f.name} ({f.type})" for f in plan_evolution(columns, lacking).columns]


@dataclass(frozen=True)
class After:
    """The resources of a namespace as they are after the apply."""

    datasets: Mapping[str, Dataset]
    policies: tuple[VacuumPolicy, ...]
    policies_before: tuple[VacuumPolicy, ...]
    restatements: Mapping[str, Restatement]
    """Those of the manifests, and those that Undos name."""
    waiting: tuple[Restatement, ...] = ()
    """Those in the cluster that have not ended, and are not in the manifests."""

    def policy_of(self, dataset: Dataset) -> VacuumPolicy | None:
        """The policy that decides for a Dataset; None: none selects it."""
        return match_policy(self.policies, dataset.meta.labels).decides


@dataclass
class Surroundings:
    """Reads a buffer or a table when an effect needs it."""

    after: After
    tables: Tables
    now: datetime

    def __post_init__(self) -> None:
        self._buffers: dict[str, BufferDigest | NotListed | Unavailable] = {}

    def table(self, dataset: Dataset) -> Observed:
        """The table as the operator sees it, read from the catalog once; an error is part of the observation."""
        return self.tables.of(dataset)

    def buffer(self, dataset: Dataset) -> BufferDigest | NotListed | Unavailable:
        """The buffer, compared with the table's ledger and listed once; an error is part of the observation."""
        name = dataset.meta.full_name
        if name not in self._buffers:
            self._buffers[name] = self.tables.buffer(dataset, self.table(dataset), self.now)
        return self._buffers[name]

    def world(self, dataset: Dataset, with_buffer: bool = True) -> Observation:
        """What the operator's decisions about a Dataset would depend on."""
        return Observation(
            restatements=tuple(r for r in self.after.restatements.values() if r.spec.dataset == dataset.meta.name),
            policies=self.after.policies,
            table=view(self.table(dataset)),
            buffer=self.buffer(dataset) if with_buffer else NotListed(),
            overlapping_datasets=tuple(d for n, d in self.after.datasets.items() if n != dataset.meta.name),
            catalogs=self.tables.places(),
            lookups={name: LookupView(d) for name, d in self.after.datasets.items()},
        )


ConfigMaps = Mapping[tuple[str, str], Document]
# What the chart's values allow is not readable here, so nothing is refused because of it.
_SETTINGS: Final = Settings(erase_secrets=("*",))
_ENDED: Final = ("Succeeded", "Failed", "Cancelled")
_PAUSED: Final = ("waits", "the annotation lethe.dev/paused of the Dataset is set, so no run starts")


class PlannedEffects:
    """The effects of changes, by namespace. Reads what they need, each thing once."""

    def __init__(
        self,
        at: Connection,
        changes: Sequence[Change],
        config_maps: ConfigMaps,
        uploads: Uploads = MappingProxyType({}),
    ) -> None:
        """Create `PlannedEffects`.

        Args:
            uploads: The data files that would be in the folders of replacements, by the folder's URI.
        """
        self._at, self._changes, self._config_maps, self._uploads = at, changes, config_maps, uploads
        self._tables = Tables(at.local.catalogs if at.local is not None else None)
        self._known: dict[str, Surroundings] = {}
        self._now = datetime.now(UTC)

    def of(self, change: Change) -> Effect:
        """A table or a store that fails makes the effect unknown.

        Raises:
            KubeError: The API server rejected a request, or did not answer (`status` 0).
        """
        if not change.applies:
            return NO_EFFECT
        return self._readable(self._of_deleted if change.after is None else self._of, change)

    def of_put(self, change: Change, put: WaitingBatch) -> Effect:
        """What a Dataset does after a batch was put into its buffer.

        Raises:
            KubeError: The API server rejected a request, or did not answer (`status` 0).
        """
        around = self._around(change.manifest.namespace)
        dataset = around.after.datasets[change.manifest.name]
        return self._readable(lambda _: self._of_dataset(dataset, around, put), change)

    def _readable(self, effect: Callable[[Change], Effect], change: Change) -> Effect:
        """An effect; a table or a store that fails makes it unknown."""
        try:
            return effect(change)
        except (LetheError, OSError) as e:
            return Effect(unknown=unreadable(e, "the table or the buffer", {}, storage=True).message)

    def _of(self, change: Change) -> Effect:
        around = self._around(change.manifest.namespace)
        name = change.manifest.name
        match change.manifest.kind:
            case "Dataset":
                dataset = around.after.datasets[name]
                effect = self._of_dataset(dataset, around)
                asks = change.annotates(VACUUM_NOW) or change.annotates(APPROVE)
                return self._with_vacuum(effect, dataset, around) if asks else effect
            case "VacuumPolicy":
                policy = next(p for p in around.after.policies if p.meta.name == name)
                return self._of_policy(policy, around)
            case "Restatement":
                return self._of_restatement(around.after.restatements[name], around)
        return NO_EFFECT

    # --- Datasets and VacuumPolicies ----------------------------------------------------------------------------------

    def _of_dataset(self, dataset: Dataset, around: Surroundings, put: WaitingBatch | None = None) -> Effect:
        """`put`: a batch that is put into the buffer first; None: none is."""
        world = around.world(dataset)
        table, buffer = around.table(dataset), world.buffer
        columns: Sequence[str] = ()
        if isinstance(buffer, BufferDigest) and isinstance(table, ReadTable):
            columns = new_columns(dataset, table, buffer)
        if isinstance(buffer, BufferDigest) and put is not None:
            size, oldest = buffer.bytes + put.bytes, (*buffer.oldest, put)
            buffer = replace(buffer, batches=buffer.batches + 1, bytes=size, oldest=oldest)
        facts = DatasetFacts(world.table, buffer, self._blocker(dataset, around), columns)
        return datasets.effect(dataset, facts, self._now)

    def _with_vacuum(self, effect: Effect, dataset: Dataset, around: Surroundings) -> Effect:
        """With what a vacuum would do that an annotation requests or approves."""
        table = around.table(dataset)
        if isinstance(table, Unavailable):
            return effect
        blocked = self._blocker(dataset, around)
        verdict = decide_vacuum(dataset, around.world(dataset, False), blocked, self._now, _SETTINGS)
        launched = verdict.launch.run.vacuum if verdict.launch is not None else None
        planned = None
        if isinstance(table, ReadTable) and launched is not None:
            planned = table.vacuum(launched, self._now, holds_now(dataset, self._now))
        decided = Decided(dataset.meta.name, verdict.status, launched is not None, planned)
        return policies.with_vacuum(effect, decided)

    # --- deletions ----------------------------------------------------------------------------------------------------

    def _of_deleted(self, change: Change) -> Effect:
        around = self._around(change.manifest.namespace)
        before = _complete(change.before or {}, self._now)
        match change.manifest.kind:
            case "Dataset":
                return datasets.deleted(parse_dataset(before))
            case "VacuumPolicy":
                policy = parse_vacuum_policy(before)
                others = tuple(p for p in around.after.policies_before if p.meta.name != policy.meta.name)
                labels = {d.meta.name: d.meta.labels for d in around.after.datasets.values()}
                left = {
                    name: match_policy(others, of).decides
                    for name, of in labels.items()
                    if (decides := match_policy(around.after.policies_before, of).decides) is not None
                    and decides.meta.name == policy.meta.name
                }
                return policies.deleted(left)
        return restatements.deleted(parse_restatement(before))

    def _of_policy(self, policy: VacuumPolicy, around: Surroundings) -> Effect:
        mine, left = [], []
        for dataset in around.after.datasets.values():
            now = around.after.policy_of(dataset)
            before = match_policy(around.after.policies_before, dataset.meta.labels).decides
            if now is policy:
                mine.append(self._decided(policy, dataset, around))
            elif before is not None and before.meta.name == policy.meta.name:
                left.append(dataset.meta.name)
        return policies.effect(policy, mine, left, self._now)

    def _decided(self, policy: VacuumPolicy, dataset: Dataset, around: Surroundings) -> Decided:
        table = around.table(dataset)
        if isinstance(table, Unavailable):
            return Decided(dataset.meta.name, dataset.status.vacuum, unknown=table.message)
        verdict = decide_vacuum(dataset, around.world(dataset, False), None, self._now, _SETTINGS)
        planned = None
        if isinstance(table, ReadTable):
            spec = policies.vacuum_spec(dataset, policy, table.view, self._now)
            planned = table.vacuum(spec, self._now, holds_now(dataset, self._now))
        entry = verdict.entries.get(policy.meta.name)
        return Decided(dataset.meta.name, entry, verdict.launch is not None, planned)

    def _blocker(self, dataset: Dataset, around: Surroundings) -> Verdict | None:
        """What keeps runs of the Dataset from starting, apart from what the chart's values allow."""
        bare = dataset.spec.model_copy(update={"run_template": RunTemplate()})
        return blocker(replace(dataset, spec=bare), around.world(dataset), _SETTINGS)

    # --- Restatements -------------------------------------------------------------------------------------------------

    def _of_subject(self, restatement: Restatement, around: Surroundings) -> Effect:
        targets = targets_of(restatement.spec, around.after.datasets.values())
        tables = {
            t.name: _searched(restatement, t, around.table(t.dataset)) for t in targets.included if t.problem is None
        }
        return subjects.effect(restatement.spec, targets, tables)

    def _of_restatement(self, restatement: Restatement, around: Surroundings) -> Effect:
        if restatement.spec.subject is not None:
            return self._of_subject(restatement, around)
        name = restatement.spec.dataset
        dataset = around.after.datasets.get(name)
        if dataset is None:
            known = ", ".join(sorted(around.after.datasets)) or "none"
            text = f"Dataset {name} is neither in namespace {restatement.meta.namespace} nor in the files. There are {known}."
            return restatements.refused(Verdict("DatasetNotFound", text))
        table = around.table(dataset)
        if isinstance(table, Unavailable):
            return Effect(unknown=table.message)
        world = around.world(dataset)
        blocked = self._blocker(dataset, around)
        assessment = assess(RestatementContext(restatement, dataset, world, blocked, NEVER_TRIED, self._now, _SETTINGS))
        if assessment.stalled:
            return restatements.refused(assessment.verdict)
        if assessment.finished:
            return restatements.ended(assessment)
        if isinstance(restatement.listed, Unmet):
            return Effect(unknown=restatement.listed.message)
        if isinstance(table, NoTable):
            return Effect((("waits", assessment.verdict.message),))
        target = undone(restatement, world) if restatement.spec.undoes is not None else ""
        undoes = target if isinstance(target, str) else ""
        request, problem = self._request(restatement, dataset, undoes, table, around)
        if problem is not None:
            return restatements.refused(problem)
        if (unusable := _unusable_column(request, table)) is not None:
            return restatements.refused(unusable)
        added: Sequence[BufferedObject] | None = None
        if request.replacement is not None and request.replacement.uri in self._uploads:
            added = self._uploads[request.replacement.uri]
        elif request.replacement is not None:
            ((_, replacement),) = find_replacements(
                [request], dataset.spec.table.catalog, table.properties, dataset.spec.buffer.uri
            )
            if isinstance(replacement, RequestResult):
                return restatements.refused(replacement.verdict)
            added = replacement
        policy = around.after.policy_of(dataset)
        restated = self._restated(restatement, request, table, around)
        effect = restatements.effect(restatement, request, assessment, restated, added, policy, self._now)
        waiting = [r for r in around.after.waiting if r.spec.dataset == name]
        others = restatements.also_named(request.batch_ids, waiting)
        paused = (_PAUSED,) if dataset.paused else ()
        return replace(effect, lines=(*paused, *effect.lines, *others))

    def unknown_batches(self, change: Change) -> Verdict | None:
        """Why a Restatement that is created would be refused for batches that its Dataset does not know.

        None: it would not, or not everything can be read from here. Reads data files and the buffer only for such batches.
        """
        try:
            around = self._around(change.manifest.namespace)
        except KubeError:  # who may create Restatements may not be allowed to list other resources
            return None
        restatement = around.after.restatements[change.manifest.name]
        dataset = around.after.datasets.get(restatement.spec.dataset)
        table = around.table(dataset) if dataset is not None else None
        if dataset is None or not isinstance(table, ReadTable):
            return None
        try:
            request, problem = self._request(restatement, dataset, "", table, around)
            if problem is not None:
                return problem if problem.reason == UNKNOWN_BATCHES else None
            absent = self._absent(restatement, request, table, table.in_files(request.batch_ids), around)
            refuse_unknown(table.ledger, request, absent)
        except (LetheError, OSError) as e:
            return e.verdict if isinstance(e, InputError) and e.reason == UNKNOWN_BATCHES else None
        return None

    def _restated(
        self, restatement: Restatement, request: RestatementRequest, table: ReadTable, around: Surroundings
    ) -> RestatedTable:
        dataset = around.after.datasets[restatement.spec.dataset]
        in_files = table.in_files(request.batch_ids)
        absent = self._absent(restatement, request, table, in_files, around)
        buffer = around.buffer(dataset)
        waiting = frozenset(b.id for b in buffer.oldest) if isinstance(buffer, BufferDigest) else frozenset()
        cut = buffer.is_cut if isinstance(buffer, BufferDigest) else True
        field_id = table.view.batch_field_id
        assert field_id is not None  # otherwise the Dataset is blocked
        return RestatedTable(
            table.facts.name,
            table.ledger,
            field_id,
            table.files,
            in_files,
            waiting,
            cut,
            absent,
            table.view.keeps_files,
        )

    def _absent(
        self,
        restatement: Restatement,
        request: RestatementRequest,
        table: ReadTable,
        in_files: frozenset[str],
        around: Surroundings,
    ) -> frozenset[str]:
        """The batch ids that a run would find nowhere. Lists the buffer if there may be some."""
        name = restatement.spec.dataset
        others = (*around.after.restatements.values(), *around.after.waiting)
        added = {r.added_batch_id for r in others if r.spec.dataset == name}
        sought = frozenset(unknown_ids_of(table.ledger, [request])).difference(in_files, added)
        if not sought or request.unknown_batches is UnknownBatches.ALLOW:
            return frozenset()
        dataset = around.after.datasets[name]
        if not isinstance(around.buffer(dataset), BufferDigest):
            return frozenset()
        return sought.difference(self._tables.buffered_ids(dataset))

    def _request(
        self, restatement: Restatement, dataset: Dataset, undoes: str, table: ReadTable, around: Surroundings
    ) -> tuple[RestatementRequest, Verdict | None]:
        """The request with the ids of its list or of its run, or why the list cannot be read or the run has no batch."""
        run = run_specs.restatements(dataset, [(restatement, undoes)], lookups=around.after.datasets)
        assert run.restatement is not None
        (request,), aside = with_ids(run.restatement.requests, table.properties, table.facts.location)
        refused = next(iter(aside.values()), None)
        if refused is not None:
            return request, refused.verdict
        if not request.reference:
            return request, None
        try:
            return with_selected(
                table.ledger, request, self._deliveries(request.reference, dataset, table, around)
            ), None
        except InputError as e:
            return request, e.verdict

    def _deliveries(self, reference: str, dataset: Dataset, table: ReadTable, around: Surroundings) -> Deliveries:
        """The batches of a run. Lists the buffer before it reads the ledger's batches."""
        listed = isinstance(around.buffer(dataset), BufferDigest)
        waiting = self._tables.waiting(dataset, table.ledger.batches, reference) if listed else {}
        return Deliveries(delivered(table.ledger.batches, (reference,)), waiting)

    # --- resources ----------------------------------------------------------------------------------------------------

    def _around(self, namespace: str) -> Surroundings:
        if namespace not in self._known:
            after = self._after(namespace)
            self._known[namespace] = Surroundings(after, self._tables, self._now)
        return self._known[namespace]

    def _after(self, namespace: str) -> After:
        mine = [c for c in self._changes if c.manifest.namespace == namespace]
        datasets = {d["metadata"]["name"]: d for d in self._at.kube.list(DATASETS, namespace)}
        before = {p["metadata"]["name"]: p for p in self._at.kube.list(VACUUM_POLICIES, namespace)}
        changed = {k: self._bodies(mine, k) for k in ("Dataset", "VacuumPolicy", "Restatement")}
        asked = {n: self._with_list(parse_restatement(b)) for n, b in changed["Restatement"].items()}
        for r in list(asked.values()):
            undone_name = r.spec.undoes.name if r.spec.undoes is not None else ""
            if undone_name and undone_name not in asked:
                body = self._get(RESTATEMENTS, namespace, undone_name)
                asked |= {undone_name: parse_restatement(body)} if body is not None else {}
        return After(
            datasets={n: parse_dataset(b) for n, b in {**datasets, **changed["Dataset"]}.items()},
            policies=tuple(parse_vacuum_policy(b) for b in {**before, **changed["VacuumPolicy"]}.values()),
            policies_before=tuple(map(parse_vacuum_policy, before.values())),
            restatements=asked,
            waiting=self._waiting(namespace, mine),
        )

    def _waiting(self, namespace: str, changes: Sequence[Change]) -> tuple[Restatement, ...]:
        """The Restatements that have not ended, without those of the manifests; read if a Restatement is planned."""
        planned = {c.manifest.name for c in changes if c.manifest.kind == "Restatement"}
        found = map(parse_restatement, self._at.kube.list(RESTATEMENTS, namespace)) if planned else ()
        return tuple(r for r in found if r.meta.name not in planned and r.status.phase not in _ENDED)

    def _bodies(self, changes: Sequence[Change], kind: str) -> dict[str, Document]:
        """The resources of the manifests after the apply, by name."""
        return {
            c.manifest.name: _complete(c.after, self._now)
            for c in changes
            if c.manifest.kind == kind and c.after is not None
        }

    def _with_list(self, restatement: Restatement) -> Restatement:
        """With the list of batch ids in a ConfigMap, of the files or of the cluster."""
        source = restatement.spec.batch_ids_from
        if source is None or source.config_map_key_ref is None:
            return restatement
        key = source.config_map_key_ref
        namespace = restatement.meta.namespace
        config_map = self._config_maps.get((namespace, key.name))
        try:
            config_map = config_map or self._get(CONFIG_MAPS, namespace, key.name)
        except RequestRefused as e:
            text = f"which batches it names: you may not read the ConfigMap {key.name} in namespace {namespace}"
            return replace(restatement, listed=Unmet(e.reason, text))
        return replace(restatement, listed=listed(dict(config_map) if config_map is not None else None, key))

    def _get(self, kind: ResourceKind, namespace: str, name: str) -> Document | None:
        try:
            return self._at.kube.get(kind, namespace, name)
        except NotFound as e:
            if no_such_path(e):
                raise
            return None


def _unusable_column(request: RestatementRequest, table: ReadTable) -> Verdict | None:
    """Why a column that a Restatement names cannot be searched or redacted; None: it can."""
    field_id = table.view.batch_field_id
    assert field_id is not None  # otherwise the Dataset is blocked
    try:
        schema, name = table.table.schema(), table.facts.name
        require_columns(request, schema, field_id, name)
        if request.redact is not None:
            redactable_columns(request.redact.columns, request.name, schema, table.table.spec(), field_id, name)
    except InputError as e:
        return e.verdict
    return None


def _searched(request: Restatement, target: Target, table: Observed) -> SearchedTable:
    """What a run of this Dataset would search."""
    if isinstance(table, Unavailable):
        return SearchedTable(unknown=table.message)
    if isinstance(table, NoTable) or table.view.batch_field_id is None:
        return SearchedTable()
    spec, field_id, schema, name = request.spec, table.view.batch_field_id, table.table.schema(), table.facts.name
    use = ColumnUse(f"Dataset {target.name}: spec.identities", spec.operation.done)
    try:
        for condition in target.conditions:
            searchable_column(schema, field_id, name, use, condition.column)
        if spec.redact is not None:
            asked = [ColumnRedaction(column=c.column, method=c.method, value=c.value) for c in spec.redact.columns]
            redactable_columns(asked, request.meta.full_name, schema, table.table.spec(), field_id, name)
    except InputError as e:
        return SearchedTable(unusable=e.verdict)
    return SearchedTable(table.files)


def _complete(body: Document, now: datetime) -> dict[str, Any]:
    """The resource as if it had been created now, unless it exists."""
    created = {"creationTimestamp": now.isoformat(), "generation": 1}
    return {**body, "metadata": {**created, **body["metadata"]}}
