"""Ingest from files: every row is in bronze or, with its reason and its text, in the quarantine."""

import base64
import gzip
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark_jobs.commits.tables import SchemaMismatchError
from spark_jobs.engine.halting import BrokenRuleError
from spark_jobs.engine.ingest import IngestQuery
from spark_jobs.engine.sources.files import MissingInputError
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting import audit
from spark_jobs.lake.accounting.ledger import Totals
from spark_jobs.lake.checkpoints import halts
from spark_jobs.lake.checkpoints.epochs import current_epoch
from spark_jobs.lake.settings import Settings
from spark_jobs.spark.settings import spark_settings
from spark_jobs.spec import (
    Aggregate,
    Between,
    DefinitionError,
    Files,
    Ingest,
    NotNull,
    OneOf,
    Parsing,
    Pipeline,
    Satisfies,
    Sink,
    Table,
    Tumbling,
    Watermark,
)
from tests.support import lakes

T = '"t": "2026-01-01T00:00:00Z"'
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = {"k": "STRING", "v": "INT", "price": "DECIMAL(6, 2)", "t": "TIMESTAMP", "seen": "TIMESTAMP"}


def an_ingest(folder: Path, *, columns: dict[str, str] | None = None, **more: Any) -> Ingest:
    source = Files(str(folder), **more.pop("files", {}))
    fields = {"columns": columns or COLUMNS, "event_time": "t", "sink": Sink("bronze.events"), **more}
    return Ingest(name="ingest_events", source=source, **fields)


def write(path: Path, content: str | bytes, order: int = 0) -> None:
    """A file whose modification time tells its order: that is what a file source goes by."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    os.utime(path, (1_700_000_000 + order, 1_700_000_000 + order))


def test_a_rule_that_spark_refuses_can_be_fixed_without_a_reset(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    write(tmp_path / "in/1.json", '{"k": "a", "v": 1, ' + T + "}\n")
    right = an_ingest(tmp_path / "in", rules=(Satisfies("typo", "length(k) = 1"),))
    for condition, told in (("lenght(k) = 3", "lenght"), ("v", "DATATYPE_MISMATCH"), ("nothing > 1", "nothing")):
        typo = right.model_copy(update={"rules": (Satisfies("typo", condition),)})
        with pytest.raises(SchemaMismatchError, match=told):
            run(spark, lake, typo)
    run(spark, lake, right)
    assert len(bronze(lake)) == 1


def test_a_pattern_of_times_that_is_none_is_refused_at_the_start(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    write(tmp_path / "in/1.json", '{"k": "a", "t": "31/01/2026"}\n')
    wrong = an_ingest(tmp_path / "in", parsing={"t": Parsing(pattern="dd/bb/uuuu")})
    with pytest.raises(DefinitionError, match=r"pattern.*b.*Nothing was read or written"):
        run(spark, lake, wrong)
    run(spark, lake, an_ingest(tmp_path / "in", parsing={"t": Parsing(pattern="dd/MM/uuuu")}))
    assert [row["t"] for row in bronze(lake)] == [datetime(2026, 1, 31, tzinfo=UTC)]


def run(spark: SparkSession, lake: Lake, definition: Ingest) -> None:
    query = IngestQuery(spark, lake, definition)
    handle = query.start(until_caught_up=True)
    try:
        handle.awaitTermination()
    except Exception:
        if query.error is not None:
            raise query.error from None
        raise


@contextmanager
def blocks_of(spark: SparkSession, size: int) -> Iterator[None]:
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(size))
    try:
        yield
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", str(before))


@contextmanager
def lines_up_to(spark: SparkSession, size: int) -> Iterator[None]:
    """What TIDEMARK_MAX_LINE_BYTES sets, for a session that runs already."""
    before, after = (spark_settings(Lake("/"), Settings(max_line_bytes=each)) for each in (16 * 2**20, size))
    changed = {name.removeprefix("spark.hadoop."): after[name] for name in after if before[name] != after[name]}
    assert len(changed) == 2
    for name, value in changed.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in changed:
            spark.conf.unset(name)


def assert_books_balance(lake: Lake, definition: Ingest, *, read: int) -> None:
    """The ledger's equations hold, against the tables too, and it knows all that was read."""
    totals = Totals.of(row for _, row in lakes.ledger(lake, definition))
    assert (totals["read"], totals["rows"] + totals["quarantined"]) == (read, read)
    epoch = current_epoch(lake, definition.name)
    assert epoch is not None
    found = audit.checks(lake, definition, epoch.number, lakes.ledger(lake, definition))
    assert len(found) == 3
    assert [text for holds, text in found if not holds] == []


def reasons(lake: Lake, definition: Ingest) -> dict[str, int]:
    counts: dict[str, int] = {}
    for _, row in lakes.ledger(lake, definition):
        for reason, count in row.reasons.items():
            counts[reason] = counts.get(reason, 0) + count
    return counts


def bronze(lake: Lake) -> list[dict[str, Any]]:
    return sorted(lakes.rows(lake, "bronze.events"), key=lambda row: row["_ingest_seq"])


def quarantine(lake: Lake) -> list[dict[str, Any]]:
    return sorted(lakes.rows(lake, "bronze.events__quarantine"), key=place)


def place(row: dict[str, Any]) -> tuple[str, int]:
    source = row["_source"]
    return file_of(row), -1 if source["position"] is None else source["position"]


def file_of(row: dict[str, Any]) -> str:
    return unquote(str(row["_source"]["name"]).rpartition("/")[2])


def lines_of(paths: Sequence[Path]) -> list[tuple[tuple[str, int], str]]:
    """What plain Python counts: (file, place) and text of each line that is not blank."""
    found = []
    for path in paths:
        lines = [line for line in path.read_text().split("\n") if line.strip(" \r")]
        found += [((path.name, number), line.rstrip("\r")) for number, line in enumerate(lines)]
    return found


# What is wrong with the row, and the reason and detail that the quarantine tells.
BAD = (
    ('{"k": "a", "v": 1, ' + T, "unparseable", "no JSON row"),
    ('{"k": "a"', "unparseable", "no JSON row: broken at character 10"),
    # As Python's json writes it, and no other program reads it.
    ('{"k": "a", "more": {"x": NaN}, ' + T + "}", "unparseable", "no JSON row: broken at character 29"),
    ('{"k": "a", "k": "b", ' + T + "}", "unparseable", "no JSON row: it has the key k twice"),
    ('{"k": "\\ud83d", ' + T + "}", "unparseable", "no JSON row: k has half a surrogate pair"),
    ("<html><body>502 Bad Gateway</body></html>", "unparseable", "no JSON row"),
    ("null", "unparseable", "no JSON row"),
    ('"text"', "unparseable", "no JSON row"),
    ("[]", "unparseable", "no JSON row"),
    ('[{"k": "a", "v": 1, ' + T + "}]", "unparseable", "no JSON row"),
    # Two events where a line end was lost: reading the first alone would lose the second in silence.
    ('{"k": "a", "v": 1, ' + T + '}{"k": "b", "v": 2, ' + T + "}", "unparseable", "no JSON row: more follows"),
    ('{"k": "a", "v": 1, ' + T + '}, {"k": "b", "v": 2, ' + T + "}", "unparseable", "no JSON row: more follows"),
    # Whatever follows the first object, with and without what an array would have between them.
    *(
        ('{"k": "a", ' + T + "}" + rest, "unparseable", "no JSON row: more follows its first object")
        for rest in ("x{", ';{"k": "b", ' + T + "}", '}[{"k": "b", ' + T + "}]", "]", ", ", " garbage", "}", '"', "{")
    ),
    ('{"k": "a", "v": "twelve", ' + T + "}", "unparseable", 'wrong type: v is no INT: "twelve"'),
    ('{"k": "a", "v": 1.5, ' + T + "}", "unparseable", "wrong type: v is no INT: 1.5"),
    ('{"k": "a", "v": 3000000000, ' + T + "}", "unparseable", "wrong type: v is no INT: 3000000000"),
    ('{"k": "a", "price": 12345678.9, ' + T + "}", "unparseable", "wrong type: price is no DECIMAL(6, 2): 12345678.9"),
    ('{"k": "a", "price": 0.004, ' + T + "}", "unparseable", "wrong type: price is no DECIMAL(6, 2): 0.004"),
    ('{"k": "a", "t": 1767225600}', "unparseable", "wrong type: t is no TIMESTAMP: 1767225600"),
    ('{"k": "a", "t": "07:11:39"}', "unparseable", 'wrong type: t is no TIMESTAMP: "07:11:39"'),
    ('{"k": "a", "t": "yesterday"}', "unparseable", "wrong type: t is no TIMESTAMP"),
    ('{"k": "a", "t": "2026-02-31T25:61:00.000Z"}', "unparseable", "wrong type: t is no TIMESTAMP"),
    ('{"k": "a", "t": ""}', "unparseable", "wrong type: t is no TIMESTAMP"),
    ('{"k": "a", ' + T + ', "seen": "31/02/2024 noon"}', "unparseable", "wrong type: seen is no TIMESTAMP"),
    ('{"k": "a", "v": 1}', "not_null(t)", "t is null"),
    ('{"k": "a", "v": 1, "t": null}', "not_null(t)", "t is null"),
    ("{}", "not_null(t)", "t is null"),
    ('{"v": 1, ' + T + "}", "not_null(k)", "k is null"),
    ('{"k": null, "v": -1, ' + T + "}", "not_null(k)", "k is null"),
    ('{"k": "a", "v": -1, ' + T + "}", "between(v, 0..)", "v is -1"),
    ('{"k": "x", "v": 1, ' + T + "}", "one_of(k)", "k is x"),
    ('{"k": "a", "v": 7, "price": 7, ' + T + "}", "not both seven", "price is 7.00, v is 7"),
    ('{"k": "a", "t": "2262-04-12T00:00:00Z"}', "future", "t is 2262-04-12 00:00:00, more than 2 hours after"),
    ('{"k": "a", "t": "9999-12-31T23:59:59Z"}', "future", "t is 9999-12-31 23:59:59, more than 2 hours after"),
)
GOOD = (
    ('{"k": "a", "v": 1, "price": 1.25, ' + T + "}", ("a", 1, Decimal("1.25"), NEW_YEAR, None)),
    ('{"k": "a", "v": 1, "price": 1.25, ' + T + "}", ("a", 1, Decimal("1.25"), NEW_YEAR, None)),
    (
        '{"v": 2147483647, "k": "b", "more": [1, {"x": 2}, {"x": 3}], ' + T + "}",
        ("b", 2147483647, None, NEW_YEAR, None),
    ),
    ('{"k": "} {", ' + T + "}", ("} {", None, None, NEW_YEAR, None)),
    ('{"k": "a", "more": {"x": {}}, ' + T + "} \t ", ("a", None, None, NEW_YEAR, None)),
    ('{"k": "ä€𝄞\\u0000", ' + T + "}", ("ä€𝄞\0", None, None, NEW_YEAR, None)),
    ('{"k": "a", "t": "2026-01-01"}', ("a", None, None, NEW_YEAR, None)),
    ('{"k": "a", "t": "2026-01-01 00:00:00"}', ("a", None, None, NEW_YEAR, None)),
    ('{"k": "a", "t": "2026-01-01T02:00:00+02:00"}', ("a", None, None, NEW_YEAR, None)),
    ('{"k": "a", "t": "1970-01-01T00:00:00Z"}', ("a", None, None, datetime(1970, 1, 1, tzinfo=UTC), None)),
    (
        '{"k": "b", ' + T + ', "seen": "9999-12-31T23:59:59.999999Z"}',
        ("b", None, None, NEW_YEAR, datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)),
    ),
    (
        '{"k": "b", ' + T + ', "seen": "2262-04-12T00:00:00Z"}',
        ("b", None, None, NEW_YEAR, datetime(2262, 4, 12, tzinfo=UTC)),
    ),
    (
        '{"k": "b", ' + T + ', "seen": "1500-01-01T00:00:00Z"}',
        ("b", None, None, NEW_YEAR, datetime(1500, 1, 1, tzinfo=UTC)),
    ),
)
KEYS = ("a", "b", "} {", "ä€𝄞\0")


def test_each_json_line_is_in_bronze_or_with_its_reason_in_the_quarantine(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    definition = an_ingest(
        landing,
        files={"max_files_per_trigger": 1},
        rules=(
            NotNull("k"),
            Between("v", min=0),
            OneOf("k", KEYS),
            Satisfies("not both seven", "NOT (v = 7 AND price = 7)"),
        ),
        max_future=timedelta(hours=2),
    )
    good, bad = [text for text, _ in GOOD], [text for text, *_ in BAD]
    mixed = [line for pair in zip(good, bad, strict=False) for line in pair] + bad[len(good) :]
    soon, too_soon = (datetime.now(UTC) + timedelta(hours=hours) for hours in (1.9, 2.1))
    written = {
        "first.json": "\ufeff" + "\r\n".join(mixed) + "\r\n",
        "second [2] {b} 100%25.json": "\n\n   \n" + "\n\n".join(good),
        "third.json": f'{{"k": "a", "t": "{soon.isoformat()}"}}\n{{"k": "a", "t": "{too_soon.isoformat()}"}}\n\n',
        # A date in the names of folders adds no column.
        "day=1/fourth.json": good[0],
        "day=1/_hidden.json": good[0],
        "empty.json": "",
        "blank.json": "\n \n\r\n",
    }
    for order, (name, text) in enumerate(written.items()):
        write(landing / name, text, order)

    run(spark, lake, definition)

    expected = {text: (reason, detail) for text, reason, detail in BAD}
    set_aside = quarantine(lake)
    found = [row for row in set_aside if file_of(row) == "first.json"]
    assert sorted(row["raw"] for row in found) == sorted(bad)
    for row in found:
        reason, detail = expected[row["raw"]]
        assert (row["reason"], row["detail"][: len(detail)]) == (reason, detail), row["raw"]
    assert [(file_of(row), row["reason"]) for row in set_aside if row not in found] == [("third.json", "future")]

    kept = bronze(lake)
    values = dict(GOOD)
    by_place = {place(row): row for row in kept}
    payload = {spot: tuple(row[name] for name in COLUMNS) for spot, row in by_place.items()}
    truth = [
        (spot, text.removeprefix("\ufeff"))
        for spot, text in lines_of([landing / "first.json", landing / "second [2] {b} 100%25.json"])
    ]
    assert {spot for spot in payload if spot[0] in ("first.json", "third.json", "fourth.json")} == {
        *(spot for spot, text in truth if text in values and spot[0] == "first.json"),
        ("third.json", 0),
        ("fourth.json", 0),
    }
    for spot, text in truth:
        if text in values:
            assert payload[spot] == values[text], text
        else:
            assert place(next(row for row in found if row["raw"] == text)) == spot
    assert len(kept) == 2 * len(GOOD) + 2, "duplicates stay, and nothing else comes"

    assert set(kept[0]) == {*COLUMNS, "_event_id", "_ingest_seq", "_ingest_time", "_source", "_heartbeat"}
    assert not any(row["_heartbeat"] for row in kept)
    assert all(row["_source"]["partition"] is None for row in kept)
    ids = [hashlib.md5(f"{r['_source']['name']}/{r['_source']['position']}".encode()).hexdigest() for r in kept]
    assert [row["_event_id"] for row in kept] == ids
    assert len(set(ids)) == len(ids)
    # The numbers grow in the order of the files, and with the line inside of each; the quarantined leave gaps.
    order = {Path(name).name: number for number, name in enumerate(written)}
    places = [(order[file_of(row)], row["_source"]["position"]) for row in kept]
    assert places == sorted(places)
    sequence = {place(row): row["_ingest_seq"] for row in kept}
    first = [text for spot, text in truth if spot[0] == "first.json"]
    for spot, text in truth:
        if text in values:
            assert sequence[spot] == spot[1] + (0 if spot[0] == "first.json" else len(first))
    clocks = {file_of(row): row["_ingest_time"] for row in kept}
    assert clocks == {file_of(row): row["_ingest_time"] for row in reversed(kept)}, "one clock a batch"
    assert {row["_ingest_time"] for row in found} == {clocks["first.json"]}

    assert_books_balance(lake, definition, read=len(GOOD) * 2 + len(BAD) + 3)
    counted: dict[str, int] = {"future": 1}
    for _, reason, _ in BAD:
        counted[reason] = counted.get(reason, 0) + 1
    assert reasons(lake, definition) == counted


def test_the_lines_of_a_file_that_is_read_in_blocks_keep_their_places(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    columns = {"number": "INT", "text": "STRING", "t": "TIMESTAMP"}
    definition = an_ingest(
        landing, columns=columns, event_id="number", rules=(Between("number", max=1_000_000, on_failure="warn"),)
    )
    total = 4000
    for name, start in (("a.json", 0), ("b.json", 1_000_000)):
        lines = []
        for number in range(start, start + total):
            lines.append(json.dumps({"number": number, "text": "x" * (number * 7 % 90), "t": "2026-01-01T00:00:00Z"}))
            lines += ["", "  "] if number % 10 == 0 else []
            lines += [f"broken {number}"] if number % 13 == 0 else []
        write(landing / name, "\n".join(lines))

    with blocks_of(spark, 60_000):
        run(spark, lake, definition)

    truth = lines_of([landing / "a.json", landing / "b.json"])
    expected = {spot: json.loads(text)["number"] for spot, text in truth if text.startswith("{")}
    kept = bronze(lake)
    assert {place(row): row["number"] for row in kept} == expected
    assert {place(row): row["raw"] for row in quarantine(lake)} == {s: t for s, t in truth if t.startswith("broken")}
    assert [row["_event_id"] for row in kept] == [str(row["number"]) for row in kept]
    numbers = [row["_ingest_seq"] for row in kept]
    assert len(set(numbers)) == len(kept) == 2 * total
    assert min(numbers) >= 0
    assert max(numbers) < len(truth)
    assert_books_balance(lake, definition, read=len(truth))
    assert reasons(lake, definition)["warn: between(number, ..1000000)"] == total - 1


CSV_COLUMNS = {"name": "STRING", "price": "DECIMAL(6, 2)", "t": "TIMESTAMP"}


def test_csv_goes_by_its_header(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    definition = an_ingest(
        landing,
        columns=CSV_COLUMNS,
        files={"format": "csv"},
        # Both hold for all rows of files with the right header: others must not stop the stream, nor be counted.
        rules=(Satisfies("no price", "name <> '12.5'", on_failure="fail"), Between("price", min=1, on_failure="warn")),
    )
    good = (
        'pen,1.50,2026-01-01\n"pen, red",2,"2026-01-01 00:00:00"\n'
        '"12"" rule",,2026-01-01T00:00:00Z\n"C:\\",3,2026-01-01\n'
    )
    few = "pen,1.50\npen,1,2026-01-01,more\npen,cheap,2026-01-01\n,0.50,2026-01-01\npen,1,\n"
    files = {
        "good.csv": "name,price,t\n" + good,
        "mark.csv": "\ufeffname,price,t\r\n" + good.replace("\n", "\r\n"),
        "quoted.csv": '\n"name", "price", "t"\n\n' + good,
        "few.csv": "name,price,t\n" + few,
        "again.csv": "name,price,t\n" + good + "name,price,t\n" + good,
        # A line between the two looks like a row, and is a part of a name.
        "break.csv": (
            'name,price,t\npen,1,2026-01-01\n"broken\nink,7,2026-01-01\n\n,8,2026-01-01\nname",2,2026-01-01\n'
            'pen,2026-01-01,"1\n2"\ncap,3,2026-01-01\n'
        ),
        "slip.csv": 'name,price,t\n5" pipe",1,2026-01-01\n"never closed,2,2026-01-01\ncap,3,2026-01-01\n',
        "swapped.csv": "price,name,t\n12.5,pen,2026-01-01\n12.5,0.1,2026-01-01\n",
        "case.csv": "Name,price,t\npen,1,2026-01-01\n",
        "none.csv": good,
        "only.csv": "name,price,t\n",
        "other.csv": "name;price;t\nname,price,t\n",
    }
    for name, text in files.items():
        write(landing / name, text)

    with blocks_of(spark, 40):
        run(spark, lake, definition)

    red, rule, path = (
        ("pen, red", Decimal("2.00"), NEW_YEAR),
        ('12" rule', None, NEW_YEAR),
        ("C:\\", Decimal("3.00"), NEW_YEAR),
    )
    sound = [("pen", Decimal("1.50"), NEW_YEAR), red, rule, path]
    kept: dict[str, list[tuple[Any, ...]]] = {}
    for row in sorted(bronze(lake), key=place):
        kept.setdefault(file_of(row), []).append((row["_source"]["position"], *(row[name] for name in CSV_COLUMNS)))
    after_header = [(line, *values) for line, values in enumerate(sound, start=1)]
    assert kept == {
        **dict.fromkeys(("good.csv", "mark.csv", "quoted.csv"), after_header),
        "again.csv": after_header + [(line, *values) for line, values in enumerate(sound, start=6)],
        "break.csv": [(1, "pen", Decimal("1.00"), NEW_YEAR), (8, "cap", Decimal("3.00"), NEW_YEAR)],
        "slip.csv": [(1, '5" pipe"', Decimal("1.00"), NEW_YEAR), (3, "cap", Decimal("3.00"), NEW_YEAR)],
        "few.csv": [(4, None, Decimal("0.50"), NEW_YEAR)],
    }
    set_aside = quarantine(lake)
    assert [(row["reason"], row["detail"], row["raw"]) for row in set_aside if file_of(row) == "few.csv"] == [
        *(("unparseable", "no CSV row", line) for line in few.splitlines()[:2]),
        ("unparseable", 'wrong type: price is no DECIMAL(6, 2): "cheap"', "pen,cheap,2026-01-01"),
        ("not_null(t)", "t is null", "pen,1,"),
    ]
    wrong = ("case.csv", "none.csv", "other.csv", "swapped.csv")
    told = [(file_of(row), row["_source"]["position"], row["raw"]) for row in set_aside if row["reason"] == "header"]
    assert told == [
        ("again.csv", 5, "name,price,t"),
        *((name, number, line) for name in wrong for number, line in enumerate(files[name].splitlines())),
    ]
    assert {row["detail"] for row in set_aside if file_of(row) == "again.csv"} == {"the header again"}
    broken = [(row["raw"], row["detail"]) for row in set_aside if file_of(row) == "break.csv"]
    inside = "no CSV row: it lies inside quotes that a line before it has opened"
    odd = "no CSV row: a quote is not closed on its line"
    assert broken == [
        ('"broken', odd),
        ("ink,7,2026-01-01", inside),
        (",8,2026-01-01", inside),
        ('name",2,2026-01-01', inside),
        ('pen,2026-01-01,"1', odd),
        ('2"', inside),
    ]
    assert [(row["raw"], row["detail"]) for row in set_aside if file_of(row) == "slip.csv"] == [
        ('"never closed,2,2026-01-01', odd)
    ]
    assert {row["detail"] for row in set_aside if file_of(row) == "swapped.csv"} == {
        "expected name,price,t, got price,name,t"
    }
    assert reasons(lake, definition) == {
        "header": 12,
        "not_null(t)": 1,
        "unparseable": 3 + 6 + 1,
        "warn: between(price, 1..)": 1,
    }
    assert_books_balance(lake, definition, read=21 + 15 + 1 + 8 + 3)


def test_lines_of_csv_within_a_quoted_value_are_set_aside_up_to_its_end(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    definition = an_ingest(landing, columns=CSV_COLUMNS, files={"format": "csv", "header": False})
    row = "{},1,2026-01-01".format
    # Of each file: its lines, and whether each is a row.
    files = {
        # A line that closes a value begins with the quote, as one that opens another would.
        "closed.csv": [
            ('"a', 0),
            (row("ink"), 0),
            (row('"'), 0),
            (row("cap"), 1),
            (row("bag"), 1),
            (row('7" pipe'), 1),
        ],
        "twice.csv": [('"a', 0), (row("ink"), 0), ('",1,"2026', 0), (row("ink"), 0), ('-01-01"', 0), (row("cap"), 1)],
        # Quotes that a field does not begin with are characters.
        "inches.csv": [(row("pen"), 1), (row('5" pipe'), 1), (row(' "pin'), 1), (row("cap"), 1), (row('"5" pipe"'), 0)],
        "even.csv": [('5" pipe,1,"2026-01-01', 0), (row("ink"), 0), ('"', 0), (row("cap"), 1)],
        # A quote where no value in quotes can have one: the one before is a slip.
        "slips.csv": [('"slip,1,2026-01-01', 0), (row("pen"), 1), (row('"a ""red"" pen"'), 1), (row("cap"), 1)],
        "latin.csv": [('"a', 0), (row("\udcff"), 0), (row('"'), 0), (row("cap"), 1)],
        "long.csv": [('"' + 'x""' * 100_000, 0), (row("ink"), 0), (row('end"'), 0), (row("cap"), 1)],
    }
    for name, lines in files.items():
        text = "\n".join(line for line, _ in lines)
        write(landing / name, text.encode("utf-8", "surrogateescape"))

    # Lines of one file are read by several tasks. Not of all: the long one would be by thousands.
    hidden = (landing / "long.csv").rename(landing / ".long.csv")
    with blocks_of(spark, 40):
        run(spark, lake, definition)
    hidden.rename(landing / "long.csv")
    run(spark, lake, definition)

    sound = {(name, index) for name, lines in files.items() for index, (_, is_row) in enumerate(lines) if is_row}
    assert {place(row) for row in bronze(lake)} == sound
    assert {row["name"] for row in bronze(lake) if file_of(row) == "inches.csv"} == {"pen", '5" pipe', ' "pin', "cap"}
    assert [row["reason"] for row in quarantine(lake) if file_of(row) == "latin.csv"] == [
        "unparseable",
        "not UTF-8",
        "unparseable",
    ]
    assert_books_balance(lake, definition, read=sum(map(len, files.values())))


def test_csv_without_a_header_and_with_tabs(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    options = {"format": "csv", "header": False, "delimiter": "\t"}
    definition = an_ingest(landing, columns=CSV_COLUMNS, files=options)
    write(landing / "a.tsv", 'pen\t1.50\t2026-01-01\n"a\tb, c"\t\t2026-01-01\nname\tprice\tt\na,b,c\n')

    run(spark, lake, definition)

    assert [(row["name"], row["_source"]["position"]) for row in bronze(lake)] == [("pen", 0), ("a\tb, c", 1)]
    assert [(row["reason"], row["raw"]) for row in quarantine(lake)] == [
        ("unparseable", "name\tprice\tt"),
        ("unparseable", "a,b,c"),
    ]
    assert_books_balance(lake, definition, read=4)


def test_files_that_cannot_be_read_are_set_aside_and_the_others_go_on(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    definition = an_ingest(landing, columns={"k": "STRING", "v": "INT", "t": "TIMESTAMP"}, files={"format": "parquet"})
    times = pa.array([NEW_YEAR] * 3, pa.timestamp("us", tz="UTC"))
    sound = {"k": ["a", "b", "c"], "v": pa.array([1, 2, 3], pa.int32()), "t": times}

    def parquet(name: str, **columns: Any) -> Path:
        pq.write_table(pa.table({**sound, **columns}), landing / name)
        return landing / name

    whole = parquet("good.parquet").read_bytes()
    parquet("other order [1].parquet", v=pa.array([1, None, 3], pa.int16()), extra=[1, 2, 3])
    parquet("local times.parquet", t=pa.array([datetime(2026, 1, 1)] * 3, pa.timestamp("ms")))
    parquet("gaps.parquet", t=pa.array([NEW_YEAR, None, NEW_YEAR], pa.timestamp("us", tz="UTC")))
    pq.write_table(pa.table({"k": ["no time"]}), landing / "missing.parquet")
    write(landing / "cut.parquet", whole[: len(whole) // 2])
    write(landing / "damaged.parquet", whole[:4] + bytes(80) + whole[84:])
    write(landing / "text.parquet", "not parquet at all")
    parquet("longs.parquet", v=pa.array([1, 2**40, 3], pa.int64()), t=times.cast(pa.timestamp("ns")))
    parquet("words.parquet", v=["1", "2", "3"])
    parquet("lists.parquet", k=[["a"], ["b"], ["c"]])
    write(landing / "zero.parquet", b"")
    # Every reader of Delta tables refuses a text that is not UTF-8.
    parquet("bytes.parquet", k=pa.array([b"\xe4", b"b", None], pa.binary()).view(pa.string()))

    run(spark, lake, definition)

    kept = sorted((file_of(row), row["_source"]["position"], row["k"], row["v"], row["t"]) for row in bronze(lake))
    rows = [(0, "a", 1, NEW_YEAR), (1, "b", 2, NEW_YEAR), (2, "c", 3, NEW_YEAR)]
    assert {file for file, *_ in kept} == {
        "good.parquet",
        "other order [1].parquet",
        "local times.parquet",
        "gaps.parquet",
        "bytes.parquet",
        "longs.parquet",
    }
    assert [row[:2] for file, *row in kept if file == "bytes.parquet"] == [[1, "b"], [2, None]]
    assert [row for file, *row in kept if file == "good.parquet"] == [list(row) for row in rows]
    assert [row[2] for file, *row in kept if file.startswith("other")] == [1, None, 3]
    assert [row[3] for file, *row in kept if file.startswith("local")] == [NEW_YEAR] * 3
    assert [row[0] for file, *row in kept if file == "gaps.parquet"] == [0, 2]
    assert [row for file, *row in kept if file == "longs.parquet"] == [list(rows[0]), list(rows[2])]
    set_aside = quarantine(lake)
    unreadable = [row for row in set_aside if row["reason"] == "unreadable file"]
    bad = (
        "cut.parquet",
        "damaged.parquet",
        "lists.parquet",
        "text.parquet",
        "words.parquet",
        "zero.parquet",
    )
    assert [file_of(row) for row in unreadable] == list(bad)
    assert all(row["raw"].endswith(file_of(row)) and row["detail"] for row in unreadable)
    assert "v is no INT: the file has string" in next(
        row["detail"] for row in unreadable if file_of(row) == "words.parquet"
    )
    gaps = [
        (file_of(r), r["reason"], json.loads(r["raw"]), r["_source"]["position"])
        for r in set_aside
        if r not in unreadable
    ]
    assert gaps.pop(0) == ("bytes.parquet", "not UTF-8", {"k": "\ufffd", "v": 1, "t": "2026-01-01T00:00:00.000Z"}, 0)
    assert gaps == [
        ("gaps.parquet", "not_null(t)", {"k": "b", "v": 2}, 1),
        ("longs.parquet", "unparseable", {"k": "b", "v": 2**40, "t": "2026-01-01T00:00:00.000Z"}, 1),
        ("missing.parquet", "not_null(t)", {"k": "no time"}, 0),
    ]
    assert len({row["_ingest_time"] for row in [*set_aside, *bronze(lake)]}) == 1
    assert reasons(lake, definition) == {"not UTF-8": 1, "not_null(t)": 2, "unparseable": 1, "unreadable file": 6}
    assert_books_balance(lake, definition, read=13 + 2 + 6 + 4)


def test_a_line_that_is_too_long_for_memory_sets_aside_only_its_file(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    landing, row = tmp_path / "landing", b'{"k": "a", ' + T.encode() + b"}\n"
    long = b'{"k": "' + b"x" * 120_000 + b'", ' + T.encode() + b"}\n"
    write(landing / "long:10.json", row + long + row)
    around = (0, 1, 13, 14)
    for more in around:
        # Around the limit, with both line ends; of plain text it is a few bytes later.
        begin, end = b'{"k": "', b'", ' + T.encode() + b"}"
        line = begin + b"x" * (100_000 + more - len(begin) - len(end)) + end
        write(landing / f"limit{more}.json", line + b"\r\n" + row)
        write(landing / f"limit{more}.json.gz", gzip.compress(line + b"\n" + row, 1))
    write(landing / "alone.json", long)
    write(landing / "long.json.gz", gzip.compress(row + long, 1))
    write(landing / "good.json.gz", gzip.compress(row))
    write(landing / "good.json", row)
    write(landing / "blank.json", b"\n" * 120_000 + row)
    definition = an_ingest(landing, columns={"k": "STRING", "t": "TIMESTAMP"})

    with lines_up_to(spark, 100_000):
        run(spark, lake, definition)

    whole = {f"limit{more}.json{end}" for more in around for end in ("", ".gz") if more <= (0 if end else 13)}
    cut = {f"limit{more}.json{end}" for more in around for end in ("", ".gz")} - whole
    kept = [file_of(row) for row in bronze(lake)]
    assert sorted(kept) == sorted(["good.json", "good.json.gz", "blank.json", *whole, *whole])
    told = {file_of(row): row["detail"] for row in quarantine(lake)}
    assert set(told) == {"long:10.json", "alone.json", "long.json.gz", *cut}
    assert all("a line is longer than 100000 bytes (TIDEMARK_MAX_LINE_BYTES)" in why for why in told.values())
    assert_books_balance(lake, definition, read=6 + 2 * len(whole) + len(cut))


@pytest.mark.parametrize("form", ["json", "csv"])
def test_bytes_that_are_not_utf8_make_no_two_keys_one(
    spark: SparkSession, lake: Lake, tmp_path: Path, form: str
) -> None:
    texts = {"json": b'{"k": "%s", ' + T.encode() + b"}", "csv": b"%s,2026-01-01"}
    keys = (b"\xe4", b"\xf6", "ä".encode(), b"\xed\xa0\x80")
    write(tmp_path / "in" / "1", b"\n".join(texts[form] % key for key in keys))
    files = {"format": form, **({"header": False} if form == "csv" else {})}
    definition = an_ingest(tmp_path / "in", columns={"k": "STRING", "t": "TIMESTAMP"}, files=files)
    run(spark, lake, definition)
    assert [row["k"] for row in bronze(lake)] == ["ä"]
    found = [(row["reason"], base64.b64decode(row["detail"].rpartition(" ")[2])) for row in quarantine(lake)]
    assert found == [("not UTF-8", texts[form] % key) for key in keys if key != "ä".encode()]
    assert_books_balance(lake, definition, read=4)


def test_links_and_colons_in_a_folder_bring_each_file_once(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    landing, row = tmp_path / "landing", '{"k": "%s", ' + T + "}\n"
    for name in ("a", "b:c", "sub:x/d"):
        write(landing / name, row % name)
    write(tmp_path / "outside" / "e", row % "e")
    (landing / "again").symlink_to(landing / "sub:x")
    (landing / "f").symlink_to("a")
    (landing / "out").symlink_to(tmp_path / "outside")
    # Published by a link from where Spark does not look.
    write(landing / "_staging" / "g", row % "g")
    (landing / "g").symlink_to("_staging/g")
    definition = an_ingest(landing, columns={"k": "STRING", "t": "TIMESTAMP"})
    run(spark, lake, definition)
    assert sorted(row["k"] for row in bronze(lake)) == ["a", "b:c", "e", "g", "sub:x/d"]
    assert quarantine(lake) == []
    linked = "warn: files by a symbolic link, which are read by their own name"
    assert reasons(lake, definition) == {linked: 2}
    assert_books_balance(lake, definition, read=5)

    (landing / "sub:x" / "up").symlink_to("..")
    with pytest.raises(MissingInputError, match=r"sub:x/up leads back to .*landing: .*Nothing was started. Remove"):
        run(spark, lake, definition)


def test_the_ledger_counts_fields_that_no_column_takes_and_what_is_null(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    columns = {"k": "STRING", "v": "INT", "t": "TIMESTAMP"}
    definition = an_ingest(tmp_path / "in", columns=columns, rules=(Between("v", min=0),))
    rows = [
        '{"k": "a", "v": 1, ' + T + "}",
        '{"k": "b", "value": 2, "note": {"v": 1}, ' + T + "}",
        '{"k": null, "K": "c", "v": 3, ' + T + "}",
        '{"k": "d", "v": -1, "refused": 1, ' + T + "}",
        '{"k": "e", "v": 5, "cut": 1, ',
    ]
    write(tmp_path / "in/1.json", "\n".join(rows) + "\n")
    run(spark, lake, definition)
    ((_, row),) = lakes.ledger(lake, definition)
    assert (row["on_time"], row["searched"], row["unknown"], row.nulls) == (3, 3, 2, {"k": 1, "v": 1})
    # Some of them: the first and the last by name of those that came together.
    assert row.unknown_fields == ("K", "value")


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_the_ledger_counts_what_is_null_in_every_format(
    spark: SparkSession, lake: Lake, tmp_path: Path, file_format: str
) -> None:
    columns = {"k": "STRING", "v": "INT", "t": "TIMESTAMP"}
    definition = an_ingest(tmp_path / "in", columns=columns, files={"format": file_format})
    if file_format == "csv":
        write(tmp_path / "in/1.csv", "k,v,t\na,1,2026-01-01\n,,2026-01-01\nc,,2026-01-01\n")
    else:
        (tmp_path / "in").mkdir()
        times = pa.array([NEW_YEAR] * 3, pa.timestamp("us", tz="UTC"))
        renamed = pa.table({"k": ["a", None, "c"], "value": pa.array([1, 2, 3], pa.int32()), "t": times})
        pq.write_table(renamed, tmp_path / "in/1.parquet")
    run(spark, lake, definition)
    ((_, row),) = lakes.ledger(lake, definition)
    unknown, nulls = (0, 2) if file_format == "csv" else (3, 3)
    assert (row["searched"], row["unknown"], row.nulls) == (3, unknown, {"k": 1, "v": nulls})


# Lines of CSV are read as those of JSON: [json]
@pytest.mark.parametrize("file_format", ["json", pytest.param("csv", marks=pytest.mark.long), "parquet"])
def test_a_folder_called_like_a_column_and_a_value_adds_no_column(
    spark: SparkSession, lake: Lake, tmp_path: Path, file_format: str
) -> None:
    """Readers of Parquet take `k=folder` in a path for a column, by themselves."""
    landing = tmp_path / "landing=1"
    folder = landing / "k=folder" / "day=2020-01-01"
    folder.mkdir(parents=True)
    columns = {"k": "STRING", "v": "INT", "t": "TIMESTAMP"}
    header = {"header": False} if file_format == "csv" else {}
    definition = an_ingest(landing, columns=columns, files={"format": file_format, **header})
    times = pa.array([NEW_YEAR], pa.timestamp("us", tz="UTC"))
    for place, value in ((folder, 1), (landing, 2)):
        row = {"k": "file", "v": value, "t": "2026-01-01T00:00:00Z"}
        if file_format == "parquet":
            pq.write_table(
                pa.table({"k": ["file"], "v": pa.array([value], pa.int32()), "t": times}), place / "a.parquet"
            )
        else:
            write(place / "a.txt", json.dumps(row) if file_format == "json" else ",".join(map(str, row.values())))

    run(spark, lake, definition)

    assert sorted((row["k"], row["v"], row["t"]) for row in bronze(lake)) == [
        ("file", 1, NEW_YEAR),
        ("file", 2, NEW_YEAR),
    ]
    assert "day" not in bronze(lake)[0]
    assert_books_balance(lake, definition, read=2)


@pytest.mark.parametrize("file_format", ["json", "parquet"])
def test_a_file_that_is_removed_before_it_is_read_is_set_aside(
    spark: SparkSession, lake: Lake, tmp_path: Path, file_format: str
) -> None:
    landing = tmp_path / "landing"
    row = {"k": "a", "t": NEW_YEAR}
    for number, name in enumerate(("kept", "gone")):
        if file_format == "json":
            write(landing / name, '{"k": "a", ' + T + "}\n", order=number)
        else:
            landing.mkdir(exist_ok=True)
            pq.write_table(pa.Table.from_pylist([row]), landing / name)
    columns = {"k": "STRING", "t": "TIMESTAMP"}
    definition = an_ingest(landing, columns=columns, files={"format": file_format})

    def archive(point: str, batch_id: int) -> None:
        if point == "planned":
            (landing / "gone").unlink(missing_ok=True)

    IngestQuery(spark, lake, definition, failpoint=archive).start(until_caught_up=True).awaitTermination()
    assert [file_of(row) for row in bronze(lake)] == ["kept"]
    (gone,) = quarantine(lake)
    assert (gone["reason"], file_of(gone)) == ("unreadable file", "gone")
    assert_books_balance(lake, definition, read=2)


class DriverDeath(Exception):
    """What a test raises where a driver dies."""


def run_killed_at(point: str, spark: SparkSession, lake: Lake, definition: Ingest) -> None:
    def die(reached: str, batch_id: int) -> None:
        if reached == point:
            raise DriverDeath

    with pytest.raises(Exception, match="DriverDeath"):
        IngestQuery(spark, lake, definition, failpoint=die).start(until_caught_up=True).awaitTermination()


def test_a_replay_does_not_read_again_what_bronze_has(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    write(landing / "1", '{"k": "a", ' + T + "}\n")
    definition = an_ingest(landing)

    run_killed_at("result_committed", spark, lake, definition)
    (landing / "1").unlink()
    write(landing / "2", '{"k": "b", ' + T + "}\n", order=1)

    run(spark, lake, definition)
    assert [row["k"] for row in bronze(lake)] == ["a", "b"]
    assert quarantine(lake) == []
    assert_books_balance(lake, definition, read=2)


def test_a_file_that_was_set_aside_stays_so_though_a_replay_could_read_it(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    write(landing / "1", '{"k": "a", ' + T + "}\n")
    write(landing / "2.gz", b"no gzip", order=1)
    definition = an_ingest(landing)

    run_killed_at("quarantine_committed", spark, lake, definition)
    write(landing / "2.gz", gzip.compress(b'{"k": "b", ' + T.encode() + b"}\n"), order=1)

    run(spark, lake, definition)
    assert [row["k"] for row in bronze(lake)] == ["a"]
    assert [file_of(row) for row in quarantine(lake)] == ["2.gz"]
    assert_books_balance(lake, definition, read=2)


def test_an_event_time_that_no_calendar_has_is_set_aside(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    numbers = (-9223372036854, -62135596801, 253402300800, 0)
    write(tmp_path / "landing" / "1", "".join(f'{{"k": "{number}", "t": {number}}}\n' for number in numbers))
    definition = an_ingest(tmp_path / "landing", parsing={"t": Parsing(unit="seconds")})
    run(spark, lake, definition)
    assert [row["k"] for row in bronze(lake)] == ["0"]
    told = [f"wrong type: t is no TIMESTAMP: {number}" for number in numbers[:3]]
    assert [row["detail"] for row in quarantine(lake)] == told
    assert_books_balance(lake, definition, read=4)


def test_late_events_with_structs_are_found(spark: SparkSession, lake: Lake) -> None:
    who = pa.struct([("id", pa.string()), ("at", pa.struct([("city", pa.string())]))])
    events = lakes.Bronze(lake, "bronze.events", {"who": who, "t": lakes.TIMESTAMP}, "t")
    for number, hour in enumerate((9, 2, 3)):
        events.append([{"who": {"id": f"u{number}", "at": {"city": "Oslo"}}, "t": NEW_YEAR + timedelta(hours=hour)}])
    hourly = Pipeline(
        name="hourly",
        source=Table("bronze.events", max_files_per_trigger=1),
        event_time="t",
        watermark=Watermark(delay="1 minute"),
        steps=(Aggregate(window=Tumbling("1 hour"), measures={"n": "count(*)"}),),
        sink=Sink("gold.hourly"),
    )
    lakes.run(spark, lake, hourly)
    assert [row["who"] for row in lakes.rows(lake, "gold.hourly__late")] == [{"id": "u2", "at": {"city": "Oslo"}}]
    lakes.assert_balanced(lake, hourly)


# Small files: every other test, whose files are read in one batch.
def test_a_batch_is_bounded_by_bytes_unless_its_files_are_small(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_jobs.engine.sources.files.BATCH_BYTES", 2500)
    line = '{"k": "' + "a" * 900 + '", ' + T + "}\n"
    for number in range(6):
        write(tmp_path / f"in/{number}.json", line, number)
    definition = an_ingest(tmp_path / "in")
    run(spark, lake, definition)
    assert [row["rows"] for _, row in lakes.ledger(lake, definition)] == [2, 2, 2]


def test_broken_compression_and_bytes_that_are_no_text_are_set_aside(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    definition = an_ingest(landing, files={"max_files_per_trigger": 2})
    whole = gzip.compress(b"".join(b'{"k": "%d", "t": "2026-01-01"}\n' % number for number in range(500)))
    write(landing / "cut.json.gz", whole[: len(whole) // 2], 0)
    write(landing / "good.json.gz", whole, 0)
    write(landing / "only.json.gz", b"no gzip", 1)
    write(landing / "other.json.zst", b"no zstd", 1)
    write(landing / "bytes.json", b'{"k": "a\xff", "t": "2026-01-01"}\n\xff\xfe\x00{"k"\n\x93NUMPY\n', 2)

    run(spark, lake, definition)

    kept = bronze(lake)
    assert {place(row): row["k"] for row in kept if file_of(row) == "good.json.gz"} == {
        ("good.json.gz", number): str(number) for number in range(500)
    }
    assert [row["k"] for row in kept if file_of(row) == "bytes.json"] == []
    assert [(file_of(row), row["reason"], row["_batch_id"]) for row in quarantine(lake)] == [
        *[("bytes.json", "not UTF-8", 2)] * 3,
        ("cut.json.gz", "unreadable file", 0),
        ("only.json.gz", "unreadable file", 1),
        ("other.json.zst", "unreadable file", 1),
    ]
    raw = [row["raw"] for row in quarantine(lake)][:3]
    assert raw == ['{"k": "a\ufffd", "t": "2026-01-01"}', "\ufffd\ufffd\0" + '{"k"', "\ufffdNUMPY"]
    assert_books_balance(lake, definition, read=500 + 3 + 3)


def test_a_row_for_which_a_rule_cannot_be_computed_stops_nothing(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    definition = an_ingest(
        landing,
        rules=(
            Satisfies("positive", "CAST(k AS INT) > 0"),
            Satisfies("below ten", "10 / v > 1 AND k < 10"),
            Satisfies("a number", "coalesce(CAST(k AS INT) < 9, k = 'as is')"),
            Satisfies("no seven", "k % v <> 7 OR to_timestamp(k) < t", on_failure="fail"),
            Satisfies("counted", "CAST(price AS TINYINT) > 0", on_failure="warn"),
        ),
    )
    verdicts = [
        ("1", 2, None),
        ("as is", 2, None),
        ("1", 0, None),
        ("0", 2, "positive"),
        ("1", 11, "below ten"),
        ("9", 2, "a number"),
        ("n/a", 0, "a number"),
        ("99999999999", 2, "a number"),
        ("", 1, "a number"),
    ]
    rows = [json.dumps({"k": k, "v": v, "price": 999.5, "t": "2026-01-01T00:00:00Z"}) for k, v, _ in verdicts]
    write(landing / "1.json", "\n".join(rows))

    run(spark, lake, definition)

    assert [(row["k"], row["v"]) for row in bronze(lake)] == [(k, v) for k, v, reason in verdicts if reason is None]
    assert [(row["reason"], row["raw"]) for row in quarantine(lake)] == [
        (reason, raw) for (_, _, reason), raw in zip(verdicts, rows, strict=True) if reason is not None
    ]
    assert_books_balance(lake, definition, read=len(verdicts))


def test_a_rule_that_must_hold_halts_the_pipeline_until_the_input_is_fixed(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    landing = tmp_path / "landing"
    definition = an_ingest(
        landing,
        files={"max_files_per_trigger": 1},
        rules=(
            Satisfies("known currency", "k IN ('EUR', 'CHF')", on_failure="fail"),
            Between("v", max=5, on_failure="warn"),
            Satisfies("even", "v % 2 = 0", on_failure="warn"),
        ),
        arrival_time="seen",
        max_future=timedelta(minutes=10),
    )

    def row(k: str, v: int, t: str, seen: str = "2020-01-01T12:00:00Z") -> str:
        return json.dumps({"k": k, "v": v, "t": t, "seen": seen}) + "\n"

    first = [
        row("EUR", 1, "2020-01-01T11:00:00Z"),
        row("CHF", 7, "2020-01-01T12:10:00Z"),
        # History: as of its arrival this was in the future, although it is past by now.
        row("CHF", 9, "2020-01-01T12:10:00.001Z"),
        # Without a time of arrival it arrived now; a time of arrival that is still to come is none.
        '{"k": "EUR", "v": 2, "t": "2020-06-01T00:00:00Z"}\n',
        row("EUR", 2, "2100-01-01T00:00:00Z", "2100-01-01T00:00:00Z"),
    ]
    write(landing / "1.json", "".join(first), 1)
    write(landing / "2.json", row("EUR", 4, "2020-01-01T00:00:00Z") + row("XXX", 6, "2020-01-01T00:00:00Z") + "{", 2)

    for _ in range(2):
        with pytest.raises(BrokenRuleError, match="known currency") as stopped:
            run(spark, lake, definition)
        assert "1 rows of batch 1" in str(stopped.value)
        assert '"XXX"' in str(stopped.value)
        assert "1 rows of batch 1" in stopped.value.without_values
        assert "XXX" not in stopped.value.without_values
        assert {file_of(row) for row in bronze(lake)} == {"1.json"}
        assert {file_of(row) for row in quarantine(lake)} == {"1.json"}
        halts.decide(lake, definition.name, "resume", by="a test")
    assert [(r["v"], lakes.ms(r["t"]) % 3_600_000) for r in bronze(lake)] == [(1, 0), (7, 600_000), (2, 0)]
    assert [(r["reason"], r["detail"]) for r in quarantine(lake)] == [
        ("future", "t is 2020-01-01 12:10:00.001, more than 10 minutes after its arrival"),
        ("future", "t is 2100-01-01 00:00:00, more than 10 minutes after its arrival"),
    ]
    # A row that was set aside is none that was let through.
    assert reasons(lake, definition) == {"future": 2, "warn: between(v, ..5)": 1, "warn: even": 2}
    assert_books_balance(lake, definition, read=5)

    write(landing / "2.json", row("EUR", 4, "2020-01-01T00:00:00Z") + row("EUR", 6, "2020-01-01T00:00:00Z") + "{", 2)
    run(spark, lake, definition)

    assert [row["v"] for row in bronze(lake)] == [1, 7, 2, 4, 6]
    assert [row["_ingest_seq"] for row in bronze(lake)] == [0, 1, 3, 5, 6]
    assert reasons(lake, definition)["unparseable"] == 1
    assert_books_balance(lake, definition, read=8)
    before = lakes.ledger(lake, definition)
    run(spark, lake, definition)
    assert lakes.ledger(lake, definition) == before, "with nothing new there is no batch"


def test_a_folder_that_is_missing_is_told_before_anything_runs(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    definition = an_ingest(tmp_path / "nowhere")
    with pytest.raises(MissingInputError, match=r"nowhere, which does not exist\. Nothing was started"):
        run(spark, lake, definition)

    write(tmp_path / "nowhere" / "1.json", '{"k": "a", ' + T + "}")
    run(spark, lake, definition)
    assert [row["k"] for row in bronze(lake)] == ["a"]
