"""Tasks that run a finite command of Tidemark's as a process of its own, such as a backfill."""

import json
import shlex
import sys
import uuid
from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from spark_jobs.pipelines import registry
from spark_jobs.plan import logical
from spark_jobs.spec import Definition
from tidemark_dags.assets import MOVED, table_asset
from tidemark_dags.pages import PageLink, pages_url
from tidemark_dags.tasks import definition_of, fail, log, reporting_errors, this_lake

if TYPE_CHECKING:
    from spark_jobs.control.supervision.launchers import StartedTask
    from spark_jobs.lake import Lake
    from spark_jobs.lake.tables.decisions import Action
    from spark_jobs.operations.reports import BatchReport

POOL = "tidemark_batch"
"""The pool of these tasks, with one slot: a machine that runs streams has room for one more JVM, not for many."""

_ERROR = "error:"


def backfillable() -> dict[str, str]:
    """Registered pipelines whose results can be computed again -> the table of these."""
    plans = {name: logical.build(definition) for name, definition in registry().items()}
    return {name: plan.result.name for name, plan in plans.items() if plan.can_be_backfilled}


def ran(lake: "Lake", wanted: Callable[[Definition], bool]) -> list[str]:
    """The pipelines that have finished a batch on a lake, registered or not, and are wanted.

    Among them are those of which nobody can say what they are: the task of each then fails, and says so.
    """
    from spark_jobs.lake.checkpoints.ran import has_finished_a_batch, that_have_run

    found = that_have_run(lake, registry().values())
    names = [each.name for each in found.definitions if wanted(each) and has_finished_a_batch(lake, each)]
    return sorted((*names, *(name for name, _ in found.unreadable)))


def is_repairable(definition: Definition) -> bool:
    """Whether it keeps late events, or such as can be looked up again, and these can be counted after all."""
    plan = logical.build(definition)
    return plan.can_count_late_events and bool(plan.table("late") or plan.table("quarantine"))


def modes(pipeline: str) -> list[str]:
    """The modes in which a registered pipeline can be backfilled, the usual one first."""
    counts = logical.build(registry()[pipeline]).can_count_late_events
    return ["corrected", "as-streamed"] if counts else ["as-streamed"]


def has_run(lake: "Lake", pipeline: str) -> bool:
    """Whether a registered pipeline has finished a batch on a lake."""
    from spark_jobs.lake.checkpoints.ran import has_finished_a_batch

    return has_finished_a_batch(lake, registry()[pipeline])


def newest_closed(lake: "Lake", pipeline: str) -> datetime:
    """Up to where the results of a pipeline are closed; now where it has no watermark, or has not run."""
    from spark_jobs.lake.checkpoints.epochs import current_epoch
    from spark_jobs.lake.commit_records.history import newest_batch

    now, epoch, definition = datetime.now(UTC), current_epoch(lake, pipeline), definition_of(lake, pipeline)
    found = epoch and definition and newest_batch(lake, definition.sink.table, pipeline, epoch.number)
    watermark_s = found[1].watermark_ms / 1000 if found else 0
    return datetime.fromtimestamp(watermark_s, UTC) if 0 < watermark_s < now.timestamp() else now


class BatchCommand(BaseOperator):
    """Runs a command that changes results of one pipeline; its output is the task's log.

    Green, it gives what has changed, and emits an asset event of the table if rows have. Red, its log ends with the
    command's own error. When the task is ended, so is the process.

    Args:
        pipeline: its registered name.
        options: of Airflow's own; `pool` and `outlets` have to be said by the DAG, where Airflow reads them.
    """

    def __init__(self, *, pipeline: str, **options: Any) -> None:
        super().__init__(**options)
        self.pipeline = pipeline
        self._launched: StartedTask | None = None
        self._ended = False

    @abstractmethod
    def arguments(self, context: Any) -> Sequence[str]:
        """The command, without `tidemark`."""

    reports = True
    """Whether the command takes `--report`."""

    def execute(self, context: Any) -> dict[str, Any]:
        """Runs the command to its end."""
        from spark_jobs.control.supervision.launchers import LocalProcess, Task
        from spark_jobs.lake.settings import Settings
        from spark_jobs.operations import reports as batch_reports

        arguments, settings = self.arguments(context), Settings()
        log(shlex.join(("tidemark", *arguments)))
        folder = _folder(settings)
        name = f"{arguments[0]}-{self.pipeline}"
        report, output = folder / f"{name}.json", folder / f"{name}.log"
        for earlier in (report, output):
            earlier.unlink(missing_ok=True)
        with reporting_errors():
            lake = this_lake()
        reporting = ("--report", str(report)) if self.reports else ()
        command = (*arguments, *reporting, "--lake", lake.uri)
        if settings.master.startswith("spark://"):
            command = ("submit", *command)
        self._launched = LocalProcess((sys.executable, "-m", "spark_jobs")).launch(
            Task(name=name, arguments=command, log=output, environment={**_identity(settings), **_pages()})
        )
        error = self._follow(self._launched)
        if code := self._launched.wait():
            if self._ended:
                raise fail("The task was ended, and its process with it. What was committed before stays.")
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise fail(error or f"`tidemark {arguments[0]}` has ended with {how}; its last lines are above.")
        return self._tell(lake, batch_reports.read(report), context)

    def on_kill(self) -> None:
        """Ends the process and all that it started. Airflow calls it in a signal handler: nothing is waited for."""
        from spark_jobs.control.supervision.launchers import kill_tree

        self._ended = True
        if self._launched is not None:
            kill_tree(self._launched.process.pid)

    def _follow(self, launched: "StartedTask") -> str:
        """Tells what the process says; its errors, which are to stand last, are given back."""
        errors: list[str] = []
        try:
            for line in launched.lines():
                if line.startswith(_ERROR):
                    errors.append(line.removeprefix(_ERROR).strip())
                elif line.strip():
                    log(line)
        finally:
            if launched.exit_code() is None:
                launched.kill()
        return "\n".join(errors)

    def _tell(self, lake: "Lake", reports: Sequence["BatchReport"], context: Any) -> dict[str, Any]:
        from spark_jobs.lake.tables.opening import open_table

        if not reports:
            return {"pipeline": self.pipeline, "rows": 0}
        report = reports[0]
        if report.rows:
            extra = {
                "version": report.version,
                "rows": open_table(lake, report.table, version=report.version).count(),
                "watermark": report.watermark.isoformat() if report.watermark else None,
                "changed": report.rows,
            }
            context["outlet_events"][MOVED].add(table_asset(report.table), extra=extra)
        return {**report.model_dump(mode="json"), "rows": report.rows}


class Backfill(BatchCommand):
    """`tidemark backfill` of one pipeline, as the form says it, or of the run's data interval."""

    def arguments(self, context: Any) -> Sequence[str]:
        """The command, without `tidemark`; skips a run that nobody has asked for where there is nothing yet."""
        params = context["params"]
        begin, end = self._range(context)
        flags = {
            "--as-streamed": params["mode"] == "as-streamed",
            "--dry-run": params["dry_run"],
            "--strict": params["strict"],
            "--force": params["force"],
            # Of many days that Airflow goes through, nobody has asked for this one by its date.
            "--allow-empty": params["from"] is None,
        }
        given = [flag for flag, is_given in flags.items() if is_given]
        return ["backfill", self.pipeline, f"--from={begin}", f"--to={end}", *given]

    def _range(self, context: Any) -> tuple[str, str]:
        begin, end = context["params"]["from"], context["params"]["to"]
        if (begin is None) != (end is None):
            missing = "to" if end is None else "from"
            raise fail(f"expected both `from` and `to`, or neither: `{missing}` is missing. Nothing was computed.")
        if begin is not None:
            return begin, end
        if context["dag_run"].run_type == "manual":
            raise fail(
                "A run that is started by hand needs a range of event time: give `from` and `to`, such as "
                "2026-11-01T00:00:00Z and 2026-11-02T00:00:00Z. Nothing was computed."
            )
        with reporting_errors():
            if not has_run(this_lake(), self.pipeline):
                told = f"{self.pipeline} has not finished a batch on this lake yet: there is nothing to compute again."
                log(told)
                raise AirflowSkipException(told)
        interval: tuple[datetime, datetime] = context["data_interval_start"], context["data_interval_end"]
        if context["dag_run"].run_type == "scheduled":
            self._skip_days_before_the_stream(interval[1])
        return interval[0].astimezone(UTC).isoformat(), interval[1].astimezone(UTC).isoformat()

    def _skip_days_before_the_stream(self, end: datetime) -> None:
        """Its first day is yesterday, of which a stream that began today has just computed all; repairs do the rest."""
        from spark_jobs.lake.checkpoints.epochs import current_epoch

        with reporting_errors():
            epoch = current_epoch(this_lake(), self.pipeline)
        if epoch is not None and epoch.begun_at >= end:
            told = (
                f"{self.pipeline} has begun at {epoch.begun_at:%Y-%m-%d %H:%M} UTC, after this day: nothing is "
                "computed again. A run by hand does it all the same."
            )
            log(told)
            raise AirflowSkipException(told)


class Repair(BatchCommand):
    """`tidemark repair` of one pipeline. Where no late event is open it ends without a JVM."""

    def arguments(self, context: Any) -> Sequence[str]:
        """The command, without `tidemark`."""
        return ["repair", self.pipeline]


class Replay(BatchCommand):
    """`tidemark replay` of one pipeline, as a person has approved it; what was rejected is recorded."""

    template_fields = ("pipeline",)

    def arguments(self, context: Any) -> Sequence[str]:
        """The command, without `tidemark`; skips what was rejected."""
        from spark_jobs.operations.replay.asking import reject
        from tidemark_dags.approvals import answer_of

        params, task = context["params"], context["ti"]
        found, response = (task.xcom_pull(task_ids=name) for name in ("report", "approval"))
        answer = answer_of(response)
        if not answer.approved:
            with reporting_errors():
                reject(this_lake(), self.pipeline, found["reasons"], by=answer.by, comment=params["comment"])
            told = f"Rejected by {answer.by}: nothing was replayed."
            log(told)
            raise AirflowSkipException(told)
        given = [f"--reason={reason}" for reason in params["reasons"]]
        given += [f"--since={params['since']}"] if params["since"] else []
        return [
            "replay",
            self.pipeline,
            *given,
            f"--until={found['until']}",
            f"--by={answer.by}",
            f"--comment={params['comment']}",
        ]


class CheckpointCommand(BatchCommand):
    """`tidemark restore`, `rescale`, `shadow` or `checkpoints prune` of one pipeline, as a person has approved it.

    What they have answered is a row of `ops.decisions`; commands that are told who it was leave it themselves.
    """

    template_fields = ("pipeline",)
    reports = False

    def arguments(self, context: Any) -> Sequence[str]:
        """The command, without `tidemark`, with the plan that the person has seen; skips what was rejected."""
        params, task = context["params"], context["ti"]
        found, by = task.xcom_pull(task_ids="look"), self._approved_by(context)
        action = params["action"]
        if action == "rescale":
            self._note(context, action, by)
            return ["rescale", self.pipeline, f"--partitions={params['partitions']}"]
        plan = _folder(_settings()) / f"{action.replace(' ', '-')}-{self.pipeline}.plan.json"
        plan.write_text(json.dumps(found["plan"]))
        if action == "prune":
            self._note(context, action, by)
            return ["checkpoints", "prune", f"--plan={plan}"]
        if action == "restore":
            return ["restore", self.pipeline, f"--plan={plan}", f"--by={by}"]
        what = "--promote" if action == "promote shadow" else "--drop"
        return ["shadow", self.pipeline, what, f"--plan={plan}", f"--by={by}", f"--comment={params['comment']}"]

    def _approved_by(self, context: Any) -> str:
        from tidemark_dags.approvals import answer_of

        answer = answer_of(context["ti"].xcom_pull(task_ids="approval"))
        if not answer.approved:
            self._note(context, "reject", answer.by)
            told = f"Rejected by {answer.by}: nothing was done."
            log(told)
            raise AirflowSkipException(told)
        return answer.by

    def _note(self, context: Any, action: "Action", by: str) -> None:
        from spark_jobs.lake.tables import decisions

        params = context["params"]
        with reporting_errors():
            decisions.note(
                this_lake(),
                pipeline=self.pipeline,
                action=action,
                decided_by=by,
                subject=f"{params['action']} of {self.pipeline}",
                comment=params["comment"],
                decision_id=str(uuid.uuid4()),
            )


class Reset(BatchCommand):
    """`tidemark reset` of one pipeline, as a person has approved it; the answer is recorded."""

    template_fields = ("pipeline",)
    reports = False

    def arguments(self, context: Any) -> Sequence[str]:
        """The command, without `tidemark`; skips what was rejected."""
        from spark_jobs.lake.tables import decisions
        from tidemark_dags.approvals import answer_of

        params, answer = context["params"], answer_of(context["ti"].xcom_pull(task_ids="approval"))
        with reporting_errors():
            decisions.note(
                this_lake(),
                pipeline=self.pipeline,
                action="reset" if answer.approved else "reject",
                decided_by=answer.by,
                subject=f"a new epoch, rows: {params['rows']}",
                comment=params["comment"],
                decision_id=str(uuid.uuid4()),
            )
        if not answer.approved:
            told = f"Rejected by {answer.by}: nothing was done."
            log(told)
            raise AirflowSkipException(told)
        return ["reset", self.pipeline, "--empty-tables" if params["rows"] == "empty" else "--keep-tables"]


class Maintain(BatchCommand):
    """`tidemark maintain` of one table; rows stay as they are, so that no asset event is emitted."""

    reports = False

    def __init__(self, *, table: str, **options: Any) -> None:
        super().__init__(pipeline=table, **options)
        self.table = table

    def arguments(self, context: Any) -> Sequence[str]:
        """The command, without `tidemark`."""
        return ["maintain", self.table]


class Audit(BatchCommand):
    """`tidemark audit` of one pipeline; it changes nothing."""

    reports = False

    def arguments(self, context: Any) -> Sequence[str]:
        """The command, without `tidemark`."""
        days = context["params"]["days"]
        if days is None:
            return ["audit", self.pipeline]
        with reporting_errors():
            newest = newest_closed(this_lake(), self.pipeline)
        begin = (newest - timedelta(days=days)).replace(hour=0, minute=0, second=0, microsecond=0)
        end = datetime.now(UTC).isoformat(timespec="seconds")
        return ["audit", self.pipeline, f"--from={begin.isoformat()}", f"--to={end}"]


class Check(BatchCommand):
    """`tidemark check` of one pipeline's table; it changes no results."""

    reports = False
    operator_extra_links = (PageLink(),)

    def arguments(self, context: Any) -> Sequence[str]:
        """The command, without `tidemark`."""
        return ["check", self.pipeline]


def _settings() -> Any:
    from spark_jobs.lake.settings import Settings

    return Settings()


def _folder(settings: Any) -> Any:
    from pathlib import Path

    folder = Path(settings.logs).absolute() / "batch"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _identity(settings: Any) -> dict[str, str]:
    """Who the process is to S3, where Airflow itself may not write results."""
    key, secret = settings.batch_access_key_id, settings.batch_secret_access_key
    if not key or secret is None:
        return {}
    return {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret.get_secret_value()}


def _pages() -> dict[str, str]:
    """Where it tells people to open the pages of tables."""
    shown = pages_url()
    return {"TIDEMARK_PAGES_URL": shown} if shown else {}
