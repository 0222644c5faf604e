"""Parquet files by their ends, without a JVM: which columns they have, and how these are stored."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import ObjectStore

from spark_jobs.lake.store.s3 import s3_store

if TYPE_CHECKING:
    import pyarrow.parquet as pq

# The ends of most files are shorter: one request then gives all of it.
_END_BYTES = 64 * 1024
_AT_ONCE = 16
_MAGIC = b"PAR1"
_TOLD_BY_SPARK = (
    FileNotFoundError,
    PermissionError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
    pa.ArrowException,
)


def parquet_shape(store: ObjectStore, path: str) -> tuple[list[str], int]:
    """The columns of a Parquet file and the number of its rows, from the end of the file alone.

    Args:
        store: of its folder.
        path: in the store.

    Raises:
        ArrowException: if it is no Parquet file.
    """
    found = _metadata(lambda size: _end_of(store, path, size))
    return found.schema.to_arrow_schema().names, found.num_rows


def stored_schemas(paths: Iterable[str]) -> Iterator[tuple[str, pa.Schema]]:
    """The schema of each file; not of one that cannot be opened, or lies on a store that is unknown here.

    Times as Spark once wrote them, of 96 bits, are told as those of microseconds: it reads them so.

    Args:
        paths: such as `file:/landing/a` or `s3a://bucket/a`.

    Raises:
        BaseError: if a store does not answer.
        OSError: if a disk does not.
    """
    stores = cache(lambda bucket: s3_store(f"s3a://{bucket}"))

    def schema(path: str) -> pa.Schema | None:
        scheme, _, rest = path.partition(":")
        try:
            if scheme == "file":
                return _schema(_metadata(lambda size: _end_of_file(Path("/" + rest.lstrip("/")), size)))
            if scheme == "s3a":
                bucket, _, key = rest.lstrip("/").partition("/")
                return _schema(_metadata(lambda size: _end_of(stores(bucket), key, size)))
        except _TOLD_BY_SPARK:
            pass  # it opens the file, too
        return None

    every = list(paths)
    for bucket in {path.split("/")[2] for path in every if path.startswith("s3a://")}:
        stores(bucket)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = pool.map(schema, every) if any(path.startswith("s3a:") for path in every) else map(schema, every)
        yield from ((path, each) for path, each in zip(every, found, strict=True) if each is not None)


def _metadata(read_end: Callable[[int], bytes]) -> "pq.FileMetaData":
    """From what reads so many bytes at the end of a file, or all of it."""
    import pyarrow.parquet as pq  # heavy: only where such files are read

    end = read_end(_END_BYTES)
    needed = int.from_bytes(end[-8:-4], "little") + 8
    if end[-4:] != _MAGIC:
        raise pa.ArrowInvalid("no Parquet file: it ends otherwise")
    if needed > len(end):
        end = read_end(needed)
    return pq.read_metadata(pa.BufferReader(_MAGIC + end[-needed:]))


def _end_of(store: ObjectStore, path: str, size: int) -> bytes:
    try:
        return bytes(obstore.get(store, path, options={"range": {"suffix": size}}).bytes())
    except BaseError:
        # Of an object without a byte no store gives a part.
        if obstore.head(store, path)["size"]:
            raise
        return b""


def _end_of_file(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(max(file.seek(0, 2) - size, 0))
        return file.read(size)


def _schema(found: "pq.FileMetaData") -> pa.Schema:
    columns = [found.schema.column(index) for index in range(len(found.schema))]
    old = {column.path.split(".")[0] for column in columns if column.physical_type == "INT96"}
    fields: list[pa.Field] = list(found.schema.to_arrow_schema())
    return pa.schema([pa.field(f.name, _in_micros(f.type)) if f.name in old else f for f in fields])


def _in_micros(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _in_micros(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_in_micros(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _in_micros(kind.item_type))
    return kind
