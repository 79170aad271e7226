"""Lets decoders decode units, such as files, one after another, whatever becomes of the decoders. I/O.

Invariant: the result of each unit is used once. If a decoder ends, the units without a result go to the next decoder. The one
that it was decoding is divided, or decoded once more, alone, or refused. If rows of several units were being converted together,
these are decoded again, each alone.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, TypeVar

from lethe.decoder.child import NOTHING, SEVERAL, Work
from lethe.decoder.limits import Limits
from lethe.decoder.link import Content
from lethe.decoder.process import Cause, Death, NoDecoder, OnWait, Process

T = TypeVar("T")
UNITS_AT_ONCE: Final = 64
BYTES_AT_ONCE: Final = 4 * 1024**2
# Decoders in a row that end without having begun anything.
_IDLE_DEATHS_AT_MOST: Final = 3


@dataclass(eq=False)
class Unit:
    """Something to decode."""

    document: dict[str, Any]  # for the decoder
    content: Content | None  # None: the decoder asks for ranges
    size: int  # in bytes
    name: str  # for the log
    read: Callable[[int, int], bytes] | None = None  # reads a range: offset, size
    of: Any = None  # what the caller knows of it
    alone: bool = False  # no other unit is in the decoder's hands meanwhile
    deaths: int = 0
    number: int = field(default=NOTHING)


# Uses a result: the document, its contents, and the units by number. What it returns is returned by `supervise`.
OnResult = Callable[[dict[str, Any], list[memoryview], dict[int, Unit]], Iterable[T]]
# Uses a unit that has no result because it ends decoders. The text says how.
OnRefusal = Callable[[Unit, str], None]
# The parts of a unit that has ended a decoder, to decode in its place; none: it cannot be divided.
Divide = Callable[[Unit], Sequence[Unit]]


def limits_here() -> Limits:
    """The limits of decoders of this process."""
    return Limits.from_environment(os.environ)


def supervise(
    work: Work,
    units: Iterable[Unit],
    on_result: OnResult[T],
    on_refusal: OnRefusal,
    divide: Divide = lambda _: (),
    on_wait: OnWait | None = None,
) -> Iterator[T]:
    """Decode all units in their order.

    Args:
        units: Are asked for when they are needed.
        on_wait: Called often while a decoder works, with its processor time so far, in seconds. If it raises,
            the decoder is ended.
    Raises: NoDecoder; the errors of `Unit.read` and of the functions.
    """
    supervision = _Supervision(work, iter(units), on_refusal, divide, on_wait)
    try:
        while supervision.send():
            while (found := supervision.result()) is not None:
                document, contents = found
                yield from on_result(document, contents, supervision.sent)
                supervision.settle(document["settled"])
    finally:
        supervision.close()


class _Supervision:
    def __init__(
        self, work: Work, units: Iterator[Unit], on_refusal: OnRefusal, divide: Divide, on_wait: OnWait | None
    ) -> None:
        self._work, self._units, self._on_refusal, self._divide = work, units, on_refusal, divide
        self._on_wait = on_wait
        self._waiting: deque[Unit] = deque()
        self.sent: dict[int, Unit] = {}  # those without a result, in their order
        self._numbers = count()
        self._process: Process | None = None
        self._idle_deaths = 0
        self._flushed = False

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def settle(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            del self.sent[number]
        self._idle_deaths = 0

    def send(self) -> bool:
        """Send the next units, or ask for the rest. Returns: False, if everything is done."""
        group, is_last = self._group()
        if not group and not self.sent:
            return False
        for unit in group:
            unit.number = next(self._numbers)
            self.sent[unit.number] = unit
        if self._process is None:
            self._process = Process(self._work)
        self._flushed = is_last
        document = {
            "units": [[u.number, u.size, u.content is not None, u.document] for u in group],
            "flush": is_last,
        }
        try:
            self._process.send(document, [u.content for u in group if u.content is not None])
        except Death as death:
            self._died(death)
        return True

    def result(self) -> tuple[dict[str, Any], list[memoryview]] | None:
        """The next result. None: the decoder needs more units, or another decoder does."""
        while self._process is not None:
            try:
                document, contents = self._process.receive(self._name, self._on_wait)
                match document["kind"]:
                    case "result":
                        return document, contents
                    case "ready":
                        if self._flushed and self.sent:
                            raise NoDecoder(f"{len(self.sent)} units have no result")
                        return None
                    case "read":
                        read = self.sent[document["unit"]].read
                        assert read is not None
                        self._process.send({}, [read(document["offset"], document["size"])])
            except Death as death:
                self._died(death)
        return None

    def _name(self, number: int) -> str:
        return self.sent[number].name if number in self.sent else "a file"

    def _group(self) -> tuple[list[Unit], bool]:
        """The next units, and whether all results are to be sent after them."""
        group: list[Unit] = []
        size = 0
        while len(group) < UNITS_AT_ONCE and size < BYTES_AT_ONCE:
            if not self._waiting:
                following = next(self._units, None)
                if following is None:
                    return group, True
                self._waiting.append(following)
            unit = self._waiting[0]
            if unit.alone and (group or self.sent):
                return group, True
            group.append(self._waiting.popleft())
            size += len(unit.content) if unit.content is not None else 0
            if unit.alone:
                return group, True
        return group, False

    def _died(self, death: Death) -> None:
        self.close()
        unsettled = list(self.sent.values())
        culprit = self.sent.get(death.unit)
        if death.unit == SEVERAL and len(unsettled) == 1:
            culprit = unsettled[0]
        self.sent.clear()
        if culprit is None and death.unit != SEVERAL:
            self._idle_deaths += 1
            if self._idle_deaths > _IDLE_DEATHS_AT_MOST:
                raise NoDecoder(f"the process that decodes files ends before it decodes any ({death.signal})")
        again: list[Unit] = []
        for unit in unsettled:
            if unit is culprit:
                again += self._after_death(unit, death)
            else:
                unit.alone = unit.alone or death.unit == SEVERAL
                again.append(unit)
        self._waiting.extendleft(reversed(again))

    def _after_death(self, unit: Unit, death: Death) -> Sequence[Unit]:
        """What to decode in the place of a unit that has ended a decoder."""
        unit.deaths += 1
        if parts := self._divide(unit):
            return parts
        # Somebody else may have killed the decoder, and other units may have had its memory, so a unit is decoded once more.
        if death.cause is not Cause.TIME and unit.deaths == 1:
            unit.alone = True
            return [unit]
        self._on_refusal(unit, death.message(self._work.limits, unit.size))
        return ()
