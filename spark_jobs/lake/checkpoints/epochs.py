"""Checkpoints by pipeline and epoch, and the definition that each was made with.

`_checkpoints/<pipeline>/epochs/<number>.json` is created once and never changed, by a conditional create, so of two
drivers that begin an epoch exactly one does. Spark's own checkpoint of the epoch lies beside it, in
`_checkpoints/<pipeline>/epoch-<number>/`, and where it begins in its source tables in
`_checkpoints/<pipeline>/starts/<number>.json`. `_checkpoints/<pipeline>/bootstraps/<number>.json` notes of an epoch
that begins at a cut that its history has been computed. `_checkpoints/<pipeline>/raised/<number>-<version>.json` has
the definition that went on with a higher version of its processor.
"""

import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime

import obstore
from obstore.exceptions import AlreadyExistsError, NotFoundError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spark_jobs.lake.commands import command
from spark_jobs.lake.errors import CheckpointError, TidemarkError, first_line
from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.durable import create_object
from spark_jobs.lake.store.folders import remove_folder
from spark_jobs.lake.store.formats import PersistedValue
from spark_jobs.plan.changes import gives_other_rows, needs_new_epoch, processor_version
from spark_jobs.spec import Definition, definition_from_json


class Undone(BaseModel):
    """The commits of a table that a restore has taken back.

    Attributes:
        after: the version that the table was put back to.
        upto: the version by which that was done.
    """

    model_config = ConfigDict(frozen=True)

    after: int
    upto: int

    def has(self, version: int) -> bool:
        """Whether a commit was taken back."""
        return self.after < version < self.upto


class Jump(BaseModel):
    """Where a stream goes on in a source table that was put back.

    Attributes:
        old: up to where it had read the table, as a place in its log.
        new: the same behind what was taken back.
    """

    model_config = ConfigDict(frozen=True)

    old: tuple[int, int]
    new: tuple[int, int]

    def passes(self, place: tuple[int, int]) -> bool:
        """Whether the stream does not read a place, because what is there was taken back, or is named again."""
        return self.old < place <= self.new


class Restored(BaseModel):
    """From where an epoch goes on that a restore has begun.

    Attributes:
        epoch: that it goes on.
        batch: the last batch of that epoch which counts.
        savepoint: by name, that was restored; None: a batch of the checkpoint was.
        tables: table of the pipeline -> what was taken back; one whose rows stayed is not among them.
        sources: source table that was put back, too -> where the stream goes on in it.
    """

    model_config = ConfigDict(frozen=True)

    epoch: int
    batch: int
    savepoint: str | None = None
    tables: Mapping[str, Undone] = {}
    sources: Mapping[str, Jump] = {}


class Epoch(PersistedValue):
    """The life of a checkpoint.

    Attributes:
        pipeline: its name.
        number: grows with every reset or restore, starting at 1.
        definition: that runs on it, as JSON: the one that it began with, or that went on with a raised version.
        before: those that ran on it before that, the oldest first.
        begun_at: when the epoch began.
        tables_emptied: whether all rows of the pipeline's tables are of this epoch.
        cut_us: windows that end at or before it are computed in batch, microseconds since 1970; None: none is.
        claimed: under which number its result was claimed for it (`claims.py`); who claims the table afterwards
            ends the epoch, whether it had begun or not. None: it had not to be claimed.
        restored: from where it goes on; None: it began at the start of its source.
    """

    pipeline: str
    number: int
    definition: str
    begun_at: datetime
    tables_emptied: bool = True
    cut_us: int | None = None
    claimed: int | None = None
    restored: Restored | None = None
    before: tuple[str, ...] = Field(default=(), exclude=True)

    @property
    def folder(self) -> str:
        """Spark's checkpoint, relative to the lake."""
        return f"_checkpoints/{self.pipeline}/epoch-{self.number}"


class Starts(PersistedValue):
    """Where the first batch of an epoch begins.

    Spark's log of offsets holds only ends: without this a first batch that was planned and not committed would begin
    wherever the next start thinks that it should.

    Attributes:
        versions: source table -> the first version of it that is read.
        snapshots: source tables whose log does not go back to their first event: the stream begins with all that they
            hold, in order of arrival, as of `versions` or a little later.
        topics: Kafka topic -> its id; offsets of another topic of the same name mean other messages.
        never: no stream begins in this epoch: a bootstrap has begun the next one instead.
    """

    versions: Mapping[str, int] = {}
    snapshots: tuple[str, ...] = ()
    topics: Mapping[str, str] = {}
    never: bool = False


def starts_of(lake: Lake, epoch: Epoch) -> Starts | None:
    """Where an epoch begins in its source tables; None before its first start."""
    try:
        return Starts.model_validate_json(bytes(obstore.get(lake.store, _starts_path(epoch)).bytes()))
    except (NotFoundError, FileNotFoundError):
        return None


def fix_starts(lake: Lake, epoch: Epoch, starts: Starts) -> Starts:
    """Notes where an epoch begins, once; if another driver was first, what that one has noted.

    Raises:
        CheckpointError: if a bootstrap was first, so that no stream begins in this epoch.
    """
    try:
        create_object(lake, _starts_path(epoch), starts.model_dump_json().encode())
    except AlreadyExistsError:
        noted = starts_of(lake, epoch) or starts
        refuse_never(epoch, noted)
        return noted
    return starts


def refuse_never(epoch: Epoch, starts: Starts) -> None:
    """Refuses to start a stream in an epoch that a bootstrap has ended before it began.

    Raises:
        CheckpointError: if it has.
    """
    if starts.never:
        raise CheckpointError(
            f"pipeline `{epoch.pipeline}`: a bootstrap has ended epoch {epoch.number} before it began. Nothing was "
            "started or written. Start it again when the bootstrap has begun the next one; if it was interrupted, run "
            f"it again: {command('bootstrap', epoch.pipeline)}"
        )


def end_before_it_begins(lake: Lake, epoch: Epoch) -> bool:
    """Keeps every stream from beginning in an epoch; whether none has begun.

    Of a stream and this exactly one is first.
    """
    try:
        create_object(lake, _starts_path(epoch), Starts(never=True).model_dump_json().encode())
    except AlreadyExistsError:
        noted = starts_of(lake, epoch)
        return noted is not None and noted.never
    return True


def _starts_path(epoch: Epoch) -> str:
    return f"_checkpoints/{epoch.pipeline}/starts/{epoch.number:06d}.json"


class BootstrapOutcome(PersistedValue):
    """That the history of an epoch, up to its cut, has been computed in batch.

    Attributes:
        last_batch: the newest batch of the stream before that: what this one and those before it have read is in the
            history, where it lies before the cut.
        at: when it was done.
    """

    last_batch: int
    at: datetime


def bootstrapped(lake: Lake, epoch: Epoch) -> BootstrapOutcome | None:
    """The end of an epoch's bootstrap; None: it has not come, or the epoch has no cut."""
    if epoch.cut_us is None:
        return None
    try:
        return BootstrapOutcome.model_validate_json(bytes(obstore.get(lake.store, _bootstrap_path(epoch)).bytes()))
    except (NotFoundError, FileNotFoundError):
        return None


def note_bootstrapped(lake: Lake, epoch: Epoch, last_batch: int) -> None:
    """Notes, once, that the history of an epoch has been computed."""
    noted = BootstrapOutcome(last_batch=last_batch, at=datetime.now(UTC))
    with contextlib.suppress(AlreadyExistsError):
        create_object(lake, _bootstrap_path(epoch), noted.model_dump_json().encode())


def history_cut(lake: Lake, epoch: Epoch | None) -> int | None:
    """Up to where the history of an epoch is still to be computed, microseconds since 1970; None: it is not."""
    if epoch is None or epoch.cut_us is None or bootstrapped(lake, epoch) is not None:
        return None
    return epoch.cut_us


def _bootstrap_path(epoch: Epoch) -> str:
    return f"_checkpoints/{epoch.pipeline}/bootstraps/{epoch.number:06d}.json"


def carry_over(lake: Lake, before: Epoch, number: int) -> None:
    """Notes of an epoch that goes on another one where that begins, and that its history has been computed."""
    after = before.model_copy(update={"number": number})
    for path in (_starts_path, _bootstrap_path):
        with contextlib.suppress(NotFoundError, FileNotFoundError, AlreadyExistsError):
            create_object(lake, path(after), bytes(obstore.get(lake.store, path(before)).bytes()))


def current_epoch(lake: Lake, pipeline: str) -> Epoch | None:
    """The newest epoch of a pipeline; None before its first run."""
    folder = f"_checkpoints/{pipeline}/epochs/"
    paths = [item["path"] for item in lake.store.list(folder).collect() if item["path"].endswith(".json")]
    if not paths:
        return None
    return _as_it_runs(lake, Epoch.model_validate_json(bytes(lake.store.get(max(paths)).bytes())))


class RaisedVersion(PersistedValue):
    """That a definition with a higher version of its processor has gone on with an epoch.

    Attributes:
        definition: as JSON.
        at: when its first batch was committed.
    """

    definition: str
    at: datetime


def note_raised(lake: Lake, epoch: Epoch, definition: Definition) -> None:
    """Notes, once, that a definition which has written a batch has a higher version of its processor.

    Raises:
        CheckpointError: if another definition has gone on with the epoch meanwhile.
    """
    if not gives_other_rows(begun_with(epoch), definition):
        return
    version = processor_version(definition)
    noted = RaisedVersion(definition=definition.to_json(), at=datetime.now(UTC))
    try:
        create_object(lake, f"{_raised_path(epoch)}{version:06d}.json", noted.model_dump_json().encode())
    except AlreadyExistsError:
        _refuse_other_definition(lake, _as_it_runs(lake, epoch), definition)


def _as_it_runs(lake: Lake, epoch: Epoch) -> Epoch:
    """An epoch with the definition that was the last one to go on with it."""
    # Nothing else can be raised: whoever looks at many pipelines need not ask for each.
    if '"kind":"process"' not in epoch.definition.replace(" ", ""):
        return epoch
    folder, _, first = _raised_path(epoch).rpartition("/")
    found = sorted(item["path"] for item in lake.store.list(f"{folder}/").collect())
    raised = (path for path in found if path.rpartition("/")[2].startswith(first))
    notes = [RaisedVersion.model_validate_json(bytes(lake.store.get(path).bytes())).definition for path in raised]
    ran = (epoch.definition, *notes)
    return epoch.model_copy(update={"definition": ran[-1], "before": ran[:-1]})


def _raised_path(epoch: Epoch) -> str:
    return f"_checkpoints/{epoch.pipeline}/raised/{epoch.number:06d}-"


def begin_epoch(
    lake: Lake,
    definition: Definition,
    number: int,
    *,
    tables_emptied: bool = True,
    cut_us: int | None = None,
    claimed: int | None = None,
    restored: Restored | None = None,
) -> Epoch:
    """Begins an epoch with a definition.

    Args:
        lake: where.
        definition: that runs on it.
        number: of the epoch.
        tables_emptied: as `Epoch`.
        cut_us: as `Epoch`.
        claimed: as `Epoch`.
        restored: as `Epoch`.

    Returns:
        The epoch; if another driver began it first, with the same definition, that one's.

    Raises:
        CheckpointError: if another driver began it with another definition.
    """
    epoch = Epoch(
        pipeline=definition.name,
        number=number,
        definition=definition.to_json(),
        begun_at=datetime.now(UTC),
        tables_emptied=tables_emptied,
        cut_us=cut_us,
        claimed=claimed,
        restored=restored,
    )
    path = f"_checkpoints/{definition.name}/epochs/{number:06d}.json"
    try:
        create_object(lake, path, epoch.model_dump_json().encode())
    except AlreadyExistsError:
        other = _as_it_runs(lake, Epoch.model_validate_json(bytes(lake.store.get(path).bytes())))
        _refuse_other_definition(lake, other, definition)
        return other
    return epoch


def begin_next_epoch(
    lake: Lake,
    definition: Definition,
    number: int,
    *,
    tables_emptied: bool = True,
    cut_us: int | None = None,
    claimed: int | None,
    restored: Restored | None = None,
) -> Epoch:
    """As `begin_epoch`, for who has made the tables what this epoch begins with.

    Raises:
        CheckpointError: if another command began it, with tables that hold something else.
    """
    epoch = begin_epoch(
        lake, definition, number, tables_emptied=tables_emptied, cut_us=cut_us, claimed=claimed, restored=restored
    )
    mine = tables_emptied, cut_us, claimed, restored
    if (epoch.tables_emptied, epoch.cut_us, epoch.claimed, epoch.restored) != mine:
        raise CheckpointError(
            f"pipeline `{definition.name}`: another reset, restore or rebuild has begun epoch {number} meanwhile, and "
            "its tables hold what this one put there. Nothing is written in that epoch any more. Begin again: "
            f"{command('reset', definition.name, '--empty-tables')}"
        )
    return epoch


def open_epoch(lake: Lake, definition: Definition) -> Epoch:
    """The epoch that a definition runs on: the current one, or the first.

    Raises:
        CheckpointError: if the checkpoint was made with another definition.
    """
    return refuse_changed_definition(lake, definition) or begin_epoch(lake, definition, 1)


def refuse_changed_definition(lake: Lake, definition: Definition) -> Epoch | None:
    """The current epoch, which was begun with this definition; None before the first.

    Raises:
        CheckpointError: if the checkpoint was made with another definition.
    """
    current = current_epoch(lake, definition.name)
    if current is not None:
        _refuse_other_definition(lake, current, definition)
    return current


def epoch_at(lake: Lake, pipeline: str, number: int) -> Epoch | None:
    """An epoch by its number; None if there was none."""
    try:
        content = obstore.get(lake.store, f"_checkpoints/{pipeline}/epochs/{number:06d}.json").bytes()
    except (NotFoundError, FileNotFoundError):
        return None
    return _as_it_runs(lake, Epoch.model_validate_json(bytes(content)))


def current_epochs(lake: Lake) -> dict[str, Epoch]:
    """Pipeline -> its epoch, of all that have begun one here."""
    folders = lake.store.list_with_delimiter("_checkpoints/")["common_prefixes"]
    names = sorted(prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in folders)
    return {name: epoch for name in names if (epoch := current_epoch(lake, name)) is not None}


def begun_with(epoch: Epoch) -> Definition:
    """The definition that runs on an epoch: of a pipeline that is registered nowhere any more, the only one.

    Raises:
        CheckpointError: if this version cannot read it.
    """
    try:
        return definition_from_json(epoch.definition)
    except (ValidationError, TidemarkError, ValueError) as error:
        raise CheckpointError(
            f"pipeline `{epoch.pipeline}`: it is not registered, and the definition that epoch {epoch.number} of its "
            f"checkpoint began with cannot be read: {first_line(error)}. Nothing was changed. Run the same command "
            "with the path of a file that defines it."
        ) from error


def running_definitions(lake: Lake) -> dict[str, tuple[Epoch, Definition]]:
    """Pipeline -> its epoch, and the definition that runs on it; one that this version cannot read is left out."""
    found = {}
    for name, epoch in current_epochs(lake).items():
        try:
            found[name] = epoch, definition_from_json(epoch.definition)
        except (ValidationError, TidemarkError, ValueError):
            continue
    return found


def delete_checkpoint(lake: Lake, epoch: Epoch) -> None:
    """Removes Spark's checkpoint of an epoch that is over."""
    remove_folder(lake, epoch.folder)


def _refuse_other_definition(lake: Lake, epoch: Epoch, definition: Definition) -> None:
    # As values, read by today's code: a field that has got a default since then changes nothing.
    changed = ", ".join(needs_new_epoch(definition_from_json(epoch.definition), definition))
    if not changed:
        return
    raise CheckpointError(
        f"pipeline `{definition.name}`: its definition has changed ({changed}) since epoch {epoch.number} of its "
        f"checkpoint in {lake.path(epoch.folder)} began. Nothing was started or written. Put the definition back, or "
        f"begin a new epoch with `{command('reset', definition.name, '--keep-tables')}` (results so far stay, and the "
        f"stream reads its source again from the start) or `--empty-tables`."
    )
