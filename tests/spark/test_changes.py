"""What a change of a definition does to a running checkpoint: predicted by the plan, held against what Spark does.

Each definition `before` runs over the first events. Then the epoch is told that it began with `after`, so that no guard
looks, and `after` goes on with that checkpoint over the later events. The rows must be those of `after` from the start
where the plan says that the change is safe, and only there.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_jobs.lake import Lake
from spark_jobs.lake.errors import TidemarkError
from spark_jobs.plan.changes import Change, Compatibility, changes
from spark_jobs.spec import (
    Aggregate,
    Alerts,
    AsOf,
    Contract,
    Counting,
    Deduplicate,
    Definition,
    Enrich,
    Files,
    Hopping,
    Ingest,
    Join,
    Late,
    NotNull,
    Pipeline,
    Process,
    Running,
    Select,
    Session,
    Sink,
    Sliding,
    Table,
    TopN,
    Tumbling,
    Union,
    Watermark,
    Where,
    definition_from_json,
)
from tests.support import changing, lakes
from tests.support.changing import Seen
from tests.support.clicks import copy_of

MEASURES = {"n": "count(*)", "total": "sum(v)"}
SAFE, REBUILD = Compatibility.SAFE, Compatibility.REBUILD
COLUMNS = {"k": "STRING", "v": "INT", "t": "TIMESTAMP", "a": "TIMESTAMP"}
TAPS = Table("bronze.taps", select={"k": "who", "v": "v", "t": "t"})
CLICKS = Table("bronze.clicks", select={"k": "k", "v": "v", "t": "t"})
PAYMENTS = Table("bronze.payments", select={"k": "k", "paid": "paid", "u": "u"})
LOW_HIGH, HIGH_LOW = {"low": "min(v)", "high": "max(v)"}, {"high": "max(v)", "low": "min(v)"}
WORTH, REORDERED = ({name: ("v * 10" if name == "w" else name) for name in names} for names in ("kvwt", "kwvt"))


def grouped(**more: Any) -> Aggregate:
    return Aggregate(**({"window": Tumbling("10 minutes"), "by": ("k",), "measures": MEASURES} | more))


def windows(*steps: Any, **more: Any) -> Pipeline:
    parts = {
        "name": "windows",
        "source": Table("bronze.clicks"),
        "event_time": "t",
        "watermark": Watermark(delay="3 minutes"),
        "steps": steps or (grouped(),),
        "sink": Sink("gold.windows"),
    }
    return lakes.one_file_a_batch(Pipeline(**(parts | more)))


def named(name: str, *steps: Any, **more: Any) -> Pipeline:
    return windows(*steps, **({"name": name, "sink": Sink(f"gold.{name}")} | more))


def picked(select: str = "total + 1", where: str = "n > 1", **more: Any) -> Pipeline:
    return named("picked", Where("v > 0"), grouped(**more), Select({"more": select}), Where(where))


def sessions(gap: str = "5 minutes", by: tuple[str, ...] = ("k",)) -> Pipeline:
    return named("sessions", Aggregate(window=Session(gap), by=by, measures=MEASURES))


def ranked(n: int = 1, order_by: str = "total DESC") -> Pipeline:
    return named("ranked", grouped(), TopN(n, order_by=order_by))


def live(
    *, measures: Mapping[str, str] = MEASURES, sink: str = "gold.live", mode: str = "update", **more: Any
) -> Pipeline:
    return named("live", grouped(measures=measures), sink=Sink(sink, mode=mode), **more)


def total(measures: Mapping[str, str] = MEASURES, by: tuple[str, ...] = ("k",)) -> Pipeline:
    steps = (Aggregate(by=by, measures=measures),)
    return named("total", *steps, sink=Sink("gold.total", mode="update"), event_time=None, watermark=None)


def unique(*keys: str, within: str = "10 minutes", **more: Any) -> Pipeline:
    return named("unique", Deduplicate(*(keys or ("k",)), within=within), **more)


def joined(within: str = "10 minutes", left: Mapping[str, str] | None = None, **more: Any) -> Pipeline:
    left = left or {"k": "k", "v": "v", "w": "v * 10", "t": "t"}
    join = Join(PAYMENTS, **({"on": ("k",), "event_time": "u", "within": within} | more))
    return named("joined", join, source=Table("bronze.clicks", select=left))


def joined_with_latest(keep: str = "10 minutes", how: str = "inner") -> Pipeline:
    return named("latest", Join(PAYMENTS, on=("k",), event_time="u", keep=keep, how=how), source=CLICKS)


def as_of(keep: str = "10 minutes", how: str = "left", select: Mapping[str, str] = WORTH) -> Pipeline:
    steps = (AsOf(PAYMENTS, on=("k",), event_time="u", keep=keep, how=how),)
    return named("as_of", *steps, source=Table("bronze.clicks", select=select))


def sliding(size: str = "10 minutes", select: Mapping[str, str] = WORTH, **more: Any) -> Pipeline:
    step = Sliding(size, **({"by": ("k",), "measures": MEASURES} | more))
    return named("sliding", step, source=Table("bronze.clicks", select=select))


def counting(size: int = 2, measures: Mapping[str, str] = MEASURES) -> Pipeline:
    return named("counting", Counting(size, by=("k",), measures=measures), source=CLICKS)


def running(measures: Mapping[str, str] = LOW_HIGH, by: tuple[str, ...] = ("k",)) -> Pipeline:
    return named("running", Running(by=by, measures=measures), source=Table("bronze.clicks"))


def processed(select: Mapping[str, str] = WORTH, **more: Any) -> Pipeline:
    step = Process(changing.Pauses, **({"by": ("k",)} | more))
    return named("processed", step, source=Table("bronze.clicks", select=select))


def plain(*steps: Any, **more: Any) -> Pipeline:
    parts = {"event_time": None, "watermark": None}
    return named("plain", *(steps or (Where("v > 2"), Select({"w": "v * 2"}))), **(parts | more))


def labelled(table: str = "silver.names", column: str = "label", missing: str = "null") -> Pipeline:
    enrich = Enrich(table, on=("k",), columns={"label": column}, missing=missing)
    return named("labelled", enrich, event_time=None, watermark=None)


def of_both(*tables: Table, **more: Any) -> Pipeline:
    return named("of_both", grouped(), source=Union(*(tables or (CLICKS, TAPS))), **more)


TAPS_AGAIN = Table("bronze.payments", select={"k": "k", "v": "paid", "t": "u"})


@dataclass(frozen=True)
class Case:
    """A change.

    Attributes:
        before: what the checkpoint was begun with.
        after: what goes on with it.
        predicted: what the plan says.
        seen: what happens.
        says: what the error says, where the stream does not go on.
    """

    before: Definition
    after: Definition
    predicted: Compatibility
    seen: Seen
    says: str = ""


def safe(before: Definition, after: Definition) -> Case:
    return Case(before, after, SAFE, Seen.AS_NEW)


def raises(before: Definition, after: Definition, says: str = "does not fit the definition") -> Case:
    return Case(before, after, REBUILD, Seen.RAISES, says)


def wrong(before: Definition, after: Definition) -> Case:
    return Case(before, after, REBUILD, Seen.OTHER)


def measured(**measures: str) -> Pipeline:
    return windows(grouped(measures=measures))


PIPELINES = {
    # What is no part of what Spark computes.
    "trigger, what a batch takes, job, alerts, expectations, descriptions": safe(
        windows(),
        windows(
            trigger_interval="1 second",
            job="other",
            alerts=Alerts(max_restarts=9),
            expectations=(NotNull("n", severity="warn"),),
            description="clicks of ten minutes",
            owner="us",
            column_descriptions={"n": "clicks"},
            personal=("k",),
        ).model_copy(update={"source": Table("bronze.clicks", max_files_per_trigger=1, max_bytes_per_trigger=10**9)}),
    ),
    # Measures.
    "a measure added": raises(windows(), measured(**MEASURES, most="max(v)")),
    "a measure removed": raises(windows(), measured(n="count(*)")),
    "a measure renamed": raises(windows(), measured(n="count(*)", sum="sum(v)")),
    "measures in another order": wrong(
        named("sums", grouped(measures={"low": "min(v)", "high": "max(v)"})),
        named("sums", grouped(measures={"high": "max(v)", "low": "min(v)"})),
    ),
    "measures of other types in another order": raises(
        windows(), measured(total="sum(v)", n="count(*)"), "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"
    ),
    "another function of the same type": wrong(windows(), measured(n="count(*)", total="max(v)")),
    "another function of another type": raises(windows(), measured(n="count(*)", total="avg(v)")),
    "a measure of a live result": wrong(live(), live(measures={"n": "count(*)", "total": "max(v)"})),
    "a measure of a total": wrong(total(), total({"n": "count(*)", "total": "max(v)"})),
    "a measure added to a total": raises(total(), total({**MEASURES, "most": "max(v)"})),
    # Windows.
    "size of a window": wrong(windows(), windows(grouped(window=Tumbling("20 minutes")))),
    "offset of a window": wrong(windows(), windows(grouped(window=Tumbling("10 minutes", offset="5 minutes")))),
    "hopping instead of tumbling": raises(
        windows(),
        windows(grouped(window=Hopping("20 minutes", "10 minutes"))),
        "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    ),
    "sessions instead of windows": raises(
        windows(), windows(grouped(window=Session("5 minutes"))), "STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"
    ),
    "gap of a session": wrong(sessions(), sessions("15 minutes")),
    # Keys.
    "a key added": raises(windows(), windows(grouped(by=("k", "m")))),
    "a key removed": raises(named("two", grouped(by=("k", "m"))), named("two", grouped())),
    "keys in another order": wrong(named("two", grouped(by=("k", "m"))), named("two", grouped(by=("m", "k")))),
    "another key": raises(windows(), windows(grouped(by=("m",)))),
    # The watermark.
    "a longer delay": wrong(windows(), windows(watermark=Watermark(delay="1 hour"))),
    "a shorter delay": wrong(windows(), windows(watermark=Watermark(delay="0 seconds"))),
    "grace": wrong(windows(), windows(watermark=Watermark(delay="3 minutes", grace="30 minutes"))),
    "late events dropped": wrong(windows(), windows(watermark=Watermark(delay="3 minutes", late=Late.DROP))),
    "how far ahead a time may be": wrong(windows(), windows(max_future="5 hours")),
    # Steps around the state.
    "a Where before": wrong(windows(), windows(Where("v > 2"), grouped())),
    "a Where before, changed": wrong(picked(), named("picked", Where("v > 2"), *picked().steps[1:])),
    "a Where after": wrong(windows(), windows(grouped(), Where("n > 1"))),
    "a Where after, changed": wrong(picked(), picked(where="n > 2")),
    "a Where after, removed": wrong(picked(), named("picked", *picked().steps[:-1])),
    "a Select after, added": raises(windows(), windows(grouped(), Select({"more": "total + 1"}))),
    "a Select after, changed": wrong(picked(), picked(select="total + 2")),
    "n of a TopN": wrong(ranked(), ranked(2)),
    "order of a TopN": wrong(ranked(), ranked(order_by="total ASC")),
    "a TopN added": raises(windows(), windows(grouped(), TopN(2, order_by="total DESC"))),
    "a TopN removed": raises(ranked(), named("ranked", grouped())),
    # Other state.
    "a key more of a Deduplicate": raises(unique(), unique("k", "m"), "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE"),
    "another key of a Deduplicate": wrong(unique(), unique("m")),
    "within of a Deduplicate": wrong(unique(), unique(within="2 hours")),
    "a Deduplicate added": raises(windows(), windows(Deduplicate("k", within="5 minutes"), grouped())),
    "within of a Join": wrong(joined(), joined("20 minutes")),
    "how of a Join": wrong(joined(), joined(how="left")),
    "columns of a Join in another order": wrong(joined(), joined(left={"k": "k", "w": "v * 10", "v": "v", "t": "t"})),
    # Events in order, and processors.
    "size of a Sliding": wrong(sliding(), sliding("20 minutes")),
    "another key of a Sliding": wrong(sliding(), sliding(by=("v",))),
    "another function of a Sliding": wrong(sliding(), sliding(measures={"n": "count(*)", "total": "max(v)"})),
    "a measure added to a Sliding": raises(sliding(), sliding(measures={**MEASURES, "most": "max(v)"})),
    "measures of a Sliding in another order": safe(sliding(), sliding(measures=dict(reversed(MEASURES.items())))),
    "columns of a Sliding in another order": wrong(sliding(), sliding(select=REORDERED)),
    "size of a Counting": wrong(counting(), counting(3)),
    "another function of a Counting": wrong(counting(), counting(measures={"n": "count(*)", "total": "max(v)"})),
    "measures of a Counting in another order": safe(counting(), counting(measures=dict(reversed(MEASURES.items())))),
    "another function of a Running": wrong(running(), running({**LOW_HIGH, "high": "min(v)"})),
    "measures of a Running in another order": wrong(running(), running(HIGH_LOW)),
    "another key of a Running": wrong(running(), running(by=("m",))),
    "keep of an AsOf": wrong(as_of(), as_of("1 minute")),
    "how of an AsOf": wrong(as_of(), as_of(how="inner")),
    "columns of an AsOf in another order": wrong(as_of(), as_of(select=REORDERED)),
    "keep of a Join": wrong(joined_with_latest(), joined_with_latest("1 minute")),
    "how of a Join with the latest": wrong(joined_with_latest(), joined_with_latest(how="full")),
    "within of a Join instead of keep": raises(
        joined_with_latest(),
        named("latest", Join(PAYMENTS, on=("k",), event_time="u", within="10 minutes"), source=CLICKS),
        "STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    ),
    "ttl of a Process": wrong(processed(), processed(ttl="1 minute")),
    "order of a Process": wrong(processed(), processed(order="arrival")),
    "another key of a Process": raises(processed(), processed(by=("v",))),
    "columns of a Process in another order": safe(processed(), processed(select=REORDERED)),
    # Rows one by one.
    "a Where, changed": wrong(plain(), plain(Where("v > 1"), plain().steps[1])),
    "a Select, changed": wrong(plain(), plain(plain().steps[0], Select({"w": "v * 3"}))),
    "a Select, added": raises(plain(), plain(*plain().steps, Select({"u": "v * 3"}))),
    "columns of a Select in another order": safe(
        named("plain2", Select({"y": "v", "w": "v * 2"}), event_time=None, watermark=None),
        named("plain2", Select({"w": "v * 2", "y": "v"}), event_time=None, watermark=None),
    ),
    "the table of an Enrich": wrong(labelled(), labelled("silver.titles")),
    "a column of an Enrich": wrong(labelled(), labelled(column="tone")),
    "missing of an Enrich": wrong(labelled(), labelled(missing="drop")),
    # Where it reads and writes.
    "append instead of update": wrong(live(), live(mode="append")),
    "update instead of append": wrong(windows(), windows(sink=Sink("gold.windows", mode="update"))),
    "another result": raises(
        windows(), windows(sink=Sink("gold.elsewhere")), "has finished batch 2, but gold.elsewhere has no batch"
    ),
    "another source": raises(
        named("one", source=CLICKS), named("one", source=TAPS), "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE"
    ),
    "another select of the source": wrong(
        named("one", source=CLICKS), named("one", source=Table("bronze.clicks", select={"k": "m", "v": "v", "t": "t"}))
    ),
    "a table added to a Union": raises(
        of_both(), of_both(CLICKS, TAPS, TAPS_AGAIN), "sources in the checkpoint offsets"
    ),
    "a Union in another order": raises(
        of_both(), of_both(TAPS, CLICKS), "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE"
    ),
    "a Union of one more": raises(
        named("one", source=CLICKS), named("one", source=Union(CLICKS, TAPS)), "sources in the checkpoint offsets"
    ),
}


def ingest(
    folder: str = "json", columns: Mapping[str, str] = COLUMNS, table: str = "bronze.events", **more: Any
) -> Ingest:
    parts = {"event_time": "t", "arrival_time": "a", "sink": Sink(table), "name": "ingest_events"}
    return Ingest(**(parts | {"source": Files(folder), "columns": columns} | more))


def less(name: str) -> dict[str, str]:
    return {column: sql_type for column, sql_type in COLUMNS.items() if column != name}


def since(**after: Any) -> Case:
    return Case(ingest(), ingest(**after), REBUILD, Seen.AS_SINCE)


def goes_on(**after: Any) -> Case:
    return Case(ingest(), ingest(**after), SAFE, Seen.AS_SINCE)


INGESTS = {
    "what a batch of files takes": safe(ingest(), ingest(source=Files("json", max_files_per_trigger=1))),
    "a rule": goes_on(rules=(NotNull("k"),)),
    "a contract": goes_on(contract=Contract(missing="quarantine")),
    "a contract that keeps other fields": goes_on(contract=Contract(new="keep")),
    "a column added": goes_on(columns={**COLUMNS, "w": "STRING"}),
    "how far ahead an event may be": since(max_future="1 day"),
    "a column removed": raises(ingest(), ingest(columns=less("v"))),
    "a column of another type": raises(ingest(), ingest(columns={**COLUMNS, "v": "STRING"})),
    "another id": since(event_id="k"),
    "another time of events": since(event_time="a"),
    "another time of arrival": since(arrival_time=None),
    "another folder": wrong(ingest(), ingest("elsewhere")),
    "a pattern of files": since(source=Files("json/later*")),
    "another bronze table": raises(ingest(), ingest(table="bronze.others"), "but bronze.others has no batch"),
}

CASES = PIPELINES | INGESTS
ROWS_STAY = {"rules", "contract", "parsing", "columns"}
"""Fields of an ingest of which the docs say that rows before stay as they were."""
VARIANTS = {
    "n of a TopN": "another function of the same type",
    "a key more of a Deduplicate": "a measure added",
    "measures of a Running in another order": "columns of a Join in another order",
    "a Where, changed": "another function of the same type",
    "a table added to a Union": "another result",
    "a column removed": "a measure added",
    "a measure removed": "a measure added",
    "a measure renamed": "a measure added",
    "measures in another order": "columns of a Join in another order",
    "measures of other types in another order": "a measure added",
    "another function of another type": "a measure added",
    "a measure of a live result": "another function of the same type",
    "a measure of a total": "another function of the same type",
    "a measure added to a total": "a measure added",
    "size of a window": "another function of the same type",
    "offset of a window": "another function of the same type",
    "hopping instead of tumbling": "a measure added",
    "sessions instead of windows": "a measure added",
    "gap of a session": "another function of the same type",
    "a key added": "a measure added",
    "a key removed": "a measure added",
    "keys in another order": "columns of a Join in another order",
    "another key": "a measure added",
    "a longer delay": "another function of the same type",
    "a shorter delay": "another function of the same type",
    "grace": "another function of the same type",
    "late events dropped": "another function of the same type",
    "how far ahead a time may be": "another function of the same type",
    "a Where before": "another function of the same type",
    "a Where before, changed": "another function of the same type",
    "a Where after": "another function of the same type",
    "a Where after, changed": "another function of the same type",
    "a Where after, removed": "another function of the same type",
    "a Select after, added": "a measure added",
    "a Select after, changed": "another function of the same type",
    "order of a TopN": "another function of the same type",
    "a TopN added": "a measure added",
    "a TopN removed": "a measure added",
    "another key of a Deduplicate": "columns of a Join in another order",
    "within of a Deduplicate": "ttl of a Process",
    "a Deduplicate added": "a measure added",
    "within of a Join": "ttl of a Process",
    "how of a Join": "ttl of a Process",
    "size of a Sliding": "ttl of a Process",
    "another key of a Sliding": "ttl of a Process",
    "another function of a Sliding": "ttl of a Process",
    "a measure added to a Sliding": "a measure added",
    "columns of a Sliding in another order": "columns of a Join in another order",
    "size of a Counting": "ttl of a Process",
    "another function of a Counting": "ttl of a Process",
    "measures of a Counting in another order": "measures of a Sliding in another order",
    "another function of a Running": "columns of a Join in another order",
    "another key of a Running": "columns of a Join in another order",
    "keep of an AsOf": "ttl of a Process",
    "how of an AsOf": "ttl of a Process",
    "columns of an AsOf in another order": "columns of a Join in another order",
    "keep of a Join": "ttl of a Process",
    "how of a Join with the latest": "ttl of a Process",
    "within of a Join instead of keep": "a measure added",
    "order of a Process": "ttl of a Process",
    "another key of a Process": "a measure added",
    "columns of a Process in another order": "measures of a Sliding in another order",
    "a Select, changed": "another function of the same type",
    "a Select, added": "a measure added",
    "columns of a Select in another order": "measures of a Sliding in another order",
    "the table of an Enrich": "another function of the same type",
    "a column of an Enrich": "another function of the same type",
    "missing of an Enrich": "another function of the same type",
    "append instead of update": "another function of the same type",
    "update instead of append": "another function of the same type",
    "another source": "another result",
    "another select of the source": "another function of the same type",
    "a Union in another order": "another result",
    "a Union of one more": "another result",
    "what a batch of files takes": "trigger, what a batch takes, job, alerts, expectations, descriptions",
    "a contract": "a rule",
    "a contract that keeps other fields": "a rule",
    "a column added": "a rule",
    "how far ahead an event may be": "another id",
    "a column of another type": "a measure added",
    "another time of events": "another id",
    "another time of arrival": "another id",
    "another folder": "another id",
    "a pattern of files": "another id",
    "another bronze table": "another result",
}
"""Cases by hand -> the case that stands for them in `make test`.

What is predicted of each is asked there, too: test_of_each_change_the_plan_says_whether_it_is_safe.
"""


class Observer:
    """Runs what the cases ask for, what is independent beside each other.

    Args:
        spark: the session.
        root: a folder of its own.
        cases: by name.
    """

    def __init__(self, spark: SparkSession, root: Path, cases: Mapping[str, Case]) -> None:
        self._spark, self._root = spark, root
        self._landing = root / "landing"
        self._numbers = itertools.count()
        # Spark runs no two queries of one checkpoint, nor of its copies, at a time.
        self._begun: dict[str, list[tuple[str, Case]]] = {}
        for name, case in cases.items():
            self._begun.setdefault(case.before.name, []).append((name, case))

    def observe(self) -> dict[str, tuple[Seen, str]]:
        """What is seen of each case, and what tells it."""
        lake = self._lake = Lake(str(self._root / "lake")).ensure_exists()
        bronzes = changing.Bronzes(lake)
        bronzes.first()
        changing.landed(self._landing, later=False)
        with ThreadPoolExecutor(3) as pool:
            befores = [cases[0][1].before for cases in self._begun.values()]
            list(pool.map(lambda each: self._run(lake, each), befores))
            bronzes.later()
            changing.landed(self._landing, later=True)
            # Of its own: what is copied for a case must not be written meanwhile for another one.
            self._fresh = copy_of(lake, self._root / "fresh")
            found = pool.map(self._all_of, sorted(self._begun.values(), key=len, reverse=True))
            return {name: seen for each in found for name, seen in each.items()}

    def _run(self, lake: Lake, definition: Definition) -> changing.Contents:
        changing.run(self._spark, lake, changing.placed(definition, self._landing))
        return changing.contents(lake, definition)

    def _all_of(self, cases: Sequence[tuple[str, Case]]) -> dict[str, tuple[Seen, str]]:
        return {name: self._go_on(case) for name, case in cases}

    def _go_on(self, case: Case) -> tuple[Seen, str]:
        lake = copy_of(self._lake, self._root / f"copy-{next(self._numbers)}")
        before = changing.contents(lake, case.before)
        changing.begin_with(lake, changing.placed(case.after, self._landing))
        try:
            found = self._run(lake, case.after)
        except (TidemarkError, PySparkException) as error:
            return Seen.RAISES, f"{type(error).__name__}: {error}"
        fresh = self._from_the_start(case.after)
        if changing.same(found, fresh):
            return Seen.AS_NEW, ""
        kept = isinstance(case.after, Ingest) and changing.same(found, changing.since(before, fresh))
        return (Seen.AS_SINCE if kept else Seen.OTHER), f"{found}\nfrom the start:\n{fresh}"

    def _from_the_start(self, definition: Definition) -> changing.Contents:
        number = next(self._numbers)
        if isinstance(definition, Pipeline):
            at_once = definition.model_copy(update={"trigger_interval": timedelta(0)})
            return self._run(self._fresh, changing.under_another_name(at_once, f"fresh_{number}"))
        return self._run(Lake(str(self._root / f"fresh-{number}")).ensure_exists(), definition)


@pytest.fixture(scope="module")
def observed(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, tuple[Seen, str]]:
    """What is seen of the cases that are to be tested."""
    here = (item for item in request.session.items if item.fspath == request.fspath)
    names = {item.callspec.params["name"] for item in here if hasattr(item, "callspec")}
    cases = {name: case for name, case in CASES.items() if name in names}
    return Observer(spark, tmp_path_factory.mktemp("changes"), cases).observe()


def found_and_predicted(case: Case) -> tuple[Sequence[Change], Compatibility]:
    """What the plan finds that has changed, and whether all of it is safe."""
    found = changes(definition_from_json(case.before.to_json()), case.after)
    return found, REBUILD if REBUILD in {change.compatibility for change in found} else SAFE


def test_of_each_change_the_plan_says_whether_it_is_safe() -> None:
    wrong = {name: told for name, case in CASES.items() if (told := found_and_predicted(case)[1]) != case.predicted}
    assert wrong == {}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in VARIANTS else name for name in CASES]
)
def test_what_is_predicted_is_what_happens(observed: dict[str, tuple[Seen, str]], name: str) -> None:
    case = CASES[name]
    found, predicted = found_and_predicted(case)
    seen, told = observed[name]
    assert (predicted, seen) == (case.predicted, case.seen), told
    assert case.says in told
    rows_may_stay = all(change.field in ROWS_STAY for change in found)
    assert (case.predicted is SAFE) == (seen is Seen.AS_NEW or (seen is Seen.AS_SINCE and rows_may_stay)), told
