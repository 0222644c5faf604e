"""What a table asks of those who read and write it, and what of that nothing here implements.

A Delta table says so twice. Its protocol has versions, which up to reader 2 and writer 6 stand for features by their
number alone, and above list them by name. Its metadata says which of these are in use. `deltalake` asks the lists only:
a table with column mapping in the older protocol it reads as NULLs, and appends to it under the wrong names.

Each table is asked here when it is opened. What is not understood is not read, not written and not maintained.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_jobs.lake.errors import UnsupportedTableError, first_line

_NEWEST_READER, _NEWEST_WRITER = 3, 7
"""Versions of the protocol, which list their features from these on."""

VARIANT = "variantType"
"""Of a table with columns of type VARIANT; they are read as they are kept, and not drawn together."""

_READ = frozenset({"timestampNtz", VARIANT})
"""Features of readers that `deltalake` and DuckDB over Arrow implement both."""

_WRITTEN = frozenset(
    {"appendOnly", "invariants", "timestampNtz", "checkConstraints", "changeDataFeed", "generatedColumns", VARIANT}
)
"""Features of writers that a commit honours which changes no row, such as a compaction; `deltalake` checks the rest."""

_IN_NEWER_WRITERS = {6: "identityColumns"}
"""What a writer of a version without lists must implement beyond the one before it, and `deltalake` does not."""

_MAPPING = "columnMapping"


def not_read(opened: DeltaTable) -> tuple[str, ...]:
    """What a table asks of its readers that is not implemented here; empty: all of it is.

    A feature that an older protocol only allows counts where the metadata uses it.
    """
    return tuple(_not_read(opened))


def not_written(opened: DeltaTable) -> tuple[str, ...]:
    """What a table asks of its writers that is not implemented here, beyond what it asks of its readers."""
    return tuple(name for name in dict.fromkeys(_not_written(opened)) if name not in not_read(opened))


def refuse_to_read(table: str, opened: DeltaTable) -> None:
    """Refuses a table whose rows would be shown as other ones.

    Raises:
        UnsupportedTableError: if it needs what is not implemented.
    """
    if missing := not_read(opened):
        raise _unsupported(table, "to read it", ", ".join(missing))


def refuse_to_write(table: str, opened: DeltaTable) -> None:
    """Refuses a table whose files or log would not be what its other users rely on.

    Raises:
        UnsupportedTableError: if it needs what is not implemented.
    """
    refuse_to_read(table, opened)
    if missing := not_written(opened):
        raise _unsupported(table, "to write to it", ", ".join(missing))


@contextmanager
def opening(table: str) -> Iterator[None]:
    """Tells a table that `deltalake` does not open for its protocol from one that is damaged.

    Raises:
        UnsupportedTableError: if it does not for its protocol.
    """
    try:
        yield
    except DeltaError as error:
        if "Unsupported" not in str(error):
            raise
        raise _unsupported(table, "to open it", first_line(error)) from error


def _not_read(opened: DeltaTable) -> Iterator[str]:
    protocol, settings = opened.protocol(), _settings(opened)
    if protocol.min_reader_version > _NEWEST_READER:
        yield f"reader version {protocol.min_reader_version}"
    listed = set(protocol.reader_features or ()) - _READ
    # Of whatever version: where the mode says so, the files have other names than the table.
    if (mode := settings.get("delta.columnMapping.mode", "none")) != "none":
        yield f"{_MAPPING} (delta.columnMapping.mode={mode})"
        listed.discard(_MAPPING)
    yield from sorted(listed)


def _not_written(opened: DeltaTable) -> Iterator[str]:
    protocol = opened.protocol()
    version, listed = protocol.min_writer_version, protocol.writer_features
    if version > _NEWEST_WRITER:
        yield f"writer version {version}"
    elif version < _NEWEST_WRITER:
        yield from (f"{name} (writer version {version})" for at, name in _IN_NEWER_WRITERS.items() if version >= at)
    read = {*(protocol.reader_features or ())}
    yield from sorted(set(listed or ()) - _WRITTEN - read)


def _settings(opened: DeltaTable) -> Mapping[str, str | None]:
    return dict(opened.metadata().configuration)


def _unsupported(table: str, what: str, missing: str) -> UnsupportedTableError:
    return UnsupportedTableError(
        f"table {table}: expected nothing but what Tidemark, deltalake and DuckDB implement, got {missing}, which is "
        f"needed {what}. It was left alone: nothing of it was read or written. Read it with Spark, or copy its rows to "
        "a table without that. docs/operate/troubleshooting.md#table-left-alone"
    )
