"""Goes back, as a plan says."""

import uuid

from spark_jobs.control.desired.awaiting import refuse_deployed
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints import restoring
from spark_jobs.lake.checkpoints.restoring import Member
from spark_jobs.lake.errors import TidemarkError
from spark_jobs.lake.tables import decisions
from spark_jobs.operations.restore.plan import RestorePlan
from spark_jobs.operations.restore.sources import read_again
from spark_jobs.operations.restore.text import done_text
from spark_jobs.operations.savepoint.execute import KEPT, take_savepoint, thin_out
from spark_jobs.operations.shape import Say


def carry_out(lake: Lake, plan: RestorePlan, say: Say) -> None:
    """Executes a plan, and says what was done.

    What is there now is saved before, so that a restore can itself be taken back.

    Raises:
        OutdatedPlanError: if things are not as they were planned.
        RestoreRefusedError: if a source has by now lost what is to be read again.
        DeployError: if a driver runs one of the pipelines by now.
        CheckpointError: if another restore has begun meanwhile.
    """
    record = plan.record
    refuse_deployed(lake, [member.pipeline for member in record.members])
    if not plan.resumed:
        for member in record.members:
            member.basis.refuse_outdated(lake)
        read_again(lake, record.members)
        for member in record.members:
            _save(lake, member, record.by, say)
        first = record.members[0]
        decisions.note(
            lake,
            pipeline=first.pipeline,
            action="restore",
            decided_by=record.by,
            subject=first.point.called,
            comment=record.comment,
            decision_id=str(uuid.uuid4()),
        )
        restoring.begin(lake, record)
    restoring.carry_out(lake, record, resumed=plan.resumed)
    say(done_text(plan))


def _save(lake: Lake, member: Member, by: str, say: Say) -> None:
    """A savepoint of what a pipeline is now; where that cannot be saved, a restore is the way out all the same."""
    try:
        take_savepoint(lake, member.pipeline, say, name=None, note="before a restore", by=by, kind="restore")
        thin_out(lake, member.pipeline, "restore", KEPT)
    except TidemarkError as error:
        say(f"What {member.pipeline} is now cannot be saved before it goes back: {error}")
