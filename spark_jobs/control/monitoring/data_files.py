"""Whether the data files of what is deployed are there: the newest at each look, the others by turns."""

from collections.abc import Iterable, Mapping

from deltalake import DeltaTable

from spark_jobs.control.desired.orders import CONTROL
from spark_jobs.lake import Lake
from spark_jobs.lake.checkpoints.reset import tables_of
from spark_jobs.lake.errors import LakeUnavailableError, MissingTableError
from spark_jobs.lake.store.formats import PersistedValue
from spark_jobs.lake.store.records import Records, RecordTakenError
from spark_jobs.lake.tables.files import data_files, describe_missing, gone
from spark_jobs.lake.tables.opening import open_table
from spark_jobs.spec import Definition

NEWEST = 10
"""So many files of each table are asked for at each look, and those that were gone at the look before."""

BY_TURNS = 200
"""So many of the others are, of all tables together."""


class _Turns(PersistedValue):
    """How far the looks have come.

    Attributes:
        after: table -> the file that was asked for last; the next turn begins behind it.
        gone: table -> its files that were not there.
    """

    after: Mapping[str, str] = {}
    gone: Mapping[str, tuple[str, ...]] = {}


def missing(lake: Lake, definitions: Iterable[Definition]) -> Mapping[str, tuple[str, ...]]:
    """Looks for files of the tables that pipelines write, and of those that they read and none of them writes.

    Args:
        lake: where.
        definitions: of what is to run.

    Returns:
        Pipeline -> in words, which files of its tables are gone; no entry where none is known to be.
    """
    concerned = _concerned(tuple(definitions))
    record = Records(lake, f"{CONTROL}/_monitor/files", _Turns)
    number, before = record.newest()
    before = before or _Turns()
    after: dict[str, str] = {}
    lost: dict[str, tuple[str, ...]] = {}
    described: dict[str, str] = {}
    opened: dict[str, DeltaTable] = {}
    for table in concerned:
        try:
            opened[table] = open_table(lake, table)
        except MissingTableError:
            continue
        except LakeUnavailableError:  # it has a breach of its own, and its files are asked for when it can be read
            after |= {table: before.after[table]} if table in before.after else {}
            lost |= {table: before.gone[table]} if table in before.gone else {}
    files = {table: data_files(each) for table, each in opened.items()}
    budget = BY_TURNS
    # The small ones first: what they do not need is for the others.
    for place, table in enumerate(sorted(files, key=lambda table: len(files[table]))):
        share = max(1, budget // (len(files) - place))
        wanted, last = _turn(files[table], before.after.get(table, ""), share=share)
        budget -= len(wanted)
        known = [path for path in before.gone.get(table, ()) if path in set(files[table])]
        missing = gone(lake, table, list(dict.fromkeys((*files[table][:NEWEST], *known, *wanted))))
        if missing:
            # Meanwhile another writer may have put others in their place, and removed them.
            opened[table].update_incremental()
            missing = tuple(sorted(set(missing) & set(data_files(opened[table]))))
        if last:
            after[table] = last
        if missing:
            # So many are asked for again, to tell when they are back; of more the others have their turn.
            lost[table], described[table] = missing[:NEWEST], describe_missing(table, opened[table].version(), missing)
    turns = _Turns(after=after, gone=lost)
    if turns != before:
        _keep(record, number, turns)
    pipelines = dict.fromkeys(name for names in concerned.values() for name in names)
    texts = {name: tuple(described[table] for table in described if name in concerned[table]) for name in pipelines}
    return {name: told_of for name, told_of in texts.items() if told_of}


def _concerned(definitions: tuple[Definition, ...]) -> dict[str, tuple[str, ...]]:
    """Table -> the pipelines that are told of it: who writes it, or else who reads it."""
    writers = {table: (each.name,) for each in definitions for table in tables_of(each)}
    readers: dict[str, tuple[str, ...]] = {}
    for each in definitions:
        for read in each.read_tables:
            readers[read] = (*readers.get(read, ()), each.name)
    return {**readers, **writers}


def _turn(files: list[str], after: str, *, share: int) -> tuple[list[str], str]:
    """The files whose turn it is, in the order of their names, and the one to go on behind; '' to begin again."""
    rest = sorted(files[NEWEST:])
    left = [path for path in rest if path > after]
    if len(left) <= share:
        return left, ""
    return left[:share], left[share - 1]


def _keep(record: Records[_Turns], number: int, turns: _Turns) -> None:
    try:
        record.append(number + 1, turns)
    except RecordTakenError:
        return  # another monitor looks at the same time: its turn counts
