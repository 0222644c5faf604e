"""What is wrong with a checkpoint: missing, cut off, or of another query or epoch; what to do about each.

Every file that the next start reads is looked at, and every batch that Spark's two logs still have. Nothing is changed.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from spark_jobs.lake.checkpoints.changelogs import DamagedFileError, Version
from spark_jobs.lake.checkpoints.contents import (
    PARTITIONS,
    Chain,
    Checkpoint,
    Committed,
    Planned,
    StateOperator,
    folder_of,
)
from spark_jobs.lake.checkpoints.continuity import refuse_lost_batches, refuse_torn_commits
from spark_jobs.lake.checkpoints.moving import refuse_moved
from spark_jobs.lake.checkpoints.rescaling import is_rescaled
from spark_jobs.lake.checkpoints.source_logs import faults_of_source_log
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import find_stamp
from spark_jobs.lake.errors import CheckpointError, MissingTableError
from spark_jobs.lake.tables.opening import exists, open_table
from spark_jobs.plan import logical
from spark_jobs.plan.columns import WINDOWS_IN_STATE
from spark_jobs.plan.state_columns import keys_in_state
from spark_jobs.spec import Definition, Ingest, Pipeline

_LOOKS = 5
_LOGS: tuple[Literal["offsets"], Literal["commits"]] = ("offsets", "commits")
_OTHERS = "it is of another query or epoch"
_OF_WINDOWS = frozenset({*WINDOWS_IN_STATE, "sessionStartTime"})


@dataclass(frozen=True)
class Fault:
    """Something that is wrong with a checkpoint.

    Attributes:
        path: of the file, inside the checkpoint; empty: the checkpoint as a whole.
        what: is wrong, as half a sentence.
        remedy: what can be done, with a command to paste.
        stops: whether the next start reads it.
    """

    path: str
    what: str
    remedy: str
    stops: bool = True

    def __str__(self) -> str:
        return f"{self.path or 'the checkpoint'}: {self.what}. {self.remedy}"


def verify(checkpoint: Checkpoint, definition: Definition) -> list[Fault]:
    """What is wrong with a checkpoint; empty: the next start finds all that it needs.

    Args:
        checkpoint: of the current epoch.
        definition: that it began with.
    """
    found: dict[tuple[str, str], Fault] = {}
    for _ in range(_LOOKS):
        found = {(fault.path, fault.what): fault for fault in _Verifier(checkpoint, definition).faults()}
        newer = Checkpoint(checkpoint.lake, checkpoint.epoch)
        # Of a query that runs, files vanish between two looks that no start needs any more.
        if not found or all(newer.batches(log) == checkpoint.batches(log) for log in _LOGS):
            break
        checkpoint = newer
    return list(found.values())


class _Verifier:
    def __init__(self, checkpoint: Checkpoint, definition: Definition) -> None:
        self._checkpoint, self._definition = checkpoint, definition
        self._planned: dict[int, Planned] = {}
        self._committed: dict[int, Committed] = {}
        self._offsets, self._commits = checkpoint.batches("offsets"), checkpoint.batches("commits")
        self._keep = "--keep-tables" if isinstance(definition, Ingest) else "--empty-tables"

    def faults(self) -> Iterator[Fault]:
        if not self._checkpoint.files:
            # Before the first batch there is nothing; afterwards the tables know of it.
            yield from self._of_the_whole()
            return
        metadata = list(self._of_metadata())
        yield from metadata
        yield from self._of_logs()
        yield from self._of_offsets()
        yield from self._of_state()
        yield from self._of_sources()
        if not metadata:
            yield from self._of_the_whole()

    def _fault(self, path: str, what: str, *, of_batch: int | None = None) -> Fault:
        if of_batch is not None and not self._is_read(of_batch):
            return Fault(
                path, what, "The next start does not read it: nothing need be done; that batch cannot be shown.", False
            )
        again = command("reset", self._definition.name, self._keep)
        return Fault(path, what, f"Bring it back from a copy as new as the tables, or begin a new epoch: {again}")

    def _is_read(self, batch: int) -> bool:
        """Whether the next start reads what the logs say of a batch: the newest one, and the one before."""
        newest = max((*self._offsets, *self._commits), default=0)
        return batch >= newest - 1

    def _of_metadata(self) -> Iterator[Fault]:
        content = self._checkpoint.read("metadata")
        try:
            if content is None:
                raise DamagedFileError("is missing")
            found = str(json.loads(content)["id"])
        except DamagedFileError as error:
            yield self._fault("metadata", str(error))
        except (ValueError, KeyError, TypeError):
            yield self._fault("metadata", "is cut off, or is not as Spark writes it")
        else:
            known = self._query_of_table()
            if known not in (None, found):
                yield self._fault("metadata", f"names query {found}, and the table was written by {known}: {_OTHERS}")

    def _query_of_table(self) -> str | None:
        """The query that has written the newest batch of this epoch, by the table."""
        name, epoch = self._definition.name, self._checkpoint.epoch.number
        try:
            stamp = find_stamp(
                self._checkpoint.lake,
                self._definition.sink.table,
                lambda each: (each.pipeline, each.role, each.epoch) == (name, "result", epoch),
            )
        except MissingTableError:
            return None
        return stamp.query_id if stamp is not None else None

    def _of_logs(self) -> Iterator[Fault]:
        """Of both logs: whether all batches are there, and whole."""
        first, newest = (
            min((*self._offsets, *self._commits), default=0),
            max((*self._offsets, *self._commits), default=-1),
        )
        for batch in range(first, newest + 1):
            try:
                self._planned[batch] = self._checkpoint.planned(batch)
            except DamagedFileError as error:
                # Spark removes the oldest entries of the one log, then those of the other.
                if batch in self._offsets or batch > min(self._offsets, default=batch - 1):
                    yield self._fault(f"offsets/{batch}", str(error), of_batch=batch)
            try:
                self._committed[batch] = self._checkpoint.committed(batch)
            except DamagedFileError as error:
                begun = batch == newest and batch not in self._commits
                if not begun and (batch in self._commits or batch > min(self._commits, default=batch)):
                    yield self._fault(f"commits/{batch}", str(error), of_batch=batch)

    def _of_offsets(self) -> Iterator[Fault]:
        """Whether the batches follow one another."""
        rescaled = {
            batch
            for (_, earlier), (batch, later) in pairwise(sorted(self._planned.items()))
            if is_rescaled(earlier, later)
        }
        for batch, planned in sorted(self._planned.items()):
            before = self._committed.get(batch - 1)
            # One that only divides the state anew repeats the watermark of the batch before it.
            if batch not in rescaled and before is not None and before.watermark_ms != planned.watermark_ms:
                yield self._fault(
                    f"offsets/{batch}",
                    f"its watermark is {planned.watermark_ms} ms, and commits/{batch - 1} has left "
                    f"{before.watermark_ms} ms: one of the two is of another query or epoch",
                    of_batch=batch,
                )
        known = self._tables()
        for batch, planned in sorted(self._planned.items()):
            read = {str(json.loads(offset).get("reservoirId")) for offset in planned.offsets if "reservoirId" in offset}
            if known is not None and (others := sorted(read - known)):
                yield self._fault(
                    f"offsets/{batch}",
                    f"reads a table with the id {others[0]}, which none of those that `{self._definition.name}` reads "
                    f"has: {_OTHERS}",
                    of_batch=batch,
                )
        for (one, earlier), (batch, later) in pairwise(sorted(self._planned.items())):
            partitions = earlier.settings.get(PARTITIONS), later.settings.get(PARTITIONS)
            divided = partitions[0] != partitions[1] and batch not in rescaled
            if earlier.planned_ms > later.planned_ms or divided or _is_behind(earlier, later):
                yield self._fault(
                    f"offsets/{batch}",
                    f"does not follow offsets/{one}: one of the two is not of this query or epoch",
                    of_batch=batch,
                )

    def _tables(self) -> set[str] | None:
        """The ids of the tables that the pipeline reads; None: it reads none, or one that is not there."""
        names = self._definition.read_tables
        if not names:
            return None
        if not all(exists(self._checkpoint.lake, name) for name in names):
            return None
        return {str(open_table(self._checkpoint.lake, name).metadata().id) for name in names}

    def _of_state(self) -> Iterator[Fault]:
        """What the next start reads of state: as the newest finished batch has left it."""
        batch = self._commits[-1] if self._commits else None
        committed = self._committed.get(batch) if batch is not None else None
        if batch is None or committed is None:
            return
        for number in sorted(set(self._checkpoint.operator_numbers()) - set(committed.stores)):
            yield self._fault(f"commits/{batch}", f"names no state of operator {number}, which has some: {_OTHERS}")
        chains: dict[tuple[int, int, str], Chain] = {}
        planned = self._planned.get(batch)
        for number, partitions in sorted(committed.stores.items()):
            # A total of all events has one, whatever the setting is.
            if planned is not None and str(len(partitions)) not in ("1", planned.settings.get(PARTITIONS)):
                yield self._fault(
                    f"commits/{batch}",
                    f"names {len(partitions)} partitions of operator {number}, and offsets/{batch} says "
                    f"{planned.settings.get(PARTITIONS)}: {_OTHERS}",
                )
                continue
            try:
                operator = self._checkpoint.operator(number)
            except DamagedFileError as error:
                yield self._fault(self._checkpoint.metadata_of(number), str(error))
                continue
            if why := self._foreign_operator(operator, number, partitions):
                yield self._fault(self._checkpoint.metadata_of(number), f"{why}: {_OTHERS}")
                continue
            for store in operator.stores:
                for path in self._checkpoint.schemas_of(number, store):
                    yield from self._of_schema(operator, path)
            for partition, ids in enumerate(partitions):
                for store, id_ in zip(operator.stores, ids, strict=True):
                    folder = folder_of(number, partition, store)
                    chains[number, partition, store] = self._checkpoint.chain(folder, (batch + 1, id_))
        yield from self._of_chains(batch, chains)

    def _foreign_operator(self, operator: StateOperator, number: int, partitions: tuple[tuple[str, ...], ...]) -> str:
        known = logical.build(self._definition).operator
        if known is not None and operator.name not in known.state.operators:
            return f"describes `{operator.name}`, which `{self._definition.name}` does not have"
        if operator.number != number:
            return f"describes operator {operator.number}"
        if any(len(ids) != len(operator.stores) for ids in partitions):
            return f"has the stores {', '.join(operator.stores)}, and the newest batch another number"
        return ""

    def _of_schema(self, operator: StateOperator, path: str) -> Iterator[Fault]:
        try:
            found = self._checkpoint.schema(path)
        except DamagedFileError as error:
            yield self._fault(path, str(error))
            return
        keys = keys_in_state(self._definition, operator.name) if isinstance(self._definition, Pipeline) else None
        if keys is not None and found is not None:
            for other in sorted({str(field["name"]) for field in found[0]["fields"]} - {*keys, *_OF_WINDOWS}):
                yield self._fault(path, f"has the key column {other}, which the pipeline does not have: {_OTHERS}")

    def _of_chains(self, batch: int, chains: dict[tuple[int, int, str], Chain]) -> Iterator[Fault]:
        gone = [key for key, chain in chains.items() if self._is_of_another(key, batch, chain)]
        if chains and len(gone) == len(chains):
            yield self._fault(
                f"commits/{batch}", f"names versions of state that are not here, and others are: {_OTHERS}"
            )
            return
        for chain in chains.values():
            for path, what in chain.faults.items():
                yield self._fault(path, what)
        yield from self._of_lineages(chains)

    def _is_of_another(self, key: tuple[int, int, str], batch: int, chain: Chain) -> bool:
        """Whether the version that a commit names is not there, and another of the same batch is."""
        folder = folder_of(*key)
        missing = any(what == "is missing" and f"/{batch + 1}_" in path for path, what in chain.faults.items())
        return missing and any(
            (where, version) == (folder, batch + 1) for where, version, _, _ in self._checkpoint.state_files()
        )

    def _of_lineages(self, chains: dict[tuple[int, int, str], Chain]) -> Iterator[Fault]:
        """Whether changelogs name the versions before them as the commits of those batches do."""
        agree: dict[int, set[str]] = defaultdict(set)
        dispute: dict[int, set[str]] = defaultdict(set)
        for key, chain in chains.items():
            for path, lineage in chain.lineages.items():
                for version, id_ in lineage:
                    known = self._committed_id(key, version)
                    if known is not None:
                        (agree if known == id_ else dispute)[version].add(path)
        # A changelog that agrees with other commits is right about this one, too.
        trusted = set().union(*agree.values())
        wrong = {version for version, paths in dispute.items() if not agree[version] and paths & trusted}
        for version in sorted(wrong):
            yield self._fault(
                f"commits/{version - 1}",
                f"names other versions of state than the changelogs after it: {_OTHERS}",
                of_batch=version - 1,
            )
        for path in sorted(set().union(*(paths for version, paths in dispute.items() if version not in wrong))):
            yield self._fault(path, f"follows versions that the commits do not name: {_OTHERS}")

    def _committed_id(self, key: tuple[int, int, str], version: int) -> str | None:
        number, partition, store = key
        committed = self._committed.get(version - 1)
        partitions = committed.stores.get(number, ()) if committed is not None else ()
        if partition >= len(partitions):
            return None
        at = self._checkpoint.operator(number).stores.index(store)
        ids = partitions[partition]
        return ids[at] if at < len(ids) else None

    def _of_sources(self) -> Iterator[Fault]:
        newest = self._planned.get(self._offsets[-1]) if self._offsets else None
        if newest is not None and len(newest.offsets) == 1:
            for path, what in faults_of_source_log(self._checkpoint, self._definition, newest.offsets[0]):
                yield self._fault(path, what)

    def _of_the_whole(self) -> Iterator[Fault]:
        """What a start would refuse."""
        lake, epoch = self._checkpoint.lake, self._checkpoint.epoch
        checks: tuple[Callable[[], None], ...] = (
            lambda: refuse_moved(lake, self._definition, epoch),
            lambda: refuse_torn_commits(lake, self._definition, epoch),
            lambda: refuse_lost_batches(lake, self._definition, epoch),
        )
        for check in checks:
            try:
                check()
            except CheckpointError as error:
                yield Fault("", "a start would be refused", str(error))
            except ValueError:
                continue  # a log that is not whole, which is told already


def _is_behind(earlier: Planned, later: Planned) -> bool:
    """Whether a batch ends before the one before it, in a source of which that is certain."""
    return any(
        before and after and _place(after) < _place(before)
        for before, after in zip(earlier.offsets, later.offsets, strict=False)
    )


def _place(offset: str) -> Version | tuple[int, int]:
    found = json.loads(offset)
    if "reservoirVersion" in found:
        return int(found["reservoirVersion"]), int(found.get("index", -1))
    return int(found["logOffset"]) if "logOffset" in found else 0, 0
