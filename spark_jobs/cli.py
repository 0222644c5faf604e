"""The `tidemark` command."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from obstore.exceptions import BaseError
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from spark_jobs import cli_streams
from spark_jobs.console import reports
from spark_jobs.control.awaiting import refuse_deployed
from spark_jobs.lake import Lake, audit, inventory, query
from spark_jobs.lake.checkpoints import current_epoch, epoch_at
from spark_jobs.lake.errors import LakeUnavailableError, MissingTableError, TidemarkError, first_line
from spark_jobs.lake.history import ledger_rows
from spark_jobs.lake.reset import reset as reset_pipeline
from spark_jobs.lake.settings import S3Settings, Settings
from spark_jobs.pipelines import UnknownPipelineError, problems, registry
from spark_jobs.pipelines import with_sources as add_sources
from spark_jobs.plan import logical as plan
from spark_jobs.spec import Definition, DefinitionError, Ingest, Pipeline

app = typer.Typer(
    name="tidemark",
    help="A streaming lakehouse in which every event is accounted for.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
# Without a terminal (a log, a pipe) lines may be longer than its default of 80.
out = Console(width=None if sys.stdout.isatty() else 140)
err = Console(stderr=True)

LakeOption = Annotated[
    str | None,
    typer.Option(
        "--lake",
        help="Folder or s3a://bucket/prefix. [default: TIDEMARK_LAKE, or ./lake]",
        show_default=False,
    ),
]
SourceOption = Annotated[
    str | None, typer.Option("--from", help="Where the ingest reads: a folder, s3a://…, or kafka://host:port/topic.")
]
PipelineArgument = Annotated[str, typer.Argument(help="Registered name, or path of a pipeline file.")]


def main() -> None:
    """Runs the command line."""
    code = run_told()
    sys.stdout.flush()
    sys.stderr.flush()
    # Native threads of DuckDB and Arrow may outlive the interpreter that they call into; a normal exit can crash then.
    os._exit(code)


def run_told() -> int:
    """Runs the command; errors that Tidemark raises on purpose, or foresees, are told without a traceback.

    Returns:
        The exit code.
    """
    try:
        app()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 0 if exit_.code is None else 1
    except (TidemarkError, DefinitionError, UnknownPipelineError) as error:
        _complain(str(error))
        return getattr(error, "exit_code", 1)
    except ValidationError as error:
        if error.title not in (Settings.__name__, S3Settings.__name__):
            raise
        prefix = "TIDEMARK" if error.title == Settings.__name__ else "AWS"
        for wrong in error.errors():
            name = f"{prefix}_{str(wrong['loc'][0]).upper()}"
            _complain(
                f"{name}: {wrong['msg'].removeprefix('Value error, ')}, got {wrong['input']!r}. Nothing was done."
            )
        return 1
    except BaseError as error:
        _complain(
            f"the lake's store cannot be used: {first_line(error)}. What was written before stays. Check its address "
            "(AWS_ENDPOINT_URL), its region (AWS_REGION), the credentials and their permissions, then run the same "
            "command again."
        )
        return LakeUnavailableError.exit_code
    except OSError as error:
        _complain(f"{error}. What was written before stays. Check that the place exists, may be written and has room.")
        return LakeUnavailableError.exit_code
    return 0


def _complain(text: str) -> None:
    err.print(Text.assemble(("error:", "red"), f" {text}"), soft_wrap=True, highlight=False)


def _lake(text: str | None) -> Lake:
    return Lake.parse(Settings().lake if text is None else text)


def _one(name: str) -> Definition:
    definitions = cli_streams.resolved([name], err)
    if len(definitions) > 1:
        raise DefinitionError(f"file {name}: expected one pipeline, say which: {name}:{definitions[0].name}, …")
    return definitions[0]


@app.command()
def run(
    names: Annotated[
        list[str], typer.Argument(help="Registered names, or paths of pipeline files.", metavar="PIPELINE...")
    ],
    lake: LakeOption = None,
    until_caught_up: Annotated[
        bool,
        typer.Option("--until-caught-up", help="Process what is there now: ingests first, then their readers."),
    ] = False,
    close: Annotated[
        bool, typer.Option("--close", help="Then finish the input: make every open window final.")
    ] = False,
    with_sources: Annotated[
        bool,
        typer.Option("--with-sources", help="Also run the ingests that fill the tables these pipelines read."),
    ] = False,
    idle_after: Annotated[
        str | None,
        typer.Option(help='Without input for so long ("30 seconds"), heartbeats move the watermark on.'),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", help="Where the ingest reads: a folder, s3a://…, or kafka://host:port/topic."),
    ] = None,
) -> None:
    """Run pipelines in one driver until Ctrl-C, or until they have caught up."""
    from spark_jobs.console.running import run_pipelines
    from spark_jobs.spec.durations import parse_duration

    definitions = list(cli_streams.resolved(names, err))
    if with_sources:
        definitions = list(add_sources(definitions))
    if source is not None:
        definitions = _pointed_at(definitions, source)
    if close and not until_caught_up:
        raise DefinitionError("--close finishes a finite input: use it with --until-caught-up")
    if idle_after and until_caught_up:
        raise DefinitionError("--idle-after waits for input; with --until-caught-up say --close, which closes at once")
    try:
        idle = parse_duration(idle_after) if idle_after else None
    except ValueError as error:
        raise DefinitionError(f"--idle-after: {error}") from None
    if idle and not any(isinstance(d, Ingest) for d in definitions):
        raise DefinitionError(
            f"--idle-after {idle_after}: heartbeats come from ingests, and this run has none; add --with-sources"
        )
    slow = [d.name for d in definitions if isinstance(d, Ingest) and idle is not None and idle <= d.trigger_interval]
    if slow:
        raise DefinitionError(f"--idle-after {idle_after}: {', '.join(slow)} reads no more often than that by itself")
    where = _lake(lake).made()
    refuse_deployed(where, [definition.name for definition in definitions])
    with _interruptible() as stop:
        failed = run_pipelines(
            out,
            err,
            where,
            definitions,
            until_caught_up=until_caught_up,
            close=close,
            idle_after=idle,
            stop=stop,
        )
    raise typer.Exit(failed)


def _pointed_at(definitions: Sequence[Definition], source: str) -> list[Definition]:
    ingests = [d for d in definitions if isinstance(d, Ingest)]
    if len(ingests) != 1:
        raise DefinitionError(
            f"--from points one ingest elsewhere; this run has {len(ingests)}: {[d.name for d in ingests]}"
        )
    from spark_jobs.spec import Files, Kafka

    scheme, _, rest = source.partition("://")
    old = ingests[0].source
    new: Files | Kafka
    if scheme == "kafka":
        servers, _, topic = rest.partition("/")
        if not servers or not topic:
            raise DefinitionError(f"--from: expected kafka://host:port/topic, got {source!r}")
        kept = old.model_dump(exclude={"kind", "topic", "bootstrap_servers"}) if isinstance(old, Kafka) else {}
        new = Kafka(topic, bootstrap_servers=servers, **kept)
    else:
        path = source if "://" in source else str(Path(source).absolute())
        kept = old.model_dump(exclude={"kind", "path"}) if isinstance(old, Files) else {}
        new = Files(path, **kept)
    return [d.model_copy(update={"source": new}) if d is ingests[0] else d for d in definitions]


@contextlib.contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM end the run after the running batches; a second Ctrl-C ends it at once."""
    stop = threading.Event()

    def on_signal(signum: int, frame: object) -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@app.command()
def demo(
    lake: LakeOption = None,
    seconds: Annotated[float, typer.Option(help="How long it runs.")] = 120.0,
) -> None:
    """Watch a simulated shop: pipelines live for two minutes, then results, late events and the ledger."""
    from spark_jobs.console.demo import PIPELINES, demonstrate

    where = _lake(lake).made()
    cli_streams.warn_of_problems(err)
    refuse_deployed(where, PIPELINES)
    with _interruptible() as stop:
        raise typer.Exit(demonstrate(out, err, where, seconds=seconds, stop=stop))


@app.command()
def simulate(
    lake: LakeOption = None,
    to: Annotated[
        str | None, typer.Option(help="Folder, s3://… or kafka://host:port/. [default: landing/ in the lake]")
    ] = None,
    streams: Annotated[str, typer.Option(help="Which streams, with commas.")] = "sales,products,clicks,visits,payments",
    rate: Annotated[
        float | None, typer.Option(help="Events a second of the clock. [default: as fast as possible]")
    ] = None,
    speed: Annotated[float, typer.Option(help="Seconds of event time a second of the clock, with --rate.")] = 60.0,
    start: Annotated[datetime | None, typer.Option(help="First event time, UTC. [default: a day ago]")] = None,
    rows: Annotated[int | None, typer.Option(help="End after so many rows.")] = None,
    seconds: Annotated[float | None, typer.Option(help="End after so many seconds.")] = None,
    rows_per_file: Annotated[int, typer.Option(help="At most so many rows a file.")] = 1000,
    file_format: Annotated[str, typer.Option("--format", help="json, csv or parquet.")] = "json",
    seed: Annotated[int, typer.Option(help="The same seed and start give the same events.")] = 42,
    disorder: Annotated[float, typer.Option(help="Share of events out of order by seconds.")] = 0.2,
    late_share: Annotated[float, typer.Option("--late", help="Share of events that come hours late.")] = 0.005,
    duplicates: Annotated[float, typer.Option(help="Share of events sent twice.")] = 0.01,
    malformed: Annotated[float, typer.Option(help="Share of rows that cannot be parsed.")] = 0.002,
    future: Annotated[float, typer.Option(help="Share of events that claim a time days ahead.")] = 0.0005,
) -> None:
    """Emit the events of a seeded shop, as files or to Kafka, as disordered as you like; with the truth beside."""
    from spark_jobs.console.simulating import simulate_shop

    where = _lake(lake)
    with _interruptible() as stop:
        simulate_shop(
            out,
            to=to or where.path("landing").replace("s3a://", "s3://", 1),
            shop={
                "seed": seed,
                "streams": tuple(streams.split(",")),
                "start": start.replace(tzinfo=UTC) if start else None,
                "speed": speed,
                "rate": rate,
            },
            disorder={
                "disorder": disorder,
                "late": late_share,
                "duplicates": duplicates,
                "malformed": malformed,
                "future": future,
            },
            rows=100_000 if (rows, seconds, rate) == (None, None, None) else rows,
            seconds=seconds,
            rows_per_file=rows_per_file,
            file_format=file_format,
            stop=stop,
        )


@app.command()
def reset(
    pipeline: PipelineArgument,
    keep_tables: Annotated[
        bool | None,
        typer.Option(
            "--keep-tables/--empty-tables", help="Whether the rows written so far stay beside those of the new epoch."
        ),
    ] = None,
    source: SourceOption = None,
    lake: LakeOption = None,
) -> None:
    """Begin a new epoch: the pipeline starts over from its source, with its definition as it is now."""
    definition, where = _one(pipeline), _lake(lake)
    if source is not None:
        definition = _pointed_at([definition], source)[0]
    if keep_tables is None:
        raise DefinitionError(
            f"reset {definition.name}: say what becomes of its rows so far, --keep-tables or --empty-tables. "
            "Nothing was changed."
        )
    refuse_deployed(where, [definition.name])
    done = reset_pipeline(where, definition, empty_tables=not keep_tables)
    rows = "were emptied" if done.emptied else "keep their rows"
    out.print(
        f"{definition.name}: epoch {done.before.number} is over, epoch {done.after.number} begins. "
        f"{', '.join(done.tables)} {rows}."
    )
    if isinstance(definition, Ingest):
        readers = [d.name for d in registry().values() if isinstance(d, Pipeline) and _reads(d, definition.sink.table)]
        if readers and done.emptied:
            out.print(
                f"These have counted the rows that are gone, and stop until they are reset: {', '.join(readers)}."
            )
        elif readers:
            out.print(
                f"{definition.sink.table} will hold each event that is read again twice, and these count it twice: "
                f"{', '.join(readers)}."
            )
    out.print(f"Start it: tidemark run {pipeline}")


def _reads(pipeline: Pipeline, table: str) -> bool:
    return table in {source.name for source in pipeline.tables}


@app.command()
def pipelines() -> None:
    """List the registered pipelines: what each reads and writes; exit with 1 where a file cannot be loaded."""
    rows = []
    for definition in registry().values():
        if isinstance(definition, Ingest):
            reads, when = str(definition.source.kind), "-"
        else:
            reads = ", ".join(table.name for table in definition.tables)
            when = definition.watermark.late.value if definition.watermark else "never late"
        rows.append((definition.name, definition.kind, reads, definition.sink.table, definition.sink.mode, when))
    out.print(reports.rows_table(("name", "kind", "reads", "writes", "mode", "late events"), rows))
    if problems():
        raise DefinitionError("\n       ".join(problem.told for problem in problems()))


@app.command()
def tables(lake: LakeOption = None) -> None:
    """List the tables of the lake: rows, size, newest event, watermark, share of late events."""
    cli_streams.warn_of_problems(err)
    summaries = inventory.summaries(_lake(lake), registry())
    if not summaries:
        out.print(f"{_lake(lake).uri} has no tables yet. Fill it: tidemark run ingest_sales")
        return
    reports.print_summaries(out, summaries)
    unreadable = [summary.unreadable for summary in summaries if summary.unreadable]
    if unreadable:
        raise LakeUnavailableError("\n       ".join(unreadable))


@app.command()
def ledger(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    last: Annotated[int | None, typer.Option(help="Show only the newest batches; the totals cover all.")] = None,
    epoch: Annotated[
        int | None, typer.Option(help="An earlier life of the checkpoint. [default: the current one]")
    ] = None,
    state: Annotated[
        bool, typer.Option("--state", help="Also read Spark's state and count the open windows (slow).")
    ] = False,
) -> None:
    """Show what became of every event, batch by batch; exit with 1 where the figures do not balance."""
    definition, where = _one(pipeline), _lake(lake)
    current = current_epoch(where, definition.name)
    if current is None:
        raise MissingTableError(
            f"pipeline `{definition.name}` has not run on {where.uri} yet. Start it: tidemark run {definition.name}"
        )
    number = epoch or current.number
    if epoch_at(where, definition.name, number) is None:
        raise MissingTableError(
            f"pipeline `{definition.name}`: no epoch {number}; the current one is {current.number}."
        )
    if state and (isinstance(definition, Ingest) or number != current.number):
        raise DefinitionError("--state reads the state of a pipeline's current epoch; an ingest has none: leave it out")
    rows = ledger_rows(where, definition.sink.table, definition.name, number)
    checks = audit.checks(where, definition, number, rows)
    if state and isinstance(definition, Pipeline):
        from spark_jobs.console.running import state_check

        checks.append(state_check(where, definition, number, rows))
    reports.print_ledger(out, definition.name, number, rows, plan.build(definition).equations, checks, last=last)
    if not all(holds for holds, _ in checks):
        raise typer.Exit(1)


@app.command()
def late(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    limit: Annotated[int, typer.Option(help="Show so many of the newest.")] = 20,
) -> None:
    """Show the events that came too late for a pipeline, with the windows that they missed."""
    definition, where = _one(pipeline), _lake(lake)
    if not isinstance(definition, Pipeline):
        raise DefinitionError(
            f"pipeline `{definition.name}` is an ingest: nothing is late there. See its quarantine: "
            f"tidemark sql 'SELECT * FROM {definition.sink.table}__quarantine'"
        )
    if definition.watermark is None or definition.watermark.late.value == "drop":
        raise DefinitionError(
            f"pipeline `{definition.name}` keeps no late events; see `tidemark ledger {definition.name}`"
        )
    reports.print_late(out, where, definition, limit)


@app.command()
def sql(
    text: Annotated[str, typer.Argument(help="A query for DuckDB.", metavar="QUERY")],
    lake: LakeOption = None,
    allow_files: Annotated[
        bool,
        typer.Option(
            "--allow-files",
            help="The query may also read and write files, attach databases, load extensions and change settings.",
        ),
    ] = False,
) -> None:
    """Query all tables of the lake with DuckDB: bronze.sales, gold.top_products, gold.top_products__late, …"""
    columns, rows = query.run(_lake(lake), text, allow_files=allow_files)
    out.print(reports.rows_table(columns, rows))


cli_streams.register(app, out, err)


if __name__ == "__main__":
    main()
