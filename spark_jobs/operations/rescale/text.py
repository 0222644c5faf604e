"""A rescale as a person reads it."""

from spark_jobs.operations.rescale.plan import RescalePlan
from spark_jobs.operations.words import counted, size_text


def rescale_text(plan: RescalePlan) -> str:
    """A plan in lines."""
    lines = [
        f"rescale of {plan.pipeline}: its state has {counted(plan.before, 'partition')}, {plan.partitions} are wanted"
    ]
    if plan.nothing_to_do:
        return "\n".join([*lines, f"nothing to do: {plan.nothing_to_do}"])
    if plan.repartitioned:
        lines.append("goes on  with one that was interrupted: the state is divided, the ledger lacks the batch")
    elif plan.begun:
        lines.append("goes on  with one that was interrupted while it divided the state")
    return "\n".join(
        [
            *lines,
            f"state    {counted(plan.rows, 'row')}, {size_text(plan.bytes)}, as batch {plan.last} has left it",
            f"batch    {plan.batch} is added to the checkpoint and to the ledger of {plan.definition.sink.table}; "
            "it reads and writes no rows",
        ]
    )
