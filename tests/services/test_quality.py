"""Checks of a table on a real MinIO, and the pages about it, from the command line."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from posixpath import dirname, join, normpath

import httpx
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from spark_jobs.cli import app
from spark_jobs.documentation.reading import read_index, read_page
from spark_jobs.lake import Lake
from spark_jobs.lake.errors import LakeUnavailableError
from tests.support import lakes
from tests.support.minio import Minio
from tests.unit.test_quality import sales

DEFINITION = """
from spark_jobs.spec import Aggregate, Between, NotNull, Pipeline, Sink, Table, Tumbling, Unique, Watermark

mine = Pipeline(
    name="hourly_sales",
    source=Table("bronze.sales"),
    event_time="sold_at",
    watermark=Watermark(delay="2 minutes"),
    steps=(Aggregate(window=Tumbling("1 hour"), by=("product_id",), measures={"units": "sum(quantity)"}),),
    sink=Sink("gold.hourly_sales"),
    expectations=(Between("units", min=1), NotNull("product_id", severity="warn"), Unique("product_id")),
)
"""
INDEX, PAGE = "lake/_docs/index.html", "lake/_docs/gold.hourly_sales/index.html"


class Links(HTMLParser):
    """The addresses that a page leads to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def test_a_table_on_minio_is_checked_and_its_page_is_beside_the_lake(
    tmp_path: Path, minio_server: Minio, bucket: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(DEFINITION)
    lake = Lake(f"s3a://{bucket}/lake")

    def append(*rows: tuple[str | None, int | None]) -> None:
        where, options = lake.table_uri("gold.hourly_sales"), lake.storage_options
        write_deltalake(where, sales(*rows), mode="append", storage_options=options)

    def tidemark(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, [*arguments, str(file), "--lake", lake.uri])
        return done.exit_code, done.output

    append(("a", 0), ("b", 1), (None, 2), ("d", -1))
    code, told = tidemark("check")
    assert code == 1, told
    assert "BROKEN between(units, 1..): 2 of 4 rows break it" in told
    assert "warn   not_null(product_id): 1 of 4 rows break it" in told
    assert "ok     unique(product_id)" in told
    # The address that it tells is that of an object, and what a browser gets there is a page.
    assert re.findall(r"report s3a://(\S+)", told) == [f"{bucket}/{PAGE}"]
    (link,) = re.findall(r"link, for 12 hours: (http\S+)", told)
    opened = httpx.get(link)
    assert (opened.status_code, "3 expectations, 2 broken." in opened.text) == (200, True)
    page = minio_server.client().get_object(Bucket=bucket, Key=PAGE)
    assert page["ContentType"].startswith("text/html")
    text = page["Body"].read().decode()
    assert "3 expectations, 2 broken." in text
    assert "2 of 4 rows break it" in text
    assert "units = -1" in text

    append(("e", 3))
    code, told = tidemark("check")
    assert (code, "ok     between(units, 1..): 0 of 1 rows break it" in told) == (0, True), told
    kept = sorted(
        (row["to_version"], row["expectation"], row["severity"], row["success"], row["unexpected_count"])
        for row in lakes.rows(lake, "ops.quality")
    )
    assert kept == [
        (0, "between(units, 1..)", "fail", False, 2),
        (0, "not_null(product_id)", "warn", False, 1),
        (0, "unique(product_id)", "fail", True, 0),
        (1, "between(units, 1..)", "fail", True, 0),
        (1, "not_null(product_id)", "warn", True, 0),
        (1, "unique(product_id)", "fail", True, 0),
    ]
    assert "3 expectations, 0 broken." in minio_server.read(bucket, PAGE)

    code, told = tidemark("docs")
    assert (code, f"s3a://{bucket}/{INDEX}" in told) == (0, True), told
    list_of_tables = minio_server.read(bucket, INDEX)
    assert "all 3 hold" in list_of_tables
    for link in Links(list_of_tables).found:
        back = Links(minio_server.read(bucket, normpath(join(dirname(INDEX), link)))).found
        assert "../index.html" in back
    assert "gold.hourly_sales/index.html" in Links(list_of_tables).found

    # What Airflow shows.
    assert read_index(lake) == list_of_tables.encode()
    assert read_page(lake, "gold.hourly_sales") == minio_server.read(bucket, PAGE).encode()
    assert read_page(lake, "gold.none") is None
    with pytest.raises(LakeUnavailableError, match="NoSuchBucket"):
        read_page(Lake("s3a://none/lake"), "gold.hourly_sales")
