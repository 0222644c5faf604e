"""Which of several pipelines an operation is for: a file may define an ingest beside the pipelines that are meant."""

from collections.abc import Sequence

from spark_jobs.plan import logical
from spark_jobs.spec import Definition, Ingest


def revisable(definitions: Sequence[Definition]) -> tuple[tuple[Definition, ...], tuple[str, ...]]:
    """Those of which a part of the results can be computed again, and what is to be said of each of the others.

    One that was asked for alone, or all of them where it is true of none, is refused by the operation, which says more.
    """
    chosen = tuple(each for each in definitions if logical.build(each).can_be_backfilled)
    if not chosen:
        return tuple(definitions), ()
    return chosen, tuple(f"{each.name} is left out: {_why_not(each)}." for each in definitions if each not in chosen)


def _why_not(definition: Definition) -> str:
    if isinstance(definition, Ingest):
        return "it is an ingest, bronze has every event as it arrived"
    return "a part of its results cannot be computed again"
