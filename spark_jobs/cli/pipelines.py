"""`tidemark pipelines`: what is registered."""

from spark_jobs.cli.terminal import out
from spark_jobs.pipelines import problems, registry
from spark_jobs.spec import DefinitionError, Ingest


def pipelines() -> None:
    """List the registered pipelines: what each reads and writes; exit with 1 where a file cannot be loaded."""
    from spark_jobs.console import reports

    rows = []
    for definition in registry().values():
        if isinstance(definition, Ingest):
            reads, when = ", ".join(definition.read_tables) or str(definition.source.kind), "-"
        else:
            reads = ", ".join(definition.read_tables)
            when = definition.watermark.late.value if definition.watermark else "never late"
        rows.append((definition.name, definition.kind, reads, definition.sink.table, definition.sink.mode, when))
    out.print(reports.rows_table(("name", "kind", "reads", "writes", "mode", "late events"), rows))
    if problems():
        raise DefinitionError("\n       ".join(problem.message for problem in problems()))
