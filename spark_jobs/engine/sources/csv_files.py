"""What CSV files may need after the first pass over a batch: they have more columns, or values over several lines."""

from dataclasses import replace

from pyspark.sql import DataFrame, Row

from spark_jobs.engine.sources.census import first_rows
from spark_jobs.engine.sources.judging import Judge
from spark_jobs.engine.sources.places import BLOCK, ORDER, blocks_of
from spark_jobs.spark.columns import columns_of
from spark_jobs.transforms.csv_columns import NAME, wider_files
from spark_jobs.transforms.csv_lines import lines_inside_quotes, mark_rows
from spark_jobs.transforms.rows import DETAIL, RAW, REASON, part_of_value_set_aside

_INSIDE = "__inside"


def by_own_headers(judge: Judge, rows: DataFrame, counted: list[Row]) -> tuple[Judge, DataFrame, list[Row]]:
    """The batch again where a file has more columns than are declared: its rows are read by its header.

    Which files do is known when their first lines have been read. To know it before would take a look at each.

    Args:
        judge: of the batch.
        rows: kept in memory; given up where they are read again.
        counted: of them.

    Returns:
        Who judges from now on, the rows and their counts.
    """
    if judge.headers is None:
        return judge, rows, counted
    lines = {file: group["first_line"] for file, group in first_rows(counted).items() if not group["is_header"]}
    wider = wider_files(lines, tuple(judge.definition.columns), judge.headers.delimiter)
    if not wider:
        return judge, rows, counted
    judge = replace(judge, headers=replace(judge.headers, wider=wider))
    try:
        added = {*judge.definition.payload, REASON, DETAIL}
        raw = rows.select(*columns_of(name for name in rows.columns if name not in added))
        again = judge.judged(raw).persist()
        counted = judge.counted(again)
    finally:
        rows.unpersist()
    return judge, again, counted


def without_parts_of_values(judge: Judge, rows: DataFrame, counted: list[Row]) -> tuple[DataFrame, list[Row]]:
    """The batch again where a line opens a quote and a later one closes it: all up to there are one value.

    Such lines are rare, and to know which belong to a value takes another pass.

    Args:
        judge: of the batch.
        rows: kept in memory; given up where they are judged again.
        counted: of them.

    Returns:
        The rows and their counts.
    """
    opened = {group[NAME] for group in counted if group["opens"]}
    # Where all rows are set aside, none of them can be taken for a row.
    if not opened or judge.decision.skips:
        return rows, counted
    try:
        blocks = blocks_of(group for group in counted if group[NAME] in opened)
        delimiter = judge.definition.source.delimiter
        runs = lines_inside_quotes(rows, blocks, delimiter, raw=RAW, file=NAME, place=(BLOCK, ORDER))
        if not runs:
            return rows, counted
        again = part_of_value_set_aside(mark_rows(rows, runs, ORDER, _INSIDE), _INSIDE).persist()
        # Before the rows that it is made of are given up.
        counted = judge.counted(again)
    except BaseException:
        rows.unpersist()
        raise
    rows.unpersist()
    return again, counted
