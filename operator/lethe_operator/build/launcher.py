"""The object that launches a run, of the kind that the run template names. Pure."""

from collections.abc import Sequence
from typing import Any, assert_never

from lethe.contract.run import RunSpec

from lethe_operator.build import job, spark_application
from lethe_operator.build.sizing import Size
from lethe_operator.resources.dataset import RunTemplate
from lethe_operator.resources.launcher import Launcher
from lethe_operator.resources.restatement import SecretFile
from lethe_operator.settings import Settings


def launcher_of(template: RunTemplate) -> Launcher:
    """The kind of object that launches the runs with this template."""
    return template.launcher or Launcher.JOB


def run_object(
    run: RunSpec,
    size: Size,
    template: RunTemplate,
    record: job.AttemptRecord,
    settings: Settings,
    secrets: Sequence[SecretFile] = (),
) -> dict[str, Any]:
    """The Job or the SparkApplication of one attempt of a run. Its name is the same for both kinds.

    Args:
        template: The allowed additions of chart and Dataset, merged.
        secrets: Mounted into the driver's pod.
    """
    match launcher_of(template):
        case Launcher.JOB:
            return job.job(run, size, template, record, settings, secrets)
        case Launcher.SPARK_APPLICATION:
            return spark_application.spark_application(run, size, template, record, settings, secrets)
        case launcher:
            assert_never(launcher)
