"""`tidemark shadow`: another version of a pipeline beside the one that runs."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_jobs.cli.checkpoints import JsonOption
from spark_jobs.cli.definitions import one
from spark_jobs.cli.options import LakeOption, PipelineArgument, duration, lake_of
from spark_jobs.cli.savepoints import ByOption
from spark_jobs.cli.signals import interruptible
from spark_jobs.cli.terminal import err, out, say, tell
from spark_jobs.cli.users import user_of_system
from spark_jobs.spec import Definition, DefinitionError, Pipeline

if TYPE_CHECKING:
    from spark_jobs.console.operation import Operation
    from spark_jobs.operations.shadow.plan import PromotionPlan


def shadow(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    drop: Annotated[bool, typer.Option("--drop", help="Stop the shadow, and remove all that it has written.")] = False,
    promote: Annotated[
        bool, typer.Option("--promote", help="Put its version in the place of the one that runs, as rebuild does.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Drop or promote without asking.")] = False,
    wait: Annotated[str, typer.Option(help="How long to wait until streams have stopped, or run.")] = "3 minutes",
    comment: Annotated[str, typer.Option(help="Why; kept in ops.decisions.")] = "",
    by: ByOption = None,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", hidden=True, help="A plan that was made, and approved, before.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a pipeline with its shadow (`deploy --mode shadow`) row by row; or drop the shadow, or promote it."""
    from spark_jobs.console.operation import Operation
    from spark_jobs.operations.shadow.compare import look
    from spark_jobs.operations.shadow.plan import DropPlan, PromotionPlan, plan_drop, plan_promotion
    from spark_jobs.operations.shadow.text import beside_text, drop_text, promotion_text

    if drop and promote:
        raise DefinitionError("--drop, --promote: expected one of them. Nothing was changed.")
    timeout, who = duration("--wait", wait), by or f"{user_of_system()} at the command line"
    operation = Operation(out, err, lake_of(lake))
    definition, approved = one(pipeline, on=operation.lake), plan_file.read_text() if plan_file else None
    sure = yes or approved is not None
    if promote:
        plan = PromotionPlan.model_validate_json(approved) if approved else plan_promotion(operation.lake, definition)
        operation.say(promotion_text(plan))
        if not operation.confirmed("Promote it?", yes=sure):
            say("Nothing was changed.")
            return
        raise typer.Exit(_promote(operation, definition, plan, timeout=timeout, by=who, comment=comment))
    if drop:
        dropping = DropPlan.model_validate_json(approved) if approved else plan_drop(operation.lake, definition.name)
        operation.say(drop_text(dropping))
        if not operation.confirmed("Drop it?", yes=sure):
            say("Nothing was changed.")
            return
        from spark_jobs.operations.shadow.execute import drop as carry_out

        carry_out(operation.lake, dropping, by=who, timeout=timeout, say=say, comment=comment)
        return
    found = look(operation.lake, definition.name)
    if as_json:
        tell(found.model_dump_json(indent=2))
    else:
        operation.say(beside_text(found))


def _promote(
    operation: "Operation", definition: Definition, plan: "PromotionPlan", *, timeout: timedelta, by: str, comment: str
) -> int:
    if not isinstance(definition, Pipeline):
        raise DefinitionError(f"pipeline `{definition.name}`: is an ingest, which has no shadow. Nothing was changed.")

    from spark_jobs.operations.deploy.execute import watch
    from spark_jobs.operations.shadow.execute import promote

    with interruptible() as stop:
        code, ordered = promote(
            operation.lake,
            definition,
            plan,
            lambda work: operation.with_streams(definition, work),
            by=by,
            timeout=timeout,
            stop=stop,
            say=say,
            comment=comment,
        )
    if code == 0 and timeout:
        watch(operation.lake, ordered, mode="direct", timeout=timeout, by=by, say=say)
    return code
