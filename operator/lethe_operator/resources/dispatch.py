"""What is noted of a run that the committer of the namespace was asked for, as of others their Job tells. Pure."""

from datetime import datetime

from lethe.contract.kind import RunFamily
from pydantic import Field

from lethe_operator.resources.common import Spec


class Dispatch(Spec):
    """One attempt. `name` is what a Job of it would be called; `generation` the Dataset's when it was asked for; `for_uid` as of
    a Job."""

    name: str
    run_id: str
    family: RunFamily = Field(alias="kind")
    attempt: int
    generation: int
    for_uid: str = ""
    created_time: datetime
