"""What is read again after a restore, and whether the sources still have it."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.checkpoints.contents import Checkpoint
from spark_jobs.lake.checkpoints.epochs import current_epoch, starts_of
from spark_jobs.lake.checkpoints.restoring import Member
from spark_jobs.lake.checkpoints.savepoints import savepoints
from spark_jobs.lake.checkpoints.source_logs import taken_after
from spark_jobs.lake.checkpoints.spark_log import kafka_positions
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import latest_version, newest_ledger_rows
from spark_jobs.lake.errors import TidemarkError
from spark_jobs.lake.inputs.folders import files_gone
from spark_jobs.lake.inputs.kafka import KafkaUnreachableError, Topics, offsets_held
from spark_jobs.lake.maintenance.retention import first_version
from spark_jobs.lake.settings import Settings
from spark_jobs.lake.tables.opening import exists
from spark_jobs.spec import Ingest

_SHOWN = 6
_BATCHES = 100
"""So many batches a checkpoint has at most."""

Offsets = Mapping[tuple[str, int], int]
"""Topic and partition -> the next message."""


class RestoreRefusedError(TidemarkError):
    """A pipeline cannot go back so."""


def read_again(lake: Lake, members: Iterable[Member]) -> tuple[str, ...]:
    """What is read again, a line for each source.

    Asked for the plan, and again before anything is done: between the two a person may have slept over it, and a topic
    forgets.

    Raises:
        RestoreRefusedError: if a source has it no more, or does not say so.
    """
    return tuple(line for member in members for line in _of(lake, member))


def _of(lake: Lake, member: Member) -> Iterator[str]:
    name, point = member.pipeline, member.point
    for table, saved in point.sources.items():
        if not exists(lake, table) or first_version(lake, table) > saved.version:
            raise RestoreRefusedError(
                f"pipeline `{name}`: {table} has no version {saved.version} any more, from which it would read on. "
                f"Nothing was changed. Go back to a later batch: {command('savepoints', 'list', name)}"
            )
        newest = latest_version(lake, table)
        if table not in member.sources:
            yield (
                f"{name} reads versions {saved.version} to {newest} of {table} again"
                if saved.version <= newest
                else f"{name} had read all of {table}"
            )
    definition = member.parsed
    if isinstance(definition, Ingest):
        yield from READ_AGAIN[definition.source.kind](lake, definition, member)


def _files(lake: Lake, ingest: Ingest, member: Member) -> Iterator[str]:
    epoch, point = current_epoch(lake, ingest.name), member.point
    files = taken_after(Checkpoint(lake, epoch), point.batch) if epoch is not None else []
    if lost := files_gone(files):
        raise RestoreRefusedError(
            f"ingest `{ingest.name}`: it has read {len(files):,} files since {point.called}, and {len(lost):,} of them "
            f"are not there any more, such as {lost[0]}: their events would be lost. Nothing was changed. Put them "
            f"back, or go back to a later batch: {command('savepoints', 'list', ingest.name)}"
        )
    if files:
        yield f"{ingest.name} reads {len(files):,} files again"
    else:
        yield from (f"{ingest.name} reads again after {offset}" for offset in point.offsets)


class _Topics:
    """The topics of an ingest, as they are now.

    Args:
        lake: where.
        ingest: that reads them.
        read: up to where it has read them.
    """

    def __init__(self, lake: Lake, ingest: Ingest, read: Offsets) -> None:
        self._lake, self._name, self._table, self._read = lake, ingest.name, ingest.sink.table, read
        self._servers = str(getattr(ingest.source, "bootstrap_servers", None) or Settings().kafka)
        topics = dict.fromkeys(topic for topic, _ in read)
        try:
            self._held = {
                (topic, number): held for topic in topics for number, held in offsets_held(self._servers, topic).items()
            }
        except KafkaUnreachableError as error:
            raise RestoreRefusedError(
                f"ingest `{ingest.name}`: whether its source still has what would be read again is not known. {error}"
            ) from error

    def again(self, then: Offsets) -> dict[tuple[str, int], tuple[int, int]]:
        """Partition -> the first and the last offset that are read again; a partition that is newer, from its start."""
        found = {each: (then.get(each, 0), upto - 1) for each, upto in self._read.items()}
        return {each: (first, last) for each, (first, last) in found.items() if first <= last}

    def lost(self, then: Offsets) -> list[str]:
        """What is not there any more of what would be read again, in words."""
        found = []
        for (topic, number), (first, last) in self.again(then).items():
            where = f"topic {topic}, partition {number}: offset {first:,} is needed"
            earliest, upto = self._held.get((topic, number), (0, 0))
            if (topic, number) not in self._held:
                found.append(f"{where}, the partition is not there any more")
            elif upto <= last:
                found.append(f"{where}, up to {last:,}, the newest held is {upto - 1:,}")
            elif first < earliest:
                found.append(f"{where}, the earliest held is {earliest:,}")
        return found

    def refuse_other(self) -> None:
        """Refuses topics that are other ones, or that keep of each key only the newest message.

        Raises:
            RestoreRefusedError: then.
        """
        epoch, asked = current_epoch(self._lake, self._name), Topics(self._servers)
        noted = starts_of(self._lake, epoch) if epoch is not None else None
        for topic in dict.fromkeys(topic for topic, _ in self._read):
            before, now = (noted.topics.get(topic) if noted else None), asked.id_of(topic)
            if before is not None and now is not None and before != now:
                raise RestoreRefusedError(
                    f"ingest `{self._name}`: topic {topic} was deleted and made again (id {now} instead of {before}): "
                    "what would be read again is not there any more, and its events would be lost. Nothing was changed."
                )
            if asked.is_compacted(topic):
                raise RestoreRefusedError(
                    f"ingest `{self._name}`: topic {topic} is compacted (cleanup.policy): of each key it keeps only "
                    "the newest message, so that of what would be read again some may be gone, and its events would be "
                    f"lost. Nothing was changed. The pipelines that read {self._table} can go back without it."
                )


def _kafka(lake: Lake, ingest: Ingest, member: Member) -> Iterator[str]:
    epoch, point, table = current_epoch(lake, ingest.name), member.point, ingest.sink.table
    rows = newest_ledger_rows(lake, table, ingest.name, epoch.number, _BATCHES) if epoch is not None else []
    then, read = _offsets(point.ledger), _offsets(rows[-1][1]) if rows else {}
    if all(then.get(each) == upto for each, upto in read.items()):
        yield f"{ingest.name} had read no more of {ingest.source.described}"
        return
    topics = _Topics(lake, ingest, read)
    topics.refuse_other()
    if lost := topics.lost(then):
        more = f"; and {len(lost) - _SHOWN:,} more partitions" if len(lost) > _SHOWN else ""
        raise RestoreRefusedError(
            f"ingest `{ingest.name}`: it has read messages since {point.called} that Kafka does not have any more, and "
            f"their events would be lost: {'; '.join(lost[:_SHOWN])}{more}. Nothing was changed. "
            f"{_way_out(lake, ingest, topics, rows, member)}"
        )
    places = [
        f"{topic}[{number}] {first:,} to {last:,}" for (topic, number), (first, last) in topics.again(then).items()
    ]
    more = f" and of {len(places) - _SHOWN:,} more partitions" if len(places) > _SHOWN else ""
    yield f"{ingest.name} reads offsets {', '.join(places[:_SHOWN])}{more} again; Kafka still has them"


def _way_out(lake: Lake, ingest: Ingest, topics: _Topics, rows: list[tuple[int, LedgerEntry]], member: Member) -> str:
    """The farthest that can be gone back to; the newest batch is no going back."""
    name, epoch = ingest.name, current_epoch(lake, ingest.name)
    kept = set(Checkpoint(lake, epoch).batches("commits")) if epoch is not None else set()
    newest = rows[-1][0]
    ways = [
        (entry.started_ms, command("restore", name, "--to-batch", str(batch)))
        for batch, entry in rows
        if batch in kept and batch < newest and not topics.lost(_offsets(entry))
    ]
    ways += [
        (each.ledger.started_ms, command("restore", name, "--to", each.name))
        for each in savepoints(lake, name)
        if each.epoch == member.before and each.batch < newest and not topics.lost(_offsets(each.ledger))
    ]
    if ways:
        return f"The farthest back that it can go is: {min(ways)[1]}"
    return (
        "There is no batch and no savepoint to which it could go back. Raise the topic's retention, so that next time "
        "it has what is to be read again."
    )


def _offsets(entry: LedgerEntry) -> dict[tuple[str, int], int]:
    return {(topic, number): upto for topic, number, upto in kafka_positions(entry.sources)}


def _results(_: Lake, __: Ingest, ___: Member) -> Iterator[str]:
    """Nothing more than is said of the tables that it reads."""
    return iter(())


READ_AGAIN: Mapping[str, Callable[[Lake, Ingest, Member], Iterator[str]]] = {
    "files": _files,
    "kafka": _kafka,
    "results": _results,
}
"""Kind of an ingest's source -> what it reads again, which is refused where the source has it no more."""
