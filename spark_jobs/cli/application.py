"""The commands of `tidemark`, and how one is run.

What takes long to import (Delta, DuckDB, Arrow, Spark) is imported by the command that needs it: `--help` needs none.
"""

import os
import sys

import typer

from spark_jobs.cli import (
    alerts,
    audit,
    batch,
    bootstrap,
    check,
    checkpoints,
    docs,
    drivers,
    epochs,
    laptop,
    late,
    ledger,
    maintain,
    pipelines,
    profile,
    quarantine,
    rebuild,
    rescale,
    resume,
    run,
    savepoints,
    shadow,
    shop,
    sql,
    state,
    streams,
    tables,
)
from spark_jobs.cli.errors import shown
from spark_jobs.cli.terminal import complain

app = typer.Typer(
    name="tidemark",
    help="A streaming lakehouse in which every event is accounted for.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
# In the order of the help.
for _command in (
    run.run,
    shop.demo,
    shop.simulate,
    epochs.reset,
    epochs.adopt,
    pipelines.pipelines,
    tables.tables,
    ledger.ledger,
    state.state,
    savepoints.savepoint,
    savepoints.restore,
    late.late,
    quarantine.quarantine,
    quarantine.replay,
    bootstrap.bootstrap,
    rebuild.rebuild,
    rescale.rescale,
    batch.backfill,
    batch.repair,
    audit.audit,
    check.check,
    profile.profile,
    docs.docs,
    maintain.maintain,
    sql.sql,
    streams.plan,
    streams.deploy,
    shadow.shadow,
    streams.stop,
    streams.status,
    resume.resume,
    laptop.up,
    laptop.down,
    alerts.mute,
    alerts.acknowledge,
    drivers.supervise,
):
    app.command()(_command)
app.add_typer(checkpoints.app)
app.add_typer(savepoints.app)
app.command(hidden=True)(drivers.drive)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(drivers.submit)


def main() -> None:
    """Runs the command line."""
    code = run_reporting_errors()
    sys.stdout.flush()
    sys.stderr.flush()
    # Native threads of DuckDB and Arrow may outlive the interpreter that they call into; a normal exit can crash then.
    os._exit(code)


def run_reporting_errors() -> int:
    """Runs the command; errors that Tidemark raises on purpose, or foresees, are shown without a traceback.

    Returns:
        The exit code.
    """
    try:
        app()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else 1
    except Exception as error:
        errors = shown(error)
        if not errors:
            raise
        for each in errors:
            complain(str(each))
        return errors[0].exit_code
    return 0
