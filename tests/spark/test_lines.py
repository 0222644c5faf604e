"""Lines of text are counted without being read: as many as Spark's text source gives, wherever a file is divided."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.spark.lines import FixedLines
from spark_jobs.spark.stores import WITHOUT_CHECKSUMS

MARK = b"\xef\xbb\xbf"
PARTS = [b"a", b"bc", b" ", b"\n", b"\r", b"\r\n", "é".encode(), b"\xff", b"\t", b"x" * 20]
FILES = st.lists(st.lists(st.sampled_from(PARTS), max_size=30).map(b"".join), min_size=1, max_size=3)
PIECE = "spark.sql.files.maxPartitionBytes"
LONGEST = "mapreduce.input.linerecordreader.line.maxlength"


@contextmanager
def setting(spark: SparkSession, values: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def lines(spark: SparkSession, folder: Path) -> DataFrame:
    return (
        spark.read.options(**WITHOUT_CHECKSUMS)
        .text(str(folder))
        .select(
            "value",
            F.col("_metadata.file_name").alias("file"),
            F.col("_metadata.file_block_start").alias("begins"),
            F.col("_metadata.file_size").alias("size"),
        )
        .where(F.trim("value") != "")
    )


def read(rows: DataFrame) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """What a pass of Spark's over the lines counts."""
    order = F.monotonically_increasing_id()
    counts = (
        rows.withColumn("order", order)
        .groupBy("file", "begins")
        .agg(
            F.count(F.lit(1)).alias("lines"),
            F.min("order").alias("first"),
            F.sum(F.octet_length("value") + 1).alias("bytes"),
            F.max("size").alias("size"),
        )
    )
    return {
        (row["file"], row["begins"]): (row["lines"], row["first"], row["bytes"], row["size"])
        for row in counts.collect()
    }


def counted(fixed: FixedLines) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    pieces = fixed.counted()
    assert pieces is not None
    return {
        (piece["file"].rsplit("/", 1)[-1], piece["begins"]): (
            piece["lines"],
            (piece["partition"] << 33) + piece["before"],
            piece["bytes"],
            piece["size"],
        )
        for piece in pieces
    }


def by_python(content: bytes) -> list[bytes]:
    """The lines of a file that are events."""
    return [line for line in re.split(rb"\r\n|\r|\n", content.removeprefix(MARK)) if line.strip(b" ")]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FILES, st.booleans(), st.sampled_from([1, 2, 3, 7, 16, 1000]))
@example([b"a\r\nb\rc\n\r\n  \n d"], True, 2)
@example([MARK, MARK + b"\r", MARK + b"  \na"], False, 3)
@example([b"a" * 9 + b"\r\nb", b""], False, 10)
def test_each_piece_has_the_lines_that_spark_reads_in_it(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, files: list[bytes], has_mark: bool, piece: int
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    contents = {f"{number}.json": (MARK if has_mark else b"") + content for number, content in enumerate(files)}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    with setting(spark, {PIECE: str(piece), "spark.sql.files.openCostInBytes": str(piece)}):
        fixed = FixedLines(lines(spark, folder))
        found = counted(fixed)
        assert found == read(fixed.rows)
    of_files = {name: sum(figures[0] for (file, _), figures in found.items() if file == name) for name in contents}
    assert of_files == {name: len(by_python(content)) for name, content in contents.items()}


@pytest.mark.parametrize("name", ["b.json.gz", "b.gzip", "b.json.zst", "b.zstd", "b.json.bz2"])
def test_lines_of_a_compressed_file_are_left_to_its_reader(spark: SparkSession, tmp_path: Path, name: str) -> None:
    for file in ("a.json", name):
        (tmp_path / file).write_bytes(b"a\n")
    assert FixedLines(lines(spark, tmp_path)).counted() is None


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize("more", [-2, -1, 0, 1])
def test_a_line_that_is_too_long_for_spark_is_not_counted(
    spark: SparkSession, tmp_path: Path, more: int, end: bytes
) -> None:
    (tmp_path / "a.json").write_bytes(b"a\n" + b"b" * (20 + more) + end)
    with setting(spark, {LONGEST: "20"}):
        fixed = FixedLines(lines(spark, tmp_path))
        assert counted(fixed) == read(fixed.rows)
