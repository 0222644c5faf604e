"""A profile of a table as a person reads it, with lines for the definition."""

from collections.abc import Collection, Iterator

from rich.console import Console

from spark_jobs.console.reports import rows_table
from spark_jobs.plan.columns import WINDOW_END
from spark_jobs.quality.profiling import ColumnProfile, Profile, row_proposals, table_proposals
from spark_jobs.spec import Definition, Ingest
from spark_jobs.spec.personal import MASK, is_personal


def print_profile(console: Console, found: Profile, definition: Definition | None, personal: Collection[str]) -> None:
    """Prints what the columns are like, then expectations to paste.

    Args:
        console: takes it.
        found: the profile.
        definition: that writes the table; None: no registered one does.
        personal: columns whose values are not shown.
    """
    console.print(f"{found.table}, version {found.version}: {found.rows:,} rows", highlight=False, markup=False)
    head = ("column", "type", "nulls", "distinct", "smallest", "greatest")
    console.print(rows_table(head, [_row(each, found.rows, personal) for each in found.columns]))
    for line in _lines(found, definition, personal):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _row(each: ColumnProfile, rows: int, personal: Collection[str]) -> tuple[object, ...]:
    ends = (MASK, MASK) if is_personal(each.name, personal) else (_cut(each.smallest), _cut(each.greatest))
    nulls = f"{each.nulls / rows:.1%}" if each.nulls else "0"
    return (each.name, each.type.lower(), nulls, f"~{each.distinct:,}", *ends)


def _cut(value: object) -> object:
    return f"{value[:29]}…" if isinstance(value, str) and len(value) > 30 else value


def _lines(found: Profile, definition: Definition | None, personal: Collection[str]) -> Iterator[str]:
    if not found.rows:
        yield "\nNo rows, so nothing to propose."
        return
    of_ingest = isinstance(definition, Ingest)
    rows = list(row_proposals(found, personal, of_ingest=of_ingest))
    tables = list(table_proposals(found, windowed=any(each.name == WINDOW_END for each in found.columns)))
    writer = f"the definition of `{definition.name}`" if definition else "the definition that writes it"
    yield f"\nProposed from these rows. Keep what must hold for rows to come, and paste it into {writer}:\n"
    if of_ingest:
        yield from ("rules=(", *(f"    {line}" for line in rows), "),")
        rows = []
    yield from ("expectations=(", *(f"    {line}" for line in (*rows, *tables)), "),")
