"""The first event of each key."""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from spark_jobs.spec.durations import PositiveDuration
from spark_jobs.spec.expressions import PlainColumn
from spark_jobs.spec.steps.base import StepSpec
from spark_jobs.spec.watermark import Late
from spark_jobs.spec.windows import Hopping

if TYPE_CHECKING:
    from spark_jobs.spec.pipeline import Pipeline


class Deduplicate(StepSpec):
    """Keeps the first event of each key, and removes those that come after it.

    A key is remembered until the watermark has passed its first event by `within`. Until then each event of it that is
    in time is removed, also one before the first or further from it than `within`: the watermark lags behind. Of
    several in one batch Spark keeps any one. Events behind the watermark are late, whatever their key: nobody knows any
    more whether they are the first. A repair lets a late event through if no event of its key that was let through is
    at most `within` away.

    Attributes:
        keys: columns that are the same in events that count once; null is a value like others.
        within: how long a key is remembered, in event time.
    """

    stateful: ClassVar[bool] = True

    kind: Literal["deduplicate"] = "deduplicate"
    keys: Annotated[tuple[PlainColumn, ...], Field(min_length=1)]
    within: PositiveDuration

    def __init__(self, *keys: str, within: str | timedelta, **other: object) -> None:
        super().__init__(keys=other.pop("keys", keys), within=within, **other)

    def reads(self) -> Iterator[tuple[str, Iterable[str]]]:
        """The columns of the key."""
        yield "Deduplicate keys", self.keys

    def check(self, pipeline: "Pipeline") -> None:
        """It needs a watermark; alone, what it has written never changes."""
        if pipeline.event_time is None or pipeline.watermark is None:
            raise ValueError("event_time and watermark: are required where Deduplicate forgets keys by event time")
        if pipeline.stateful_steps == (self,):
            if pipeline.sink.mode == "update":
                raise ValueError("sink: the first event of a key never changes, got mode 'update': leave it out")
            if pipeline.watermark.late is Late.UPDATE:
                raise ValueError("watermark: Late.UPDATE changes published results, which events are not: use another")
            return
        window = getattr(pipeline.stateful_steps[-1], "window", None)
        if isinstance(window, Hopping) and window.size % window.every != timedelta(0):
            raise ValueError(
                "steps: Deduplicate before windows of which an event belongs sometimes to more and sometimes to fewer: "
                "what it removes could not be counted in windows. Make the size a multiple of `every`"
            )
