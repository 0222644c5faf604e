"""Halts a pipeline at a batch that breaks what must not be broken, and carries out what a person decides about it."""

from datetime import UTC, datetime
from typing import Generic, TypeVar

from pyspark.sql import Row
from pyspark.sql import functions as F

from spark_jobs.engine.sources.base import Batch
from spark_jobs.engine.sources.judging import Decision
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints import halts
from spark_jobs.lake.checkpoints.halts import Halt, HaltedError
from spark_jobs.spec import Ingest, Pipeline, RowRule
from spark_jobs.spec.personal import MASK
from spark_jobs.transforms.rows import DETAIL, RAW, REASON, breaches, broken, rules_with, values_read

_SAMPLES = 3

D = TypeVar("D", bound=Ingest | Pipeline)


class BrokenRuleError(HaltedError):
    """Rows break a rule that must not be broken: the pipeline is halted from now on.

    Args:
        broken: what breaks what.
        example: the text of one of the rows.
        remedy: what was not written, and what to do.
    """

    def __init__(self, broken: str, example: str, remedy: str) -> None:
        super().__init__(f"{broken}; one of them: {example!r}. {remedy}")
        self._without_values = f"{broken}. {remedy} The driver's log shows one of them."

    @property
    def without_values(self) -> str:
        """The same without the example."""
        return self._without_values


class UncomputableError(HaltedError):
    """A batch cannot be computed for what its rows hold: the pipeline is halted from now on.

    Args:
        fault: which batch, and what Spark calls the fault.
        words: what Spark says of it; a value may stand there.
        remedy: what was not written, and what to do.
    """

    def __init__(self, fault: str, words: str, remedy: str) -> None:
        super().__init__(f"{fault}: {words}. {remedy}")
        self._without_values = f"{fault}. {remedy}"

    @property
    def without_values(self) -> str:
        """The same without Spark's words."""
        return self._without_values


class Halts(Generic[D]):
    """The halts of one pipeline.

    Args:
        lake: where.
        definition: of the pipeline.
    """

    def __init__(self, lake: Lake, definition: D) -> None:
        self._lake = lake
        self._definition: D = definition
        self._newest: tuple[int, Halt | None] = (0, None)

    def start(self) -> None:
        """Looks which halt is the newest.

        Raises:
            HaltedError: if it waits for a person's decision.
        """
        name = self._definition.name
        if (halt := halts.standing(self._lake, name)) is not None:
            raise halt.error()
        # Only now: a decision that was made in between is seen. Nobody can decide again before it halts again.
        self._newest = halts.records(self._lake, name).newest()

    def decided(self, epoch: int, batch_id: int) -> Halt | None:
        """What a person has decided about a batch: about the first one after a halt, and no other.

        Args:
            epoch: of the checkpoint.
            batch_id: of the batch.
        """
        halt = self._newest[1]
        mine = halt is not None and halt.is_batch(epoch, batch_id)
        return halt if halt is not None and mine and halt.choice is not None else None

    def halt_at(self, epoch: int, batch_id: int, condition: str, words: str) -> UncomputableError:
        """Records that the pipeline is halted at a batch that cannot be computed; what tells so.

        At once, and not where it has failed twice: Spark plans a batch before it runs, so the next try has the same
        rows, and what is wrong with a value is wrong again. It would only be late that a person hears of it.

        Args:
            epoch: of the checkpoint.
            batch_id: of the batch.
            condition: what Spark calls the fault.
            words: what it says of it, values of personal columns masked.

        Raises:
            ConcurrentDriverError: if another driver, or a person, has changed the record meanwhile.
        """
        decided = self.decided(epoch, batch_id)
        halt = Halt(
            pipeline=self._definition.name,
            epoch=epoch,
            batch_id=batch_id,
            failed=condition,
            samples=(words,),
            since=datetime.now(UTC),
        )
        halts.note_halt(self._lake, halt, after=self._newest[0])
        without = (
            "It fails without its own events, too: the fault is in what batches before it have left, and only a new "
            "definition helps. "
            if decided is not None and decided.choice == "skip"
            else ""
        )
        return UncomputableError(
            f"pipeline `{halt.pipeline}`: {halt.subject} cannot be computed ({condition}), which halts the pipeline",
            words,
            f"{without}No result of it was written. {halt.ways_on()}",
        )


class IngestHalts(Halts[Ingest]):
    """The halts of one ingest, whose rules may say that a broken one halts it."""

    def decision(self, epoch: int, batch_id: int) -> Decision:
        """What a person has decided about a batch: about the first one after a halt, and no other.

        Args:
            epoch: of the checkpoint.
            batch_id: of the batch.
        """
        halt = self.decided(epoch, batch_id)
        if halt is None or halt.choice is None:
            return Decision()
        strict, noted = rules_with(self._definition, "fail"), halt.decision_id
        if halt.choice == "quarantine":
            # Those that the person has seen; another one that is broken by now halts it again.
            return Decision("quarantine", tuple(rule for rule in strict if rule.name in halt.broken), decision_id=noted)
        if halt.choice == "skip":
            unread = halt.failed is not None
            return Decision("skip", () if unread else strict, unread=unread, decision_id=noted)
        return Decision(halt.choice)

    def refuse_broken(self, batch: Batch, decision: Decision, epoch: int, batch_id: int) -> None:
        """Ends the query before anything of the batch is written, where rows break a rule that must not be broken.

        Args:
            batch: that was read.
            decision: about it.
            epoch: of the checkpoint.
            batch_id: of the batch.

        Raises:
            BrokenRuleError: then; that the pipeline is halted is recorded before.
        """
        census, definition = batch.census, self._definition
        first = len(rules_with(definition, "warn"))
        counted = enumerate(rules_with(definition, "fail"), start=first)
        found = {rule: count for index, rule in counted if (count := census.broken(index))}
        breached = self._breached(batch, decision)
        if not found and not breached:
            return
        samples = self._samples(batch, next(iter(found), None) or next(iter(breached)))
        # With those that were set aside by the decision that comes to nothing: the next one is about all of them.
        again = {each.name: count for each in decision.set_aside if (count := census.reasons.get(each.name, 0))}
        halt = Halt(
            pipeline=definition.name,
            epoch=epoch,
            batch_id=batch_id,
            broken={each.name: count for each, count in found.items()} | breached | again,
            samples=tuple(dict.fromkeys(str(sample["shown"]) for sample in samples)),
            since=datetime.now(UTC),
        )
        halts.note_halt(self._lake, halt, after=self._newest[0])
        raise BrokenRuleError(
            f"pipeline `{definition.name}`: {_told(halt)}, which halts the pipeline",
            # The text of the row has all of its values.
            MASK if definition.personal else str(samples[0]["raw"]) if samples else "",
            f"Nothing of this batch was written. {halt.ways_on()}",
        )

    def _breached(self, batch: Batch, decision: Decision) -> dict[str, int]:
        """Rows that break the contract where that stops the stream, less those that somebody has decided about."""
        halt = self._newest[1]
        decided = halt.broken if halt is not None and decision.choice == "quarantine" else ()
        counts = {reason: batch.census.reasons.get(reason, 0) for reason in breaches(self._definition)}
        return {reason: count for reason, count in counts.items() if count and reason not in decided}

    def _samples(self, batch: Batch, broken_by: RowRule | str) -> list[Row]:
        """Some rows that break a rule, or the contract: their text, and what is shown of it."""
        if isinstance(broken_by, str):
            kept, shown = F.col(REASON) == broken_by, F.col(DETAIL)
        else:
            kept = F.col(REASON).isNull() & broken(broken_by)
            shown = values_read(broken_by, self._definition.personal)
        found = batch.rows.where(kept & batch.is_event)
        return found.select(F.make_valid_utf8(RAW).alias("raw"), shown.alias("shown")).head(_SAMPLES)


def _told(halt: Halt) -> str:
    return ", ".join(f"{count} rows of batch {halt.batch_id} break {rule}" for rule, count in halt.broken.items())
