"""Runs that stop at a step: a context with callbacks, and the death of a process. Uses no Spark session."""

from collections.abc import Callable
from dataclasses import dataclass, field

from lethe_spark.run.context import RunContext


class Killed(BaseException):
    """The process dies here, as far as the code can tell: none of its `except Exception` runs."""


@dataclass(frozen=True)
class SteppedContext(RunContext):
    """A context that records its steps and runs a callback the first time a step is reached, or the second time if its name
    ends with a number: `before-commit-2`."""

    at: dict[str, Callable[[], object]] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)

    def step(self, name: str) -> None:
        self.steps.append(name)
        happening = self.at.pop(name, None) or self.at.pop(f"{name}-{self.steps.count(name)}", None)
        if happening is not None:
            happening()
        super().step(name)


def die() -> None:
    raise Killed
