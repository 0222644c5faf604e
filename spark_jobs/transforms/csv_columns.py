"""Rows of CSV by the header of their file: it may name more columns than the ingest declares."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_jobs.plan.csv_headers import names_in
from spark_jobs.spark.schemas import schema_ddl

NAME = "__name"
"""The column with the file in which a row stands."""

Wider = Mapping[str, Sequence[str]]
"""File -> the names of all its columns, for files that have more than the ingest declares."""

NO_WIDER: Wider = MappingProxyType({})


def wider_files(headers: Mapping[str, str], columns: Sequence[str], delimiter: str) -> Wider:
    """The files whose header names all columns in their order, and others between or behind them.

    Args:
        headers: file -> its first line.
        columns: that the ingest declares.
        delimiter: of the fields.
    """
    found = {}
    for file, header in headers.items():
        names = names_in(header, delimiter)
        known = [name for name in names if name in columns]
        if known == list(columns) and len(known) < len(names) == len(set(names)) and all(names):
            found[file] = names
    return found


def csv_row(text: str, columns: Mapping[str, str], corrupt: str, delimiter: str, wider: Wider) -> Column:
    """A line of CSV as a struct of the columns, and `corrupt`, which is null where it is a row of these types.

    Args:
        text: column with the line.
        columns: name -> type.
        corrupt: name of the last field.
        delimiter: of the fields.
        wider: files with more columns; `NAME` says which file a line is of.
    """

    def cut(row: Column) -> Column:
        return F.struct(*(row[name].alias(name) for name in (*columns, corrupt)))

    found = _read(text, {**columns, corrupt: "STRING"}, corrupt, delimiter)
    for names, files in by_header(wider):
        types = {_place(index, name, columns): columns.get(name, "STRING") for index, name in enumerate(names)}
        wide = _read(text, {**types, corrupt: "STRING"}, corrupt, delimiter)
        # Through an array of one: so the line is read once, and not once for each column.
        found = F.when(F.col(NAME).isin(files), F.transform(F.array(wide), cut)[0]).otherwise(found)
    return found


def kept_values(text: str, columns: Mapping[str, str], delimiter: str, wider: Wider) -> Column:
    """The values of a line that no column takes, by their names in the header; null where there are none."""
    found = F.lit(None).cast("map<string,string>")
    for names, files in by_header(wider):
        texts = {_place(index, name, columns): "STRING" for index, name in enumerate(names)}
        more = {name: place for name, place in zip(names, texts, strict=True) if name not in columns}

        kept = F.transform(F.array(_read(text, texts, None, delimiter)), _values_of(more))[0]
        found = F.when(F.col(NAME).isin(files), F.when(F.size(kept) > 0, kept)).otherwise(found)
    return found


def _values_of(places: Mapping[str, str]) -> Callable[[Column], Column]:
    """From a row to a map: the values, by their names, that are there."""

    def values(row: Column) -> Column:
        pairs = F.create_map(*(part for name, place in places.items() for part in (F.lit(name), row[place])))
        return F.map_filter(pairs, lambda _, value: value.isNotNull())

    return values


def _read(text: str, types: Mapping[str, str], corrupt: str | None, delimiter: str) -> Column:
    options = {"mode": "PERMISSIVE", "sep": delimiter, "escape": '"'}
    if corrupt is not None:
        options["columnNameOfCorruptRecord"] = corrupt
    return F.from_csv(text, schema_ddl(types), options)


def _place(index: int, name: str, columns: Mapping[str, str]) -> str:
    """A name that fits into a schema; in a header there may be anything."""
    return name if name in columns else f"__more_{index}"


def by_header(wider: Wider) -> Iterator[tuple[Sequence[str], list[str]]]:
    """Each header, with its files."""
    ordered = sorted((tuple(names), file) for file, names in wider.items())
    for names, group in groupby(ordered, key=lambda pair: pair[0]):
        yield names, [file for _, file in group]
