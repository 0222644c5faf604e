"""A restore as a person reads it."""

from collections.abc import Iterator

from spark_jobs.lake.commands import command
from spark_jobs.operations.restore.plan import RestorePlan, TakenBack
from spark_jobs.operations.savepoint.text import watermark_text
from spark_jobs.operations.words import counted


def restore_text(plan: RestorePlan) -> str:
    """What will be done."""
    return "\n".join(_lines(plan))


def _lines(plan: RestorePlan) -> Iterator[str]:
    first, *readers = plan.record.members
    point = first.point
    if plan.resumed:
        yield f"{plan.pipeline}: a restore to {point.called} has begun at {plan.record.at:%Y-%m-%d %H:%M:%S} UTC and"
        yield "not ended. It is carried out to its end, as it was planned then."
        return
    yield f"{plan.pipeline} goes back to {point.called}{watermark_text(point)}; then epoch {first.number} begins"
    for reader in readers:
        yield (
            f"{reader.pipeline} reads {first.parsed.sink.table} and goes back, too: to {reader.point.subject}; then "
            f"epoch {reader.number} begins"
        )
    for each in plan.taken_back:
        yield f"table    {_table(each)}"
        if each.reopened:
            yield f"         {counted(each.reopened, 'event')} of it that a repair has counted wait for one again"
    if not first.with_tables:
        yield f"table    {', '.join(point.tables)}: as they are"
    for line in plan.read_again:
        yield f"again    {line}"
    for line in plan.decisions:
        yield f"decided  {line}; what came of it is taken back, the row in ops.decisions stays"


def _table(each: TakenBack) -> str:
    if each.newest == each.version:
        return f"{each.table}: nothing has come since version {each.version}"
    rows = "" if each.rows is None else f", {each.rows_now:,} rows become {each.rows:,}"
    made = ", ".join(f"{count} × {what}" for what, count in sorted(each.commits.items()))
    return f"{each.table}: version {each.newest} becomes what version {each.version} was{rows}; takes back {made}"


def done_text(plan: RestorePlan) -> str:
    """What was done, and what to run next."""
    first, *readers = plan.record.members
    names = [member.pipeline for member in plan.record.members]
    also = f", and with it {', '.join(each.pipeline for each in readers)}" if readers else ""
    return (
        f"{plan.pipeline} is back at {first.point.called}{also}. Nothing of it runs. Start it: {command('run', *names)}"
    )
