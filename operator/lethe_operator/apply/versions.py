"""Reports that runs have another version of Lethe than this operator. I/O."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from lethe.version import version

from lethe_operator.apply import events
from lethe_operator.decide.runs.version_skew import skew_event
from lethe_operator.kube import Kube
from lethe_operator.metrics import Metrics
from lethe_operator.resources.common import Meta


@dataclass
class RunVersions:
    """One per operator, shared by its threads."""

    metrics: Metrics
    # The image of runs.
    image: str
    own: str = field(default_factory=version)
    # Namespaces and versions that were reported: once per process is enough.
    _reported: set[tuple[str, str]] = field(default_factory=set)

    def report(self, kube: Kube, dataset: Meta, versions: Iterable[str]) -> None:
        """Show in a metric whether the runs that have just ended had this operator's version. Of another version, post an event,
        which the log contains, too.

        Args:
            versions: That the runs reported; "": none.
        """
        for reported in sorted(versions):
            differs = reported != self.own
            self.metrics.version_skew(dataset.namespace, differs)
            key = (dataset.namespace, reported)
            if differs and key not in self._reported:
                self._reported.add(key)
                uids = {("Dataset", dataset.name): dataset.uid}
                events.post(kube, dataset.namespace, [skew_event(dataset.name, reported, self.own, self.image)], uids)
