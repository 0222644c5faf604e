"""What a person reads, as plain text."""

import io
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace

import pyarrow as pa
import pytest
from rich.console import Console

from spark_jobs.console import live, reports
from spark_jobs.lake.commands import typed_arguments, typed_lake
from spark_jobs.lake.commit_records.history import EpochLedger
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.tables.inventory import TableSummary
from spark_jobs.plan.equations import BY_FATE
from spark_jobs.plan.logical import build
from tests.support.builders import a_batch, a_lake, a_pipeline, write

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)


def shown(show, *, width=120):
    """What `show` prints to a console of this width, without colours and blanks at the ends."""
    console = Console(width=width, file=io.StringIO(), record=True, color_system=None)
    show(console)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines()) + "\n"


def test_a_run_that_sets_rows_aside_says_so_at_its_end():
    def driver(**totals):
        return SimpleNamespace(
            queries={
                name: SimpleNamespace(total_quarantined=sum(reasons.values()), set_aside=Counter(reasons))
                for name, reasons in totals.items()
            }
        )

    reasons = {"malformed": 30, "not_null(a)": 1200, "between(b)": 2, "future": 1, "duplicate": 1}
    typed_lake("my lake")
    typed_arguments({"tills": "shop.py:tills"})
    told = shown(lambda to: live.tell_set_aside(to, driver(tills=reasons, calm={}, other={"malformed": 1})))
    assert told.splitlines() == [
        "tills: 1,234 rows set aside (not_null(a) 1,200, malformed 30, between(b) 2 and 2 more reasons). To see them: "
        "tidemark quarantine shop.py:tills --lake 'my lake'",
        "other: 1 row set aside (malformed 1). To see them: tidemark quarantine other --lake 'my lake'",
    ]


class TestLedger:
    ROWS = (
        (0, a_batch(1200, on_time=1100, filtered=100, pairs=1100, pairs_result=0, state_rows=12)),
        (1, a_batch(800, on_time=790, partly_late=4, late=5, pairs=799, pairs_late=7, pairs_result=1500)),
        (2, a_batch(0, pairs_result=392)),
    )
    CHECKS = ((True, "pairs: 1,899 read"), (False, "batch 1: read 800 events, accounts for 799"))

    EQUATIONS = build(a_pipeline()).equations

    def ledger(self, *, rows=ROWS, checks=CHECKS, last=None, width=120, equations=EQUATIONS):
        def show(to):
            books = EpochLedger.of(rows, equations)
            reports.print_ledger(to, "hourly_sales", 2, books, equations, checks, last=last)

        return shown(show, width=width)

    def test_it_shows_each_batch_the_sums_and_what_was_checked(self):
        assert (
            self.ledger()
            == """\
hourly_sales, epoch 2: events
batch   read  on time  partly late  late  filtered  pairs  pairs result  pairs late  state rows
    0  1,200    1,100            -     -       100  1,100             0           -          12  =
    1    800      790            4     5         -    799         1,500           7           0  ≠
    2      0        0            -     -         -      0           392           -           0  =
total  2,000    1,890            4     5       100  1,899         1,892           7
balanced  pairs: 1,899 read
UNBALANCED  batch 1: read 800 events, accounts for 799
"""
        )

    def test_it_can_show_the_newest_only_while_the_sums_cover_all(self):
        assert (
            self.ledger(last=1, checks=())
            == """\
hourly_sales, epoch 2: events
batch   read  on time  partly late  late  filtered  pairs  pairs result  pairs late  state rows
    …
    2      0        0            -     -         -      0           392           -           0  =
total  2,000    1,890            4     5       100  1,899         1,892           7
"""
        )

    @pytest.mark.parametrize(("last", "batches"), [(0, 0), (2, 2), (3, 3), (99, 3)])
    def test_it_shows_as_many_as_asked_for(self, last, batches):
        lines = self.ledger(last=last, checks=()).splitlines()
        assert sum(line.endswith(("=", "≠")) for line in lines) == batches

    def test_an_ingest_has_no_pairs(self):
        row = a_batch(5, on_time=3, quarantined=2, pairs=None, pairs_result=None, state_rows=None)
        assert (
            self.ledger(rows=[(0, row)], checks=(), equations=(BY_FATE,))
            == """\
hourly_sales, epoch 2: events
batch  read  on time  late  quarantined
    0     5        3     -            2  =
total     5        3     0            2
"""
        )

    def test_an_update_sink_has_its_results_in_its_table(self):
        rows = [(0, a_batch(5, pairs_result=None, state_rows=2))]
        assert (
            self.ledger(rows=rows, checks=(), equations=(BY_FATE,))
            == """\
hourly_sales, epoch 2: events
batch  read  on time  late  pairs  state rows
    0     5        5     -      5           2  =
total     5        5     0      5
"""
        )

    def test_fields_that_no_column_takes_and_nulls_are_summed(self):
        rows = [
            (0, a_batch(5, pairs=0, searched=5, unknown=2, unknown_fields=("note",), nulls={"price": 1})),
            (
                1,
                a_batch(
                    5, pairs=0, searched=5, unknown=5, unknown_fields=("cost", "note"), nulls={"price": 5, "drink": 2}
                ),
            ),
        ]
        assert self.ledger(rows=rows, checks=()).splitlines()[-2:] == [
            "no column takes: cost, note, in 7 of 10 events searched",
            "null: price 6, drink 2",
        ]

    def test_reasons_are_summed_and_warnings_told_apart(self):
        rows = [
            (0, a_batch(5, on_time=3, quarantined=2, reasons={"unparseable": 2, "warn: cheap": 1}, pairs=0)),
            (1, a_batch(9, on_time=5, within_grace=2, quarantined=4, reasons={"future": 4}, heartbeats=1, pairs=0)),
        ]
        assert self.ledger(rows=rows, checks=()).splitlines()[-4:] == [
            "quarantined: future 4, unparseable 2",
            "warned: cheap 1",
            "on time: 2 of them within grace",
            "heartbeats: 1 (they move the watermark and are no events)",
        ]

    def test_before_the_first_batch_it_is_empty(self):
        assert (
            self.ledger(rows=[], checks=())
            == """\
hourly_sales, epoch 2: events
batch  read  on time  late
total     0        0     0
"""
        )

    @pytest.mark.parametrize("width", [20, 80])
    def test_no_figure_is_cut_off_on_a_narrow_terminal(self, width):
        read = 123_456_789_012
        lines = self.ledger(rows=[(0, a_batch(read))], checks=(), width=width).splitlines()
        assert [line.split().count(f"{read:,}") for line in lines if "," in line] == [0, 4, 4]  # the first is the title

    def test_brackets_in_a_check_are_shown(self):
        assert "[gold] [/x]" in self.ledger(checks=[(True, "[gold] [/x]")])


class TestRows:
    def table(self, columns, rows, **options):
        return shown(lambda to: to.print(reports.rows_table(columns, rows, **options)))

    def test_numbers_stand_to_the_right_and_texts_to_the_left(self):
        rows = [("a", 5, 1.5, True), ("long name", 12345, None, False)]
        assert (
            self.table(("name", "units", "share", "is_final"), rows, title="Top")
            == """\
Top
name        units  share  is_final
a               5    1.5       yes
long name  12,345      -        no
"""
        )

    @pytest.mark.parametrize(
        ("value", "cell"),
        [
            (None, "-"),
            (1234567, "1,234,567"),
            (1234.5678, "1,234.5678"),
            (0.1 + 0.2, "0.3"),
            (0.00001, "1e-05"),
            (float("nan"), "nan"),
            (Decimal("1234.50"), "1,234.50"),
            (NOON, "2024-03-01 12:00:00"),
            ([1, 2], "[1, 2]"),
            ("", ""),
        ],
    )
    def test_a_value_is_shown_as_what_it_is(self, value, cell):
        assert self.table(("x",), [(value,)]).splitlines()[1] == cell

    @pytest.mark.parametrize("text", ["[red]no markup[/red]", "[/nothing]", ":smile:", "[link=x]a"])
    def test_data_is_never_taken_for_markup(self, text):
        assert self.table((text,), [(text,)], title=text).split() == [*text.split()] * 3

    def test_nothing_found_shows_the_columns(self):
        assert self.table(("a", "b"), []).split() == ["a", "b"]


def test_tables_are_summed_up_in_one_line_each():
    summaries = [
        TableSummary("bronze.sales", 1234, 2, 5_678_901, NOON, None, None),
        TableSummary("gold.hourly_sales", 10, 1, 499, NOON, NOON - timedelta(hours=1), 0.0123),
    ]
    assert (
        shown(lambda to: reports.print_summaries(to, summaries))
        == """\
table               rows  files    MB  newest event         final up to          late share
bronze.sales       1,234      2  5.68  2024-03-01 12:00:00  -                    -
gold.hourly_sales     10      1  0.00  2024-03-01 12:00:00  2024-03-01 11:00:00  1.23%
"""
    )


class TestLate:
    def late_rows(self, *rows):
        at = pa.timestamp("us", "UTC")
        window = pa.struct([("window_start", at), ("window_end", at), ("late_by_ms", pa.int64())])
        hour = timedelta(hours=1)
        missed = [[{"window_start": NOON - n * hour, "window_end": NOON, "late_by_ms": 1} for n in range(2)]]
        names = ("_event_id", "late_by_ms", "_epoch", "_batch_id")
        columns = {name: [row[index] for row in rows] for index, name in enumerate(names)}
        hidden = ("_source", "_ingest_time", "_ingest_seq", "engine_watermark", "product_id")
        return pa.table(
            columns
            | {"missed_windows": pa.array(missed * len(rows), pa.list_(window))}
            | {name: ["hidden"] * len(rows) for name in hidden}
            | {"sold_at": [NOON] * len(rows), "partly_late": [False] * len(rows)}
        )

    def test_the_newest_batches_come_first_and_in_them_the_latest_events(self, tmp_path):
        lake = a_lake(tmp_path)
        rows = self.late_rows(("a", 5, 1, 9), ("b", 7, 2, 0), ("c", 1500, 2, 3), ("[d]", 2500, 2, 3), ("e", 9, 2, 1))
        write(lake, "gold.hourly_sales__late", rows)
        assert (
            shown(lambda to: reports.print_late(to, lake, a_pipeline(), 4))
            == """\
hourly_sales: late events, newest batch first
event  sold_at (UTC)        product_id  first window missed  missed  counted elsewhere  late by
[d]    2024-03-01 12:00:00  hidden      2024-03-01 12:00:00       2                 no  2 seconds
c      2024-03-01 12:00:00  hidden      2024-03-01 12:00:00       2                 no  1 second
e      2024-03-01 12:00:00  hidden      2024-03-01 12:00:00       2                 no  9 ms
b      2024-03-01 12:00:00  hidden      2024-03-01 12:00:00       2                 no  7 ms
"""
        )

    def test_an_event_that_was_counted_after_all_says_since_when(self, tmp_path):
        lake, at = a_lake(tmp_path), pa.timestamp("us", "UTC")
        rows = self.late_rows(("a", 5, 1, 9), ("b", 7, 1, 9))
        rows = rows.append_column("settled_at", pa.array([None, NOON], at))
        write(lake, "gold.hourly_sales__late", rows)
        told = shown(lambda to: reports.print_late(to, lake, a_pipeline(), 4)).splitlines()
        repaired = [line.split("  no  ")[1].split("  ")[0].strip() for line in told[2:]]
        assert repaired == ["2024-03-01 12:00:00", "not yet"]

    def test_of_several_tables_each_event_says_which_it_is_from(self, tmp_path):
        lake = a_lake(tmp_path)
        rows = self.late_rows(("a", 5, 1, 9), ("a", 7, 1, 9)).append_column(
            "_source_table", pa.array(["bronze.sales", "bronze.more"])
        )
        write(lake, "gold.hourly_sales__late", rows)
        told = shown(lambda to: reports.print_late(to, lake, a_pipeline(), 4)).splitlines()
        assert [[word for word in line.split() if word.startswith(("_", "bronze"))] for line in told[1:]] == [
            ["_source_table"],
            ["bronze.more"],
            ["bronze.sales"],
        ]

    def test_before_the_first_run_it_says_which_command_makes_the_table(self, tmp_path):
        with pytest.raises(MissingTableError, match=r"gold\.hourly_sales__late.*tidemark run hourly_sales"):
            reports.print_late(Console(file=io.StringIO()), a_lake(tmp_path), a_pipeline(), 5)
