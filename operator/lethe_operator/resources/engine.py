"""What carries out an attempt of a run. Pure."""

from enum import StrEnum


class Engine(StrEnum):
    """What carries out an attempt of a run. The notes about attempts contain these names, so they must not change."""

    JOB = "Job"  # a pod of its own, or one that several Datasets share
    COMMITTER = "Committer"  # the namespace's process for runs that write no data files
    WARM_DRIVER = "WarmDriver"  # the namespace's driver that stays up between small runs
