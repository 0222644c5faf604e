"""Maintenance in this process: what is to be done to each table, and what was done."""

from collections.abc import Sequence

from obstore.exceptions import BaseError
from rich.console import Console

from spark_jobs.console.priority import step_aside
from spark_jobs.lake.errors import TidemarkError, first_line
from spark_jobs.lake.tables.opening import UNREADABLE
from spark_jobs.operations.maintain.execute import Maintained, Maintenance
from spark_jobs.operations.maintain.text import done_text


def run_maintenance(out: Console, maintenance: Maintenance, names: Sequence[str]) -> list[Maintained]:
    """Maintains tables, one after the other; what goes wrong with one leaves the others to be maintained.

    Args:
        out: where each table's line goes.
        maintenance: of the lake.
        names: of the tables; empty: all.
    """
    step_aside()
    found = []
    for table in maintenance.tables(names):
        try:
            done = maintenance.execute(table)
        except (*UNREADABLE, BaseError, TidemarkError) as error:
            done = Maintained(table=table.name, problem=f"failed: {first_line(error)}")
        found.append(done)
        out.print(done_text(done), highlight=False, markup=False, soft_wrap=True)
    return found
