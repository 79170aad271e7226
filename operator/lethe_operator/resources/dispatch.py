"""The record of an attempt that the operator gave to a process of the namespace, in the Dataset's ConfigMap. Pure.

An attempt by the committer or the warm driver has no Job. This record holds what the labels and annotations of a Job would say.
"""

from datetime import datetime

from lethe.contract.kind import RunFamily
from pydantic import Field

from lethe_operator.resources.common import Spec
from lethe_operator.resources.engine import Engine


class Dispatch(Spec):
    name: str  # the name that a Job of this attempt would have
    run_id: str
    family: RunFamily = Field(alias="kind")
    attempt: int
    generation: int  # the Dataset's when the operator wrote the record
    for_uid: str = ""  # as in the annotation ANNOTATION_FOR_UID of a Job
    created_time: datetime
    engine: Engine  # which process
