"""A definition is a value: what it accepts, how it is kept, when two of them are the same to a checkpoint."""

import copy
import json
import pickle
from datetime import timedelta

import pytest
from pydantic import ValidationError

from spark_jobs.plan.changes import Compatibility, changes, needs_new_epoch
from spark_jobs.plan.logical import build
from spark_jobs.spec import (
    Aggregate,
    Alerts,
    Between,
    Calendar,
    Files,
    Ingest,
    Join,
    Kafka,
    Late,
    NotNull,
    OneOf,
    Pipeline,
    Results,
    Satisfies,
    Select,
    Sink,
    Table,
    TopN,
    Tumbling,
    Union,
    Unique,
    Watermark,
    Where,
    definition_from_json,
)
from tests.support.builders import a_pipeline, a_reader_of_results, a_running_total, an_aggregate, an_ingest


class TestWhatIsAccepted:
    @pytest.mark.parametrize(
        "define",
        [
            lambda: an_ingest(columns={"größe": "INT", "it's": "STRING", "sold_at": "TIMESTAMP"}, event_id="it's"),
            lambda: an_ingest(
                rules=(Between("quantity", min=1), Between("quantity", min=1.5), OneOf("sale_id", ("ü",)))
            ),
            lambda: an_ingest(source=Files("/data", max_bytes_per_trigger=1000)),
            lambda: an_ingest(source=Kafka("a,b", bootstrap_servers="one:9092, [::1]:9093")),
            lambda: a_pipeline(steps=(an_aggregate(by=()), TopN(3, order_by="units DESC NULLS FIRST, window_start"))),
            lambda: a_pipeline(steps=(Where("a > 1"), Select({"b": "a * 2"}), an_aggregate(by=("b",)))),
            lambda: a_pipeline(
                steps=(an_aggregate(), Select({"twice": "units * 2"}), TopN(1, order_by="twice + units DESC"))
            ),
            lambda: a_pipeline(watermark=Watermark(delay="0 seconds", late="drop")),
            lambda: a_running_total(event_time="sold_at"),
            lambda: a_running_total(steps=(Aggregate(measures={"n": "count(*)"}),)),
        ],
    )
    def test_what_is_unusual_and_right(self, define):
        assert define()

    def test_quotes_in_values_stay_inside_of_their_text(self):
        assert OneOf("name", ("O'Neil", "a\\b")).condition == "`name` IN ('O\\'Neil', 'a\\\\b')"

    def test_a_rule_tells_its_bounds_in_full(self):
        assert Between("n", min=1_000_001, max=12_345_678).name == "between(n, 1000001..12345678)"
        assert Between("n", max=0.1).condition == "`n` <= 0.1"

    def test_every_event_needs_a_time_and_its_declared_id(self):
        rules = an_ingest(event_id="sale_id", rules=(NotNull("sale_id", on_failure="fail"),)).all_rules
        assert [(rule.name, rule.on_failure) for rule in rules] == [
            ("not_null(sold_at)", "quarantine"),
            ("not_null(sale_id)", "fail"),
        ]

    def test_spark_waits_for_delay_and_grace(self):
        watermark = Watermark(delay="1 minute", grace="5 minutes", late=Late.UPDATE)
        assert watermark.engine_delay == timedelta(minutes=6)

    def test_steps_are_told_apart_by_their_place(self):
        before, after = Select({"a": "x"}), Select({"b": "units"})
        pipeline = a_pipeline(steps=(before, Where("a > 1"), an_aggregate(), after))
        assert pipeline.row_steps == (before, Where("a > 1"))
        assert pipeline.result_steps == (after,)
        assert build(pipeline).result.keys == ("window_start", "window_end", "product_id")
        assert build(a_running_total()).result.keys == ("product_id",)


# --- definitions are values ---

DOCUMENTS = ("description", "owner", "column_descriptions")

WHOLE = [
    a_pipeline(steps=(an_aggregate(window=Calendar("week", tz="Europe/Berlin")),)),
    an_ingest(),
    an_ingest(
        source=Files("s3a://bucket/a", format="csv", delimiter=";", header=False, max_bytes_per_trigger=9),
        event_id="sale_id",
        arrival_time="sold_at",
        idle_after="1 minute",
        trigger_interval="10 seconds",
        rules=(
            NotNull("sale_id", on_failure="fail"),
            Between("quantity", min=1, max=2.5),
            OneOf("sale_id", ("a", "b")),
            Satisfies("few", "quantity < 9", on_failure="warn"),
        ),
    ),
    an_ingest(source=Kafka("sales", bootstrap_servers="a:1", starting_offsets="latest")),
    an_ingest(source=Results("gold.hourly", revised="refuse")),
    a_pipeline(),
    a_running_total(),
    a_pipeline(
        source=Union(
            *(Table(f"bronze.{name}", select={"sold_at": "at", "product_id": "p", "quantity": "1"}) for name in "ab")
        ),
        watermark=Watermark(delay="1 minute", grace="1 hour 1 ms", late=Late.UPDATE),
        steps=(Where("quantity > 0"), an_aggregate(), Select({"x": "units"}), TopN(3, order_by="x DESC")),
        sink=Sink("gold.x", mode="update"),
    ),
]


@pytest.mark.parametrize("definition", WHOLE)
class TestRoundTrip:
    def test_json_gives_the_definition_back(self, definition):
        again = type(definition).model_validate_json(definition.to_json())
        assert again == definition

    def test_json_keeps_the_order_of_columns(self, definition):
        again = type(definition).model_validate_json(definition.to_json())
        assert again.to_json() == definition.to_json()
        if isinstance(definition, Ingest):
            assert list(again.columns) == list(definition.columns)

    def test_a_copy_is_equal_and_so_is_its_hash(self, definition):
        for again in (copy.deepcopy(definition), pickle.loads(pickle.dumps(definition))):
            assert again == definition
            assert hash(again) == hash(definition)


class TestFrozen:
    def test_a_field_cannot_be_set(self):
        with pytest.raises(ValidationError, match="frozen"):
            a_pipeline().name = "other"

    @pytest.mark.parametrize(
        "mapping",
        [
            an_ingest().columns,
            an_aggregate().measures,
            Select({"a": "b"}).columns,
            Table("bronze.a", select={"a": "b"}).select,
        ],
    )
    def test_a_mapping_cannot_be_changed(self, mapping):
        before = dict(mapping)
        for change in (
            lambda: mapping.__setitem__("new", "INT"),
            lambda: mapping.update(new="INT"),
            lambda: mapping.pop(next(iter(mapping))),
            lambda: mapping.clear(),
            lambda: mapping.setdefault("new", "INT"),
        ):
            with pytest.raises(TypeError, match="cannot be changed"):
                change()
        assert mapping == before

    def test_a_mapping_does_not_follow_the_dictionary_that_it_was_made_of(self):
        columns = {"sold_at": "TIMESTAMP"}
        definition = an_ingest(columns=columns)
        columns["new"] = "INT"
        assert "new" not in definition.columns


SELECT = {"sold_at": "sold_at", "product_id": "product_id", "quantity": "quantity"}


def a_join_with(table, **limits):
    join = Join(
        Table(table, select={"product_id": "p", "paid_at": "t"}, **limits),
        on=("product_id",),
        event_time="paid_at",
        within="1 hour",
    )
    return a_pipeline(steps=(join,))


class TestChanges:
    UNCHANGING = (
        (an_ingest(), an_ingest(source=Files("landing/sales", max_files_per_trigger=1))),
        (an_ingest(), an_ingest(source=Files("landing/sales", max_bytes_per_trigger=1))),
        (an_ingest(), an_ingest(trigger_interval="10 seconds")),
        (an_ingest(), an_ingest(job="nightly")),
        (an_ingest(), an_ingest(idle_after="1 minute")),
        (an_ingest(), an_ingest(rules=(NotNull("sale_id"),))),
        (an_ingest(), an_ingest(expectations=(Unique("sale_id"),))),
        (a_pipeline(), a_pipeline(expectations=(NotNull("units", severity="warn"),), personal=("product_id",))),
        (a_pipeline(), a_pipeline(alerts=Alerts(max_restarts=9))),
        (an_ingest(source=Kafka("a")), an_ingest(source=Kafka("a", max_offsets_per_trigger=1))),
        (a_reader_of_results("refuse"), a_reader_of_results("refuse", max_files_per_trigger=1)),
        (a_reader_of_results("refuse"), a_reader_of_results("read")),
        (a_pipeline(), a_pipeline(source=Table("bronze.sales", max_bytes_per_trigger=1, max_files_per_trigger=2))),
        (
            WHOLE[-1],
            WHOLE[-1].model_copy(
                update={
                    "source": Union(
                        *(table.model_copy(update={"max_files_per_trigger": 7}) for table in WHOLE[-1].source.tables)
                    )
                }
            ),
        ),
        (a_join_with("bronze.payments"), a_join_with("bronze.payments", max_files_per_trigger=7)),
        (an_ingest(), an_ingest(columns=dict(reversed(an_ingest().columns.items())))),
    )

    @pytest.mark.parametrize(("one", "other"), UNCHANGING)
    def test_limits_and_intervals_may_change_under_a_checkpoint(self, one, other):
        assert one.to_json() != other.to_json()
        assert needs_new_epoch(one, other) == ()

    SAFE_OF_INGESTS = ("rules", "contract", "parsing", "idle_after")
    SAFE = ("trigger_interval", "job", "alerts", "savepoints", "expectations", "personal", *DOCUMENTS)

    INGEST_CHANGES = (
        {"name": "other"},
        {"source": Files("elsewhere")},
        {"source": Files("landing/sales", format="parquet")},
        {"source": Kafka("sales")},
        {"source": Results("gold.hourly", revised="refuse")},
        {"columns": {"sale_id": "STRING", "quantity": "BIGINT", "sold_at": "TIMESTAMP"}},
        {"columns": {"sale_id": "STRING", "quantity": "INT", "sold_at": "TIMESTAMP", "new": "INT"}},  # one is gone
        {"event_time": "paid_at"},
        {"event_id": "sale_id"},
        {"max_future": "2 hours"},
        {"arrival_time": "sold_at"},
        {"sink": Sink("bronze.other")},
    )
    PIPELINE_CHANGES = (
        {"name": "other"},
        {"source": Table("bronze.other")},
        {"source": Table("bronze.sales", select={"sold_at": "a", "product_id": "b", "quantity": "c"})},
        {"event_time": "other"},
        {"max_future": "2 hours"},
        {"watermark": Watermark(delay="3 minutes")},
        {"watermark": Watermark(delay="2 minutes", late=Late.DROP)},
        {"watermark": Watermark(delay="2 minutes", grace="1 minute")},
        {"steps": (an_aggregate(window=Tumbling("2 hours")),)},
        {"steps": (an_aggregate(by=("shop",)),)},
        {"steps": (an_aggregate(measures={"units": "max(quantity)"}),)},
        {"steps": (Where("quantity > 1"), an_aggregate())},
        {"sink": Sink("gold.hourly_sales", mode="update")},
    )

    @pytest.mark.parametrize("change", INGEST_CHANGES)
    def test_nothing_else_of_an_ingest_may(self, change):
        columns = {**an_ingest().columns, "paid_at": "TIMESTAMP"}
        before, after = an_ingest(columns=columns), an_ingest(**({"columns": columns} | change))
        assert needs_new_epoch(before, after) == tuple(change)

    @pytest.mark.parametrize("change", PIPELINE_CHANGES)
    def test_nothing_else_of_a_pipeline_may(self, change):
        before, after = definition_from_json(a_pipeline().to_json()), a_pipeline(**change)
        assert needs_new_epoch(before, after) == tuple(change)

    def test_a_limit_may_be_named_where_a_version_before_had_none(self):
        kept = json.loads(a_pipeline().to_json())
        del kept["max_future"]
        assert needs_new_epoch(definition_from_json(json.dumps(kept)), a_pipeline(max_future="1 day")) == ()

    def test_every_field_is_tried(self):
        tried = {name for change in self.INGEST_CHANGES for name in change}
        assert tried | {"kind", *self.SAFE_OF_INGESTS, *self.SAFE} == set(Ingest.model_fields)
        tried = {name for change in self.PIPELINE_CHANGES for name in change}
        assert tried | {"kind", *self.SAFE} == set(Pipeline.model_fields)

    def test_a_column_called_like_a_limit_is_none(self):
        one, other = (Table("bronze.sales", select={**SELECT, "max_files_per_trigger": sql}) for sql in ("1", "2"))
        assert needs_new_epoch(a_pipeline(source=one), a_pipeline(source=other)) == ("source",)

    def test_the_order_of_columns_counts_in_a_csv_file(self):
        source = Files("a", format="csv")
        before = an_ingest(source=source)
        after = an_ingest(source=source, columns=dict(reversed(before.columns.items())))
        assert needs_new_epoch(before, after) == ("columns",)

    def test_the_order_of_measures_counts_as_spark_keeps_values_by_place(self):
        measures = {"units": "sum(quantity)", "most": "max(quantity)"}
        before = a_pipeline(steps=(an_aggregate(measures=measures),))
        after = a_pipeline(steps=(an_aggregate(measures=dict(reversed(measures.items()))),))
        assert needs_new_epoch(before, after) == ("steps",)

    def test_the_order_of_columns_counts_where_events_are_joined(self):
        def reading(definition, names, **limits):
            select = {name: SELECT[name] for name in names}
            return definition.model_copy(update={"source": Table("bronze.sales", select=select, **limits)})

        join = a_join_with("bronze.payments")
        assert needs_new_epoch(reading(join, SELECT), reading(join, reversed(SELECT))) == ("source",)
        limited = reading(join, reversed(SELECT), max_files_per_trigger=7)
        assert needs_new_epoch(reading(join, SELECT), limited) == ("source",)
        assert needs_new_epoch(reading(a_pipeline(), SELECT), reading(a_pipeline(), reversed(SELECT))) == ()

    def test_a_field_that_has_got_a_default_since_changes_nothing(self):
        kept = json.loads(a_pipeline().to_json())
        # As a version of Tidemark wrote it that did not know these fields.
        del kept["alerts"], kept["steps"][0]["window"]["offset"], kept["watermark"]["grace"]
        assert needs_new_epoch(definition_from_json(json.dumps(kept)), a_pipeline()) == ()

    def test_an_ingest_does_not_become_a_pipeline(self):
        (change,) = changes(an_ingest(), a_pipeline())
        assert (change.field, change.compatibility) == ("kind", Compatibility.REFUSED)

    def test_each_change_says_why(self):
        found = changes(a_pipeline(), a_pipeline(trigger_interval="1 minute", sink=Sink("gold.other")))
        assert {change.field: change.compatibility for change in found} == {
            "trigger_interval": Compatibility.SAFE,
            "sink": Compatibility.REBUILD,
        }
        assert all(change.why for change in found)

    @pytest.mark.parametrize(
        ("after", "why"),
        [
            (
                a_pipeline(steps=(an_aggregate(measures={"units": "max(quantity)"}),)),
                "a rebuild computes others",
            ),
            (a_pipeline(steps=(an_aggregate(), Where("units > 1"))), "rows that were written stay"),
            (a_pipeline(steps=(an_aggregate(by=("shop",)),)), "the state holds what the steps as they were"),
        ],
    )
    def test_other_steps_say_what_they_would_do(self, after, why):
        (change,) = changes(a_pipeline(), after)
        assert why in change.why

    def test_a_table_more_in_a_union_says_what_spark_does(self):
        tables = [Table(f"bronze.{name}", select=SELECT) for name in ("sales", "returns", "gifts")]
        before, after = a_pipeline(source=Union(*tables[:2])), a_pipeline(source=Union(*tables))
        (change,) = changes(before, after)
        assert (change.compatibility, "no other number" in change.why) == (Compatibility.REBUILD, True)
        (change,) = changes(before, a_pipeline(source=Union(*tables[1:])))
        assert "no other number" not in change.why
