"""Lines of CSV in a batch that are no rows for their quotes: those that leave one open, and those that lie inside."""

from collections.abc import Collection, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.transforms.quotes import Block, Effect, parts_of_values, patterns

_QUOTE = '"'
_BYTE_ORDER_MARK = "\ufeff"
_BEGINS = Effect.OPENS | Effect.REOPENS
# Rows are looked up by their number, so many at once.
_BUCKET_BITS = 6


def leaves_quote_open(line: Column, delimiter: str) -> Column:
    """Whether a line is no row for its quotes: `from_csv` cuts a value off at the line's end, or at a stray quote.

    A lone quote inside of a field without quotes is none of them, nor are two that stand in the midst of a field.
    """
    odd = (F.length(line) - F.length(F.replace(line, F.lit(_QUOTE)))) % 2 == 1
    broken = line.rlike(patterns(delimiter).broken)
    return F.coalesce(_has_quote(line) & F.when(odd, broken).otherwise(opens_quote(line, delimiter)), F.lit(False))


def opens_quote(line: Column, delimiter: str) -> Column:
    """Whether a line ends inside of quotes, as before a line break that belongs to the value."""
    behind = F.substring_index(line, _QUOTE, -1)
    before_last = F.substring(line, F.length(line) - F.length(behind) - 1, F.lit(1))
    # So its last quote is the one that opens, or one of two; of most lines it is the closing one behind a value.
    may_open = before_last.isin(delimiter, _QUOTE, _BYTE_ORDER_MARK)
    return F.coalesce(_has_quote(line) & may_open & line.rlike(patterns(delimiter).opens), F.lit(False))


def _has_quote(line: Column) -> Column:
    return F.contains(line, F.lit(_QUOTE))


def lines_inside_quotes(
    rows: DataFrame, blocks: Sequence[Block], delimiter: str, *, raw: str, file: str, place: tuple[str, str]
) -> list[tuple[int, int]]:
    """The rows that go on with a value of the line before them: numbers of the first and last of each run.

    Args:
        rows: of one batch.
        blocks: of the files that have lines which open a quote; others need not be looked at.
        delimiter: of the fields.
        raw: column with the line.
        file: column with the name of the file.
        place: columns with the begin of the block and the number of the row, which order the lines of a file.
    """
    found, line, number = patterns(delimiter), F.col(raw), place[1]
    effects = {Effect.OPENS: found.opens, Effect.CLOSES: found.closes, Effect.REOPENS: found.reopens}
    effect = sum((F.when(line.rlike(regex), int(each)).otherwise(0) for each, regex in effects.items()), F.lit(0))
    of_files = F.col(file).isin(sorted({block.file for block in blocks}))
    told = rows.where(of_files & _has_quote(line) & ~line.rlike(found.stays))
    before = F.lag("effect", 1, 0).over(Window.partitionBy(file).orderBy(*place))
    # All quoted lines of a file may be too many for the driver: it needs those that open and the next of each.
    lines = (
        told.select(file, *place, effect.alias("effect"))
        .withColumn("before", before)
        .where(F.col("effect").bitwiseOR(F.col("before")).bitwiseAND(F.lit(int(_BEGINS))) != 0)
        .select(number, "effect")
        .toArrow()
    )
    pairs = zip(lines[number].to_pylist(), map(Effect, lines["effect"].to_pylist()), strict=True)
    return list(parts_of_values(pairs, blocks))


def mark_rows(rows: DataFrame, runs: Collection[tuple[int, int]], number: str, mark: str) -> DataFrame:
    """Adds a column that is true for the rows of the runs.

    Args:
        rows: each has a number of its own.
        runs: numbers of the first and last row of each run; none has a row of another.
        number: column with the number of the row.
        mark: name of the new column.
    """
    firsts, lasts = zip(*runs, strict=True)
    # From Arrow: rows of Python objects would start Python workers.
    table = rows.sparkSession.createDataFrame(pa.table({"__first": firsts, "__last": lasts}))
    buckets = F.sequence(F.shiftright("__first", _BUCKET_BITS), F.shiftright("__last", _BUCKET_BITS))
    spread = F.broadcast(table.withColumn("__bucket", F.explode(buckets)))
    of_run = (F.shiftright(number, _BUCKET_BITS) == F.col("__bucket")) & F.col(number).between(
        F.col("__first"), F.col("__last")
    )
    marked = rows.join(spread, of_run, "left").withColumn(mark, F.col("__bucket").isNotNull())
    return marked.drop("__first", "__last", "__bucket")
