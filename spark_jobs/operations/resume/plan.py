"""What a person may decide about a halted pipeline, as a value; nothing is written."""

from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.halts import Choice, Halt, halted
from spark_jobs.operations.shape import OperationPlan
from spark_jobs.spec import DefinitionError


class ResumePlan(OperationPlan):
    """How a halted pipeline is to go on.

    Attributes:
        halt: the batch that it is about, as the person has seen it.
        choice: what becomes of it.
    """

    halt: Halt
    choice: Choice


def plan_resume(lake: Lake, pipeline: str, choice: Choice) -> ResumePlan:
    """How a halted pipeline is to go on.

    Raises:
        NotHaltedError: if it is not halted.
        ChoiceRefusedError: if that cannot be done about the batch.
    """
    plan = ResumePlan(pipeline=pipeline, halt=halted(lake, pipeline), choice=choice)
    plan.halt.refuse(choice)
    return plan


def choice_of(pipeline: str, *, skip: bool, quarantine: bool) -> Choice:
    """What a person has chosen.

    Raises:
        DefinitionError: if that is two things.
    """
    if skip and quarantine:
        raise DefinitionError(
            f"resume {pipeline}: expected --skip (all rows of the batch are set aside) or --quarantine (those that "
            "break the rule), got both. Nothing was changed."
        )
    return "skip" if skip else "quarantine" if quarantine else "resume"
