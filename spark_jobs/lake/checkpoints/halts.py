"""Halts: a batch that broke a rule with `on_failure="fail"`, or that cannot be computed, and what a person has decided.

`_control/_halts/<pipeline>/<number>.json`, see `records`. The newest record counts, and only for the batch and the
epoch that it names: a reset lifts a halt, and a decision is never carried out on another batch.
"""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import ConcurrentDriverError, TidemarkError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.formats import PersistedValue
from spark_jobs.lake.store.records import Records, RecordTakenError
from spark_jobs.lake.tables import decisions
from spark_jobs.spec import is_name

FOLDER = "_control/_halts"

Choice = Literal["resume", "quarantine", "skip"]
"""What a person can decide: try the batch again; set aside the rows that break the rules; set aside all of its rows."""

WAYS_ON: Mapping[Choice, str] = {
    "resume": "tries the batch again, after a fix of the rule, the source or the code",
    "quarantine": "sets the rows that break the rule aside, and writes the rest",
    "skip": "sets all rows of the batch aside",
}
"""What each of them does."""


class HaltedError(TidemarkError):
    """A pipeline waits for a person's decision about a batch."""


class NotHaltedError(TidemarkError):
    """There is no batch to decide about, or not this one any more."""


class ChoiceRefusedError(TidemarkError):
    """Something that cannot be done about the batch at which a pipeline is halted."""


class Halt(PersistedValue):
    """A batch that is not written until a person has decided.

    Attributes:
        pipeline: its name.
        epoch: of its checkpoint.
        batch_id: of the batch.
        broken: rule -> rows of the batch that break it.
        failed: what Spark calls the fault at which its rows cannot be computed, such as `DIVIDE_BY_ZERO`; None: they
            break rules.
        samples: values that broke the first rule, or the words of the fault; those of personal columns masked.
        since: when it halted.
        choice: what was decided; None: nothing yet.
        decided_by: who has.
        decided_at: when.
        comment: why, in the person's words.
        decision_id: of the row in `ops.decisions`.
    """

    pipeline: str
    epoch: int
    batch_id: int
    broken: Mapping[str, int] = {}
    failed: str | None = None
    samples: tuple[str, ...] = ()
    since: datetime
    choice: Choice | None = None
    decided_by: str | None = None
    decided_at: datetime | None = None
    comment: str = ""
    decision_id: str | None = None

    @property
    def subject(self) -> str:
        """Which batch it is about, in words."""
        return f"batch {self.batch_id} of epoch {self.epoch}"

    @property
    def why(self) -> str:
        """The fault, or the rules that are broken with the number of rows, in words."""
        return self.failed or ", ".join(f"{rule} ({count:,} rows)" for rule, count in self.broken.items())

    @property
    def what(self) -> str:
        """What has happened, without values of events."""
        if self.failed:
            return f"{self.subject} cannot be computed ({self.failed}); no result of it was written"
        return f"{self.subject} breaks {self.why}; nothing of it was written"

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What can be decided about it: which rows cannot be computed, nobody knows."""
        return tuple(choice for choice in WAYS_ON if not (self.failed and choice == "quarantine"))

    def is_batch(self, epoch: int, batch_id: int) -> bool:
        """Whether it is about this batch."""
        return (self.epoch, self.batch_id) == (epoch, batch_id)

    def error(self) -> HaltedError:
        """What stops every start until somebody has decided."""
        return HaltedError(
            f"pipeline `{self.pipeline}` is halted since {self.since:%Y-%m-%d %H:%M:%S} UTC: {self.what}. "
            f"{self.ways_on()}"
        )

    def ways_on(self) -> str:
        """What to run, in words."""
        first, *others = self.choices
        return (
            f"It does not start until you decide: `{command('resume', self.pipeline)}` {WAYS_ON[first]}; "
            + "; ".join(f"with `--{choice}` it {WAYS_ON[choice]}" for choice in others)
            + "."
        )

    def refuse(self, choice: Choice) -> None:
        """Refuses a choice that cannot be carried out.

        Raises:
            ChoiceRefusedError: if it cannot.
        """
        if choice not in self.choices:
            raise ChoiceRefusedError(
                f"pipeline `{self.pipeline}`: expected a choice that {self.subject} has, got `{choice}`: it cannot be "
                f"computed ({self.failed}), and nothing tells which of its rows are at fault. Nothing was changed. "
                f"`{command('resume', self.pipeline, '--skip')}` sets all of them aside, from where they can come back."
            )


def records(lake: Lake, pipeline: str) -> Records[Halt]:
    """The halts of a pipeline and the decisions about them."""
    return Records(lake, f"{FOLDER}/{pipeline}", Halt)


def standing(lake: Lake, pipeline: str) -> Halt | None:
    """The halt that keeps a pipeline from running; None: there is none, or somebody has decided."""
    found = records(lake, pipeline).newest()[1]
    if found is None or found.choice is not None:
        return None
    epoch = current_epoch(lake, pipeline)
    return found if epoch is not None and epoch.number == found.epoch else None


def halted(lake: Lake, pipeline: str) -> Halt:
    """The halt that keeps a pipeline from running.

    Raises:
        NotHaltedError: if there is none.
    """
    return _refuse_unless_halted(lake, pipeline, None)[0]


def all_standing(lake: Lake) -> dict[str, Halt]:
    """Pipeline -> its halt, of all that wait for a decision, deployed or not; by name."""
    prefixes = lake.store.list_with_delimiter(f"{FOLDER}/")["common_prefixes"]
    names = sorted(prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in prefixes)
    found = {name: standing(lake, name) for name in names if is_name(name)}
    return {name: halt for name, halt in found.items() if halt is not None}


def note_halt(lake: Lake, halt: Halt, *, after: int) -> None:
    """Records that a pipeline is halted, before its query ends.

    Args:
        lake: where.
        halt: without a decision.
        after: number of the newest record when the batch began.

    Raises:
        ConcurrentDriverError: if another driver, or a person, has changed the record meanwhile.
    """
    kept = records(lake, halt.pipeline)
    try:
        kept.append(after + 1, halt)
    except RecordTakenError:
        found = kept.newest()[1]
        if found is None or found.choice is not None or not found.is_batch(halt.epoch, halt.batch_id):
            raise ConcurrentDriverError(
                f"pipeline `{halt.pipeline}`: another driver has run {halt.subject} meanwhile. Nothing of it was "
                "written by this one."
            ) from None


def decide(
    lake: Lake, pipeline: str, choice: Choice, *, by: str, comment: str = "", expected: Halt | None = None
) -> Halt:
    """Decides how a halted pipeline goes on; whoever runs it carries it out with the next start.

    The row in `ops.decisions` comes first. Where this is interrupted between the two, the pipeline is still halted.

    Args:
        lake: where.
        pipeline: its name.
        choice: what to do with the batch.
        by: the person.
        comment: why.
        expected: the halt that the person has seen; None: whichever stands.

    Raises:
        NotHaltedError: if the pipeline is not halted, or is halted at something else by now.
        ChoiceRefusedError: if that cannot be done about this batch.
    """
    halt, number = _refuse_unless_halted(lake, pipeline, expected)
    halt.refuse(choice)
    decision_id = str(uuid.uuid4())
    after = halt.model_copy(
        update={
            "choice": choice,
            "decided_by": by,
            "decided_at": datetime.now(UTC),
            "comment": comment,
            "decision_id": decision_id,
        }
    )
    _note(lake, halt, choice, by=by, comment=comment, decision_id=decision_id)
    try:
        records(lake, pipeline).append(number + 1, after)
    except RecordTakenError:
        raise NotHaltedError(
            f"pipeline `{pipeline}`: somebody else has decided about {halt.subject} at the same time, and that counts; "
            f"both decisions stand in ops.decisions. See `{command('status')}`."
        ) from None
    return after


def reject(lake: Lake, pipeline: str, *, by: str, comment: str = "", expected: Halt | None = None) -> Halt:
    """Notes that a person has refused a decision; the pipeline stays halted.

    Raises:
        NotHaltedError: as `decide`.
    """
    halt, _ = _refuse_unless_halted(lake, pipeline, expected)
    _note(lake, halt, "reject", by=by, comment=comment, decision_id=str(uuid.uuid4()))
    return halt


def _note(lake: Lake, halt: Halt, action: decisions.Action, *, by: str, comment: str, decision_id: str) -> None:
    decisions.note(
        lake,
        pipeline=halt.pipeline,
        action=action,
        decided_by=by,
        subject=f"{halt.subject}: {halt.why}",
        decision_id=decision_id,
        comment=comment,
    )


def _refuse_unless_halted(lake: Lake, pipeline: str, expected: Halt | None) -> tuple[Halt, int]:
    number, newest = records(lake, pipeline).newest() if is_name(pipeline) else (0, None)
    halt = standing(lake, pipeline) if newest is not None else None
    if halt is None:
        others = ", ".join(all_standing(lake))
        decided = ""
        if newest is not None and newest.choice is not None:
            decided = (
                f" The last decision, `{newest.choice}` by {newest.decided_by} at "
                f"{newest.decided_at:%Y-%m-%d %H:%M:%S} UTC, was about {newest.subject}."
            )
        raise NotHaltedError(
            f"pipeline `{pipeline}` is not halted on {lake.uri}: there is nothing to decide. Nothing was changed."
            f"{decided} Halted: {others or 'no pipeline'}."
        )
    if halt != newest or (expected is not None and halt != expected):
        raise NotHaltedError(
            f"pipeline `{pipeline}`: expected the halt that was decided about, got another one by now ({halt.what}). "
            f"Nothing was changed. See `{command('status')}`, then decide again."
        )
    return halt, number
