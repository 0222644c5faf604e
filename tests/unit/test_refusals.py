"""What a definition refuses: each message names the field, the value and the way out."""

import pytest

from spark_jobs.spec import (
    Aggregate,
    Alerts,
    Between,
    Calendar,
    Contract,
    CustomSql,
    DefinitionError,
    Files,
    Fresh,
    Ingest,
    Kafka,
    Late,
    Matches,
    NotNull,
    OneOf,
    Referential,
    Satisfies,
    Select,
    Session,
    Sink,
    Table,
    TopN,
    Tumbling,
    Union,
    Unique,
    Volume,
    Watermark,
    Where,
)
from tests.support.builders import a_pipeline, a_running_total, an_aggregate, an_ingest

CASES = []


def refused(*says):
    """Registers a definition that must be refused, with texts that its message must have."""

    def register(define):
        CASES.append(pytest.param(define, says, id=define.__name__))
        return define

    return register


# --- every definition ---


@refused("Ingest `Sales`: name: ", "got 'Sales'", "lower-case letter")
def a_name_with_capitals():
    an_ingest(name="Sales")


@refused("name: ", "at most 62")
def a_name_that_is_too_long():
    an_ingest(name="a" * 64)


@refused("name: ", 'got "it\'s"')
def a_name_with_a_quote():
    an_ingest(name="it's")


@refused("name: ", "got 'größe'")
def a_name_with_letters_that_paths_may_change():
    an_ingest(name="größe")


@refused("Ingest: name: is required", "Ingest: columns: is required", "Ingest: event_time: is required")
def all_that_is_missing_at_once():
    Ingest(source=Files("a"), sink=Sink("bronze.a"))


@refused("Alerts: max_watermark: no such field", "expected one of: backpressure_after,")
def an_alert_that_is_none():
    a_pipeline(alerts=Alerts(max_watermark="10 minutes"))


@refused("Pipeline `hourly_sales`: job: expected a lower-case letter", "got 'Night shift'")
def a_job_that_is_no_name():
    a_pipeline(job="Night shift")


@refused("Pipeline `hourly_sales`: job: expected another name than 'probe'")
def a_job_that_has_the_name_of_the_look_at_the_store():
    a_pipeline(job="probe")


@refused("Ingest `ingest_sales`: colour: no such field")
def an_unknown_field_of_an_ingest():
    an_ingest(colour="red")


@refused("trigger_interval: ", "'-5 seconds'")
def a_negative_trigger_interval():
    an_ingest(trigger_interval="-5 seconds")


@refused("Sink: table: ", "'gold.top_products'", "got 'ops.ledger'")
def a_sink_among_tidemarks_own_tables():
    Sink("ops.ledger")


@refused("Sink: table: ", "got 'gold.Sales'")
def a_table_with_capitals():
    Sink("gold.Sales")


@refused("Sink: table: ", "got 'sales'")
def a_table_without_layer():
    Sink("sales")


@refused("Sink: table: 'gold.sales__rebuilt' is a side table", "choose another name")
def a_table_that_is_built_aside():
    Sink("gold.sales__rebuilt")


@refused("Sink: table: 'gold.sales__groups__rebuilt_0123456789ab' is a side table", "choose another name")
def a_table_that_a_run_builds_aside():
    Sink("gold.sales__groups__rebuilt_0123456789ab")


@refused("Sink: table: 'gold.sales__late' is a side table", "choose another name")
def a_sink_that_is_a_side_table():
    Sink("gold.sales__late")


@refused("Sink: mode: ", "'append' or 'update'", "'complete'")
def a_mode_that_does_not_exist():
    Sink("gold.sales", mode="complete")


# --- sources ---


@refused("Files: path: expected a folder", "got ''")
def an_empty_folder():
    Files("")


@refused("Files: path: ", "got ' '")
def a_blank_folder():
    Files(" ")


@refused("Files: path: ", "s3a://bucket/prefix", "got 'gs://bucket/sales'")
def a_store_that_is_not_known():
    Files("gs://bucket/sales")


@refused("Files: format: ", "'json', 'csv' or 'parquet'", "'xml'")
def a_format_that_is_not_known():
    Files("sales", format="xml")


@refused("header and delimiter are for CSV", "format 'json'", "leave them out")
def a_delimiter_for_json():
    Files("sales", delimiter=";")


@refused("header and delimiter are for CSV", "format 'parquet'")
def no_header_for_parquet():
    Files("sales", format="parquet", header=False)


@refused("Files: delimiter: ", "'||'")
def a_delimiter_of_two_characters():
    Files("sales", format="csv", delimiter="||")


@refused("Files: delimiter: ", "'\"'", "CSV uses otherwise")
def a_quote_as_delimiter():
    Files("sales", format="csv", delimiter='"')


@refused("Files: max_files_per_trigger: ", "greater than or equal to 1", "got 0")
def no_files_at_all():
    Files("sales", max_files_per_trigger=0)


@refused("max_bytes_per_trigger: ", "got 5 files and 100 bytes", "leave one out")
def files_limited_in_two_ways():
    Files("sales", max_files_per_trigger=5, max_bytes_per_trigger=100)


@refused("Files: max_offsets_per_trigger: no such field", "max_files_per_trigger")
def a_limit_in_rows_for_files():
    Files("sales", max_offsets_per_trigger=100)


@refused("Kafka: max_files_per_trigger: no such field", "max_offsets_per_trigger")
def a_limit_in_files_for_kafka():
    Kafka("sales", max_files_per_trigger=3)


@refused("Table `bronze.sales`: max_offsets_per_trigger: no such field", "max_bytes_per_trigger")
def a_limit_in_rows_for_a_table():
    Table("bronze.sales", max_offsets_per_trigger=100)


@refused("Kafka: topic: ", "got ''")
def an_empty_topic():
    Kafka("")


@refused("Kafka: topic: ", "got 'sales, no topic'")
def a_topic_with_a_blank():
    Kafka("sales, no topic")


@refused("Kafka: bootstrap_servers: expected host:port", "got 'broker'")
def a_server_without_port():
    Kafka("sales", bootstrap_servers="broker")


@refused("Kafka: starting_offsets: ", "'earliest' or 'latest'", "'yesterday'")
def an_unknown_start():
    Kafka("sales", starting_offsets="yesterday")


@refused("Table `gold.sales`: name: expected a bronze table", "got 'gold.sales'")
def a_pipeline_on_results():
    Table("gold.sales")


@refused("Table `bronze.sales`: select: ", "start with an underscore", "'_mine'")
def a_selected_column_with_a_reserved_name():
    Table("bronze.sales", select={"_mine": "quantity"})


@refused("Table `bronze.sales`: select.units: ", "got 'quantity +'")
def a_selected_expression_that_does_not_parse():
    Table("bronze.sales", select={"units": "quantity +"})


@refused("Table `bronze.sales`: select.units: ", "'sum(quantity)'", "use Aggregate")
def a_selected_aggregate():
    Table("bronze.sales", select={"units": "sum(quantity)"})


@refused("Table `bronze.sales`: select: ", "'a' and 'A'")
def selected_columns_that_differ_in_case_only():
    Table("bronze.sales", select={"a": "x", "A": "y"})


@refused("Table `bronze.sales`: select: ", "expected at least one, got ")
def nothing_selected():
    Table("bronze.sales", select={})


@refused("Union: tables: expected two or more, got 1")
def a_union_of_one():
    Union(Table("bronze.a", select={"x": "y"}))


@refused("Union: tables: ", "{'bronze.a': ['x'], 'bronze.b': ['z']}", "select={column: expression}")
def a_union_of_different_columns():
    Union(Table("bronze.a", select={"x": "y"}), Table("bronze.b", select={"z": "y"}))


@refused("Union: tables: ", "{'bronze.a': [], 'bronze.b': []}", "select={column: expression}")
def a_union_that_does_not_say_its_columns():
    Union(Table("bronze.a"), Table("bronze.b"))


@refused("Union: tables: expected each table once")
def a_union_of_a_table_with_itself():
    Union(Table("bronze.a", select={"x": "y"}), Table("bronze.a", select={"x": "z"}))


@refused("Union: tables.0: ", "'bronze.a'")
def a_union_of_names():
    Union("bronze.a", "bronze.b")


# --- ingest ---


@refused("Ingest `ingest_sales`: columns: ", "expected at least one, got ")
def no_columns():
    an_ingest(columns={})


@refused("columns.sale_id: ", "'DECIMAL(10, 2)'", "got 'TEXT'")
def a_type_that_spark_does_not_know():
    an_ingest(columns={"sale_id": "TEXT", "sold_at": "TIMESTAMP"})


@refused("columns: ", "'Sale_id' and 'sale_id'", "does not tell them apart")
def columns_that_differ_in_case_only():
    an_ingest(columns={"Sale_id": "INT", "sale_id": "INT", "sold_at": "TIMESTAMP"})


@refused("columns: ", "got 'sale.id'")
def a_column_with_a_dot():
    an_ingest(columns={"sale.id": "INT", "sold_at": "TIMESTAMP"})


@refused("columns: ", "got 'sale id'")
def a_column_with_a_blank():
    an_ingest(columns={"sale id": "INT", "sold_at": "TIMESTAMP"})


@refused("columns: ", "got 'sale`id'")
def a_column_with_a_backtick():
    an_ingest(columns={"sale`id": "INT", "sold_at": "TIMESTAMP"})


@refused("columns: ", "underscore", "got '_event_id'")
def a_column_that_ingest_adds_itself():
    an_ingest(columns={"_event_id": "INT", "sold_at": "TIMESTAMP"})


@refused("columns: CSV holds single values", "{'tags': 'ARRAY<STRING>'}", "use STRING")
def a_list_in_a_csv_file():
    an_ingest(source=Files("a", format="csv"), columns={"tags": "ARRAY<STRING>", "sold_at": "TIMESTAMP"})


@refused("event_time: expected one of the columns", "got 'happened_at'")
def an_event_time_that_is_no_column():
    an_ingest(event_time="happened_at")


@refused("event_time: expected a column of type TIMESTAMP", "'quantity' of type 'INT'")
def an_event_time_that_is_a_number():
    an_ingest(event_time="quantity")


@refused("event_time: ", "of type 'DATE'")
def an_event_time_without_time():
    an_ingest(columns={"sold_at": "DATE"})


@refused("arrival_time: ", "'sale_id' of type 'STRING'")
def an_arrival_time_that_is_a_text():
    an_ingest(arrival_time="sale_id")


@refused("event_id: expected one of the columns", "got 'uuid'")
def an_id_that_is_no_column():
    an_ingest(event_id="uuid")


@refused("max_future: expected a duration longer than zero", "'0 seconds'")
def no_future_at_all():
    an_ingest(max_future="0 seconds")


@refused("idle_after: expected a duration longer than zero")
def idle_at_once():
    an_ingest(idle_after="0 seconds")


@refused("sink: an ingest appends to a bronze table", "'gold.sales'")
def an_ingest_to_gold():
    an_ingest(sink=Sink("gold.sales"))


@refused("sink: an ingest appends to a bronze table", "mode 'update'")
def an_ingest_that_updates():
    an_ingest(sink=Sink("bronze.sales", mode="update"))


@refused("Ingest `ingest_sales`: source: ", "'files', 'kafka'")
def an_ingest_of_a_table():
    an_ingest(source=Table("bronze.sales"))


# --- row rules ---


@refused("Between: min: expected a bound in min, max or both, got neither")
def bounds_without_a_bound():
    Between("quantity")


@refused("Between: min: expected a finite number, got nan")
def a_bound_that_is_no_number():
    Between("quantity", min=float("nan"))


@refused("Between: max: expected a finite number, got inf")
def an_infinite_bound():
    Between("quantity", max=float("inf"))


@refused("Between: min: expected a finite number, got '1'")
def a_bound_that_is_a_text():
    Between("quantity", min="1")


@refused("Between: max: expected a finite number, got True")
def a_bound_that_is_a_truth_value():
    Between("quantity", max=True)


@refused("Between: min: expected at most max (1), got 5")
def bounds_the_wrong_way_round():
    Between("quantity", min=5, max=1)


@refused("OneOf: values: expected a tuple, got 'card'", "a tuple of one needs a comma")
def a_text_instead_of_values():
    OneOf("payment", "card")


@refused("OneOf: values: ", "expected at least one, got ")
def one_of_nothing():
    OneOf("payment", ())


@refused("OneOf: values.1: ", "got 2")
def a_number_among_texts():
    OneOf("payment", ("card", 2))


@refused("NotNull: on_failure: ", "'quarantine', 'warn' or 'fail'", "'ignore'")
def a_rule_that_is_ignored():
    NotNull("quantity", on_failure="ignore")


@refused("Satisfies: sql: expected a condition such as", "'quantity + 1'")
def a_rule_that_is_a_number():
    Satisfies("some", "quantity + 1")


@refused("Satisfies: sql: to_number() stops the stream at a row", 'got "to_number(sale_id', "use try_to_number")
def a_rule_that_raises():
    Satisfies("a number", "to_number(sale_id, '999') > 0")


@refused("Satisfies: rule_name: ", "got ''")
def a_rule_without_a_name():
    Satisfies("", "quantity > 1")


@refused("Satisfies: rule_name: ", "got 'future'", "Tidemark's own")
def a_rule_named_as_a_reason_of_tidemarks_own():
    Satisfies("future", "quantity > 1")


@refused("rules: not_null(colour) reads ['colour']", "expected columns of ['quantity', 'sale_id', 'sold_at']")
def a_rule_on_an_unknown_column():
    an_ingest(rules=(NotNull("colour"),))


@refused("rules: cheap reads ['price']")
def a_condition_on_an_unknown_column():
    an_ingest(rules=(Satisfies("cheap", "price < quantity"),))


@refused("rules: expected each name once, got 'not_null(sale_id)' twice")
def a_rule_that_comes_twice():
    an_ingest(rules=(NotNull("sale_id"), NotNull("sale_id", on_failure="fail")))


@refused("rules: between(sale_id, 1..) compares numbers", "is STRING", "Satisfies")
def bounds_on_a_text():
    an_ingest(rules=(Between("sale_id", min=1),))


@refused("rules: one_of(quantity) compares texts", "is INT", "Satisfies")
def texts_for_a_number():
    an_ingest(rules=(OneOf("quantity", ("one", "two")),))


@refused("rules: not_null(sold_at) cannot only warn")
def an_event_time_that_may_be_missing():
    an_ingest(rules=(NotNull("sold_at", on_failure="warn"),))


@refused("rules: matches(quantity, 1) compares texts", "is INT", "Satisfies")
def a_pattern_of_numbers():
    an_ingest(rules=(Matches("quantity", "1"),))


@refused("Matches: regex: expected a regular expression, got '(a'")
def a_pattern_that_does_not_compile():
    Matches("sale_id", "(a")


@refused("Matches: regex: ", "the whole text must match: leave ^ out")
def a_pattern_with_an_anchor():
    Matches("sale_id", "^a")


@refused("Matches: regex: ", r"\s is not the same everywhere", r"[ \t\n\r\f]")
def a_pattern_that_engines_read_differently():
    Matches("sale_id", r"a\sb")


@refused("Matches: regex: ", "expected groups such as")
def a_pattern_that_looks_ahead():
    Matches("sale_id", "a(?=b)")


@refused("rules: not_null(quantity) looks at events", "on_failure='warn'")
def a_severity_among_rules():
    an_ingest(rules=(NotNull("quantity", severity="warn"),))


# --- expectations ---


@refused("expectations: not_null(units) looks at rows that are written", "severity")
def an_expectation_that_quarantines():
    a_pipeline(expectations=(NotNull("units", on_failure="warn"),))


@refused("expectations: not_null(colour) reads ['colour']", "'product_id'", "'units'")
def an_expectation_on_a_column_that_the_result_lacks():
    a_pipeline(expectations=(NotNull("colour"),))


@refused("expectations: unique(window_start, shop) reads ['shop']")
def a_key_that_the_result_lacks():
    a_pipeline(expectations=(Unique("window_start", "shop"),))


@refused("expectations: between(window_end, 1..) compares numbers", "is TIMESTAMP")
def a_time_between_numbers():
    a_pipeline(expectations=(Between("window_end", min=1),))


@refused("expectations: expected each name once, got 'unique(product_id)' twice")
def an_expectation_twice():
    a_pipeline(expectations=(Unique("product_id"), Unique("product_id", severity="warn")))


@refused("expectations: expected each name once, got 'not_null(sold_at)' twice")
def an_expectation_that_is_a_rule_already():
    an_ingest(expectations=(NotNull("sold_at"),))


@refused("expectations: fresh(1 hour): its rows have neither a window nor the event time", "'units'")
def the_age_of_rows_without_a_time():
    a_running_total(expectations=(Fresh("1 hour"),))


@refused("expectations: fresh(quantity, 1 hour) goes by a time", "is INT")
def the_age_of_a_number():
    an_ingest(expectations=(Fresh("1 hour", column="quantity"),))


@refused("contract: retyped is for rows of JSON and CSV", "'fail' for PARQUET")
def a_type_that_must_hold_in_files_that_have_types():
    an_ingest(source=Files("landing/sales", format="parquet"), contract=Contract(retyped="fail"))


@refused("Volume: every: expected a multiple of per (1 hour), got 1 hour 30 minutes")
def a_distance_between_intervals_that_is_none_of_them():
    Volume("1 hour", min_share=0.5, every="90 minutes")


@refused("Volume: min_share: expected a share in min_share, max_share or both")
def a_volume_without_a_bound():
    Volume("1 hour")


@refused("Referential: other_columns: expected as many as columns")
def a_reference_by_other_numbers_of_columns():
    Referential(("a", "b"), "silver.c", "a")


@refused("CustomSql: sql: expected one SELECT", "DROP TABLE")
def a_query_that_is_none():
    CustomSql("gone", "DROP TABLE gold.a")


@refused("personal: expected columns of", "got ['name']")
def a_personal_column_that_is_not_there():
    a_pipeline(personal=("name",))


@refused("rules: expected a tuple, got one NotNull", "rules=(NotNull(…),)")
def a_rule_without_its_comma():
    an_ingest(rules=(NotNull("sale_id")))


# --- steps ---


@refused("Where: condition: ", "a single Spark SQL expression", "got ''")
def an_empty_condition():
    Where("")


@refused("Where: condition: expected a condition", "'quantity * 2'")
def a_condition_that_is_a_number():
    Where("quantity * 2")


@refused("Select: columns: ", "expected at least one, got ")
def a_select_of_nothing():
    Select({})


@refused("Select: columns: 'Final_After' is a column that Tidemark adds")
def a_select_with_the_name_of_a_result_column():
    Select({"Final_After": "units + 1"})


@refused("Aggregate: measures.units: expected an aggregate", "got 'quantity'")
def a_measure_that_is_no_aggregate():
    an_aggregate(measures={"units": "quantity"})


@refused("Aggregate: measures.n: ", "approx_count_distinct")
def a_distinct_count():
    an_aggregate(measures={"n": "count(DISTINCT product_id)"})


@refused("Aggregate: measures.n: ['price'] stand outside of an aggregate", "by` (['product_id'])")
def a_measure_that_is_half_an_aggregate():
    an_aggregate(measures={"n": "sum(quantity) * price"})


@refused("Aggregate: measures.n: ['window_start'] stand outside of an aggregate", "Select after Aggregate")
def a_measure_of_its_own_window():
    an_aggregate(measures={"n": "concat(window_start, count(*))"})


@refused("Aggregate: measures: 'Product_ID' is already a column of `by`", "rename the measure")
def a_measure_with_the_name_of_a_key():
    an_aggregate(measures={"Product_ID": "count(*)"})


@refused("Aggregate: measures: ", "'n' and 'N'")
def measures_that_differ_in_case_only():
    an_aggregate(measures={"n": "count(*)", "N": "sum(quantity)"})


@refused("Aggregate: measures: 'rank' is a column that Tidemark adds")
def a_measure_with_the_name_of_a_result_column():
    an_aggregate(measures={"rank": "count(*)"})


@refused("Aggregate: measures: ", "underscore", "got '__events'")
def a_measure_with_a_hidden_name():
    an_aggregate(measures={"__events": "count(*)"})


@refused("Aggregate: measures: expected a column name, got an empty one")
def a_measure_without_a_name():
    an_aggregate(measures={"": "count(*)"})


@refused("Aggregate: by: expected a tuple, got 'product_id'", "('product_id',)")
def a_key_without_its_comma():
    an_aggregate(by=("product_id"))


@refused("Aggregate: by.0: expected the plain name of a column, got 'upper(product_id)'", "Select before")
def a_computed_key():
    an_aggregate(by=("upper(product_id)",))


@refused("Aggregate: by: ", "'shop' and 'SHOP'")
def keys_that_differ_in_case_only():
    an_aggregate(by=("shop", "SHOP"))


@refused("Aggregate: by: 'window_start' is a column that Tidemark adds")
def a_key_with_the_name_of_a_result_column():
    an_aggregate(by=("window_start",))


@refused("TopN: n: ", "greater than or equal to 1", "got 0")
def the_first_zero():
    TopN(0, order_by="units")


@refused("TopN: order_by: expected an ORDER BY list such as", "got ''")
def an_order_by_nothing():
    TopN(3, order_by="")


@refused("TopN: order_by: expected columns to order by, got '1'")
def an_order_by_position():
    TopN(3, order_by="1")


# --- pipelines ---


@refused("sink: bronze holds events as they arrived", "'bronze.sales'", "use silver or gold")
def results_in_bronze():
    a_pipeline(sink=Sink("bronze.sales"))


@refused("Pipeline `hourly_sales`: source: ", "'table', 'union'")
def a_pipeline_on_files():
    a_pipeline(source=Files("sales"))


@refused("Pipeline `hourly_sales`: sink: ", "'gold.sales'")
def a_sink_that_is_only_a_name():
    a_pipeline(sink="gold.sales")


@refused("steps: ", "expected at least one, got ")
def no_steps():
    a_pipeline(steps=())


@refused("steps: expected a tuple, got one Aggregate", "steps=(Aggregate(…),)")
def a_step_without_its_comma():
    a_pipeline(steps=(an_aggregate()))


@refused("steps: expected at most one step that remembers events", "['aggregate', 'aggregate']")
def two_that_group():
    a_pipeline(steps=(an_aggregate(), an_aggregate()))


@refused("watermark: nothing waits for events where no step remembers them")
def a_watermark_that_nothing_needs():
    a_pipeline(steps=(Where("quantity > 1"),))


@refused("sink: rows that are computed from one event each never change")
def single_events_that_are_updated():
    a_pipeline(steps=(Where("quantity > 1"),), watermark=None, sink=Sink("gold.large", mode="update"))


@refused("steps: a Where after a running total would have to take rows back")
def a_filter_of_running_totals():
    a_running_total(steps=(an_aggregate(window=None), Where("units > 1")))


@refused("steps: TopN ranks the groups of an Aggregate")
def a_ranking_of_single_events():
    a_pipeline(steps=(TopN(3, order_by="units"),), watermark=None)


@refused("steps: expected TopN once, as the last step")
def a_ranking_before_the_end():
    a_pipeline(steps=(an_aggregate(), TopN(3, order_by="units"), Select({"x": "units"})))


@refused("steps: expected TopN", "['top_n', 'aggregate']")
def a_ranking_of_events():
    a_pipeline(steps=(TopN(3, order_by="units"), an_aggregate()))


@refused(
    "steps: TopN order_by of results reads ['sales']", "expected columns of ['product_id', 'units', 'window_end', "
)
def a_ranking_by_an_unknown_column():
    a_pipeline(steps=(an_aggregate(), TopN(3, order_by="units DESC NULLS FIRST, sales")))


@refused("steps: Select 'share' of results reads ['total']", "'units'")
def a_result_computed_from_an_unknown_column():
    a_pipeline(steps=(an_aggregate(), Select({"share": "units / total"})))


@refused("steps: Select of results: expected a new column, got 'UNITS', which exists")
def a_result_column_that_exists():
    a_pipeline(steps=(an_aggregate(), Select({"UNITS": "units + 1"})))


@refused("steps: Select: expected a new column, got 'Sold_At', which exists")
def an_event_time_that_is_replaced():
    a_pipeline(steps=(Select({"Sold_At": "other"}), an_aggregate()))


@refused("steps: Select: expected a new column, got 'x', which exists")
def a_column_that_is_computed_twice():
    a_pipeline(steps=(Select({"x": "a"}), Select({"x": "b"}), an_aggregate()))


@refused("steps: Aggregate by reads ['product_id']", "'sold_at'")
def a_key_that_the_source_does_not_select():
    a_pipeline(source=Table("bronze.sales", select={"sold_at": "at", "quantity": "n"}))


@refused("steps: Aggregate measure 'units' reads ['quantity']")
def a_measure_of_what_the_source_does_not_select():
    a_pipeline(source=Table("bronze.sales", select={"sold_at": "at", "product_id": "id"}))


@refused("steps: Where reads ['shop']")
def a_filter_by_what_the_source_does_not_select():
    source = Table("bronze.sales", select={"sold_at": "at", "product_id": "id", "quantity": "n"})
    a_pipeline(source=source, steps=(Where("shop = 'x'"), an_aggregate()))


@refused("event_time: bronze.sales does not select 'sold_at'; it selects ['product_id', 'quantity']")
def a_source_without_event_time():
    a_pipeline(source=Table("bronze.sales", select={"quantity": "n", "product_id": "id"}))


@refused("event_time: bronze.b does not select 'sold_at'")
def a_union_without_event_time():
    tables = (Table(f"bronze.{name}", select={"quantity": "n", "product_id": "id"}) for name in "ba")
    a_pipeline(source=Union(*tables))


@refused("'watermark' is a column that Tidemark adds to late rows")
def a_selected_column_with_the_name_of_a_late_one():
    select = {"sold_at": "at", "product_id": "id", "quantity": "n", "watermark": "w"}
    a_pipeline(source=Table("bronze.sales", select=select))


@refused("event_time: expected the plain name of a column, got 'payload.at'")
def an_event_time_inside_a_struct():
    a_pipeline(event_time="payload.at")


@refused("event_time and watermark: are required where the Aggregate has a window")
def windows_without_a_watermark():
    a_pipeline(watermark=None)


@refused("event_time and watermark: are required")
def windows_without_event_time():
    a_pipeline(event_time=None)


@refused("watermark: a running total has no window that it could close: leave it out")
def a_running_total_with_a_watermark():
    a_running_total(watermark=Watermark(delay="1 minute"))


@refused("sink: a running total never becomes final", "use Sink('gold.totals', mode=\"update\")")
def a_running_total_that_appends():
    a_running_total(sink=Sink("gold.totals"))


@refused("steps: TopN ranks inside a window: give the Aggregate one")
def a_ranking_of_running_totals():
    a_running_total(steps=(an_aggregate(window=None), TopN(3, order_by="units")))


@refused("Calendar: tz: expected a time zone of the IANA database", "got 'berlin'; did you mean 'Europe/Berlin'?")
def days_in_a_city_without_its_region():
    Calendar("day", tz="berlin")


@refused("Calendar: tz: expected a time zone of the IANA database", "got '+02:00'")
def days_at_a_fixed_offset():
    Calendar("day", tz="+02:00")


@refused("Calendar: unit: input should be 'day', 'week' or 'month', got 'year'")
def windows_of_a_year():
    Calendar("year", tz="Europe/Berlin")


@refused("sink: Spark cannot update session windows", 'mode="append"')
def sessions_that_update():
    a_pipeline(steps=(an_aggregate(window=Session("5 minutes")),), sink=Sink("gold.s", mode="update"))


@refused("steps: Spark needs a key for session windows", "by=...")
def sessions_without_a_key():
    a_pipeline(steps=(an_aggregate(window=Session("5 minutes"), by=()),))


@refused("steps: sessions of different keys share no window", "leave TopN out")
def a_ranking_of_sessions():
    a_pipeline(steps=(an_aggregate(window=Session("5 minutes")), TopN(3, order_by="units")))


@refused("watermark: Late.UPDATE changes published results", "Sink('gold.hourly_sales', mode=\"update\")")
def late_updates_of_final_rows():
    a_pipeline(watermark=Watermark(delay="1 minute", grace="1 minute", late=Late.UPDATE))


@refused("Watermark: late: Late.UPDATE accepts events for `grace`", "set grace")
def late_updates_without_grace():
    Watermark(delay="1 minute", late=Late.UPDATE)


@refused("Watermark: late: ", "'drop', 'update' or 'side_output'", "'keep'")
def an_unknown_policy():
    Watermark(delay="1 minute", late="keep")


@refused("Watermark: delay: is required")
def a_watermark_without_delay():
    Watermark()


@refused("idle_after: ", "more than the trigger_interval of 10 minutes", "got 1 minute")
def a_silence_shorter_than_the_time_between_batches():
    an_ingest(trigger_interval="10 minutes", idle_after="1 minute")


@refused("columns: ", "keys of a JSON object are texts", "MAP<INT, STRING>", "use MAP<STRING, ...>")
def a_json_map_with_keys_that_are_no_texts():
    an_ingest(columns={"sold_at": "TIMESTAMP", "labels": "STRUCT<by_number: MAP<INT, STRING>>"})


@refused("Aggregate by 'sold_at' is the event time", "leave it out")
def a_key_that_is_the_event_time():
    a_pipeline(steps=(an_aggregate(by=("product_id", "sold_at")),))


@refused("Aggregate by 'when' is the event time", "computed from it")
def a_key_that_is_a_copy_of_the_event_time():
    a_pipeline(steps=(Select({"when": "sold_at"}), an_aggregate(by=("when",))))


@refused("Watermark: expected named fields (delay=…, grace=…, late=…), got ('1 minute',)")
def a_watermark_by_position():
    Watermark("1 minute")


@refused("Aggregate: expected named fields (window=…, by=…, measures=…)")
def an_aggregate_by_position():
    Aggregate(Tumbling("1 hour"))


@pytest.mark.parametrize(("define", "says"), CASES)
def test_it_refuses(define, says):
    with pytest.raises(DefinitionError) as refusal:
        define()
    for text in says:
        assert text in str(refusal.value)
