"""SQL expressions: what is refused and why, what they read, and that DuckDB gives them the same meaning."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal

import duckdb
import pytest
from pydantic import TypeAdapter, ValidationError

from spark_jobs.spec import Between, NotNull, OneOf, expressions
from spark_jobs.spec.expressions import columns, order_by_columns, split_order_by, to_duckdb, ungrouped_columns

SCALAR = TypeAdapter(expressions.Scalar)
CONDITION = TypeAdapter(expressions.Condition)
AGGREGATE = TypeAdapter(expressions.AggregateExpression)
ORDER_BY = TypeAdapter(expressions.OrderBy)
SQL_TYPE = TypeAdapter(expressions.SqlType)
COLUMN = TypeAdapter(expressions.PlainColumn)


def message(kind, text):
    with pytest.raises(ValidationError) as refused:
        kind.validate_python(text)
    return refused.value.errors()[0]["msg"]


class TestOneRow:
    @pytest.mark.parametrize(
        "sql",
        [
            "quantity * unit_price",
            "upper(trim(name))",
            "CASE WHEN a > 1 THEN 'many' ELSE 'one' END",
            "CAST(a AS DECIMAL(10, 2))",
            "`weird name` || 'x'",
            "exists(tags, tag -> tag = 'x')",
            "aggregate(prices, 0, (sum, price) -> sum + price)",
            "payload.customer.id",
            "a = any(array(1, 2))",
            "name LIKE 'now%'",
            "to_timestamp(text, 'yyyy')",
            "unix_timestamp(sold_at)",
            "user = 'ann'",
            "payload.current_user",
            "split(name, ' ').first",
        ],
    )
    def test_expressions_of_one_row_are_taken_as_written(self, sql):
        assert SCALAR.validate_python(sql) == sql

    @pytest.mark.parametrize(
        ("sql", "why"),
        [
            ("", "a single Spark SQL expression"),
            ("a +", "a Spark SQL expression"),
            ("a, b", "a single Spark SQL expression"),
            ("a FROM t", "a single Spark SQL expression"),
            ("a; DROP TABLE b", "a single Spark SQL expression"),
            ("sum(a),", "leave out what it ends with"),
            ("a > 0 ; ", "leave out what it ends with"),
            ("a WHERE b > 1", "a single Spark SQL expression"),
            ("a LIMIT 1", "a single Spark SQL expression"),
            ("DISTINCT a", "a single Spark SQL expression"),
            ("a GROUP BY b", "a single Spark SQL expression"),
            ("a AS b", "the mapping's key names it"),
            ("(SELECT max(a) FROM t)", "without a subquery"),
            ("a IN (SELECT b FROM t)", "without a subquery"),
            ("row_number() OVER (ORDER BY a)", "OVER (...)"),
            ("lag(a)", "OVER (...)"),
            ("*", "the names of columns instead of *"),
            ("struct(*)", "the names of columns instead of *"),
            ("a > :limit", "write the value"),
            ("a > ${limit}", "write the value"),
            ("sum(a)", "use Aggregate"),
            ("any(a)", "use Aggregate"),
            ("mean(a)", "use Aggregate"),
        ],
    )
    def test_anything_else_is_refused_with_a_way_out(self, sql, why):
        refused = message(SCALAR, sql)
        assert why in refused
        assert repr(sql) in refused

    @pytest.mark.parametrize(
        "sql",
        ["now()", "current_timestamp", "current_date()", "unix_timestamp()", "rand()", "random(3)", "uuid()",
         "monotonically_increasing_id()", "input_file_name()", "uniform(1, 2)", "current_user()",
         "a > now()", "CASE WHEN rand() < 0.5 THEN 1 END", "transform(tags, x -> named_struct('a', now()))",
         "`now`()", "`NOW` ( )", "/* a */ Now()", "`reflect`('java.lang.System', 'getenv')", "try_reflect('a', 'b')",
         "`java_method`('java.util.UUID', 'randomUUID')", "`unix_timestamp`()", "user()", "aes_encrypt(a, b)",
         "session_user", "current_user", "`current_user`", "Current_Time", "`session_user`"],
    )  # fmt: skip
    def test_what_a_replay_would_not_repeat_is_refused_however_it_is_written(self, sql):
        assert "answers differently each time" in message(SCALAR, sql)

    @pytest.mark.parametrize(
        "sql",
        ["spark_catalog.default.`reflect`('a', 'b')", "system.builtin.now()", "system.`builtin`.`reflect`('a', 'b')",
         "builtin.upper(a)"],
    )  # fmt: skip
    def test_functions_stand_without_their_catalog(self, sql):
        assert "by their plain names" in message(SCALAR, sql)

    def test_names_are_not_computed(self):
        assert "write the column's name" in message(SCALAR, "identifier('current_' || 'user')")

    @pytest.mark.parametrize(
        "sql",
        ["CAST('now' AS TIMESTAMP)", "DATE 'Today'", "to_timestamp('yesterday UTC')", "timestamp'now'",
         'TIMESTAMP "now"', "timestamp_ntz ' Now\t'", "timestamp '\\u006eow'", "'now'::timestamp", "timestamp('now')",
         "try_cast('now' AS DATE)", "CAST(r'now' AS TIMESTAMP)", "CAST(CAST('now' AS STRING) AS TIMESTAMP)",
         "CAST(CASE WHEN a THEN 'now' END AS TIMESTAMP)", "t < 'now'", "'TOMORROW' >= t", "t < ('now')", "t < r'now'",
         "NOT t < 'yesterday Europe/Berlin'", "t::timestamp = 'now'", "t BETWEEN 'today' AND x",
         "'now' BETWEEN a AND b",
         "t IN ('2024-01-01', 'today')", "CASE t WHEN 'now' THEN 1 END", "coalesce(t, 'now')", "if(a, t, 'now')",
         "exists(times, x -> x < 'now')", "datediff('now', t)", "extract(YEAR FROM 'now')", "last_day('today')",
         "'now' - INTERVAL 1 DAY", "unix_seconds('now')", "t < trim(' now')", "t < 'now' COLLATE utf8_binary",
         "t < CASE WHEN a THEN 'now' ELSE 'today' END"],
    )  # fmt: skip
    def test_times_that_move_are_refused_where_a_text_may_become_one(self, sql):
        assert "another one each time" in message(SCALAR, sql)

    @pytest.mark.parametrize(
        "sql",
        ["cast(concat('no', 'w') as timestamp)", "cast('no' || 'w' as date)", "cast('no' 'w' as date)",
         "date(`concat`('no', 'w'))", "to_timestamp(concat('no', 'w'))", "to_date(lower('N') || 'ow')",
         "try_cast(replace('nXow', 'X', '') as timestamp)", "timestamp_ntz(upper(trim('n') || 'ow'))",
         "cast(CAST(X'6e6f77' AS STRING) as date)", "cast(decode(unhex('6e6f77'), 'utf-8') as date)",
         "cast(array('no', 'now')[1] as timestamp)", "cast(named_struct('a', 'now').a as date)",
         "cast(map('a', 'now')['a'] as date)", "cast(url_decode('%6eow') as date)", "cast((concat('no', 'w')) as date)",
         "t < concat('no', 'w')", "coalesce(t, concat('no', 'w'))", "year(concat('no', 'w'))",
         "cast(CASE WHEN a THEN concat('no', 'w') END as timestamp)",
         "cast(CASE WHEN 1 = 1 THEN 'no' ELSE '' END || 'w' as date)", "t < if(1 = 1, 'no', '') || 'w'"],
    )  # fmt: skip
    def test_texts_that_are_computed_are_no_times(self, sql):
        refused = message(SCALAR, sql)
        assert "write the text itself" in refused
        assert "would not repeat its rows" in refused

    @pytest.mark.parametrize("sql", ["date_add('today', 1)", "date_sub('now', 1)", "nvl2(a, t, 'now')"])
    def test_functions_are_given_no_times_that_move(self, sql):
        assert "another one each time" in message(SCALAR, sql)

    @pytest.mark.parametrize(
        "sql",
        ["cast(concat(day, ' 00:00') as timestamp)", "cast(text as timestamp)", "to_timestamp(text)",
         "cast(make_date(2024, 1, 1) as timestamp)", "cast(timestamp_micros(5) as date)", "cast(60 * 60 as timestamp)",
         "cast(TIMESTAMP '2024-01-01' as date)", "cast(NULL as timestamp)", "cast(('2024-01-01') as date)",
         "exists(times, x -> cast(x as date) = day)", "exists(times, x -> cast(x.at as date) = day)",
         "transform(texts, x -> cast(concat(x, 'Z') as timestamp))", "a = b || lower('X')",
         "regexp_replace(a, repeat('-', 3), '') = b", "lower(a) = lower('X')", "nvl2(a, 'x', 'now')",
         "date_trunc('DAY', t) < DATE '2024-01-01'", "concat(a, lower('X'))",
         "regexp_extract(s, concat('n', 'ow'), 0)", "regexp_extract(s, 'now', 0)",
         "name = 'paid' COLLATE utf8_lcase", "date_format(t, 'yyyy') = '2024'"],
    )  # fmt: skip
    def test_times_of_columns_and_of_written_texts_are_taken(self, sql):
        assert SCALAR.validate_python(sql) == sql

    @pytest.mark.parametrize(
        "text",
        ["substring(s, 1, 3)", "substr(s, 1, 3)", "substring(s FROM 1 FOR 3)", "left(s, 3)", "right(s, 3)",
         "rpad(s, 3)", "btrim(s)", "trim(s)", "split_part(s, ',', 1)", "split(s, ',')[0]", "substring_index(s, ',', 1)",
         "overlay(s PLACING 'a' FROM 1)", "concat(s, t)", "reverse(s)", "elt(1, s, t)", "decode(s, 'utf-8')",
         "parse_url(s, 'HOST')", "regexp_substr(s, 'n.*')", "printf('%s', s)", "url_decode(s)", "(substring(s, 1, 3))",
         "coalesce(substring(s, 1, 3), '')", "if(a, left(s, 3), lower(s))", "substring(s, 1, 3) || t"],
    )  # fmt: skip
    def test_what_gives_a_text_is_compared_with_any(self, text):
        for sql in (f"{text} = 'now'", f"{text} IN ('today', 'later')", f"CASE {text} WHEN 'now' THEN 1 END"):
            assert SCALAR.validate_python(sql) == sql

    @pytest.mark.parametrize(
        "sql",
        ["status LIKE 'now%'", "status RLIKE 'now'", "CAST(status AS STRING) = 'now'",
         "lower(status) IN ('now', 'later')",
         "CASE lower(status) WHEN 'now' THEN 1 END", "CASE WHEN a THEN 'today' ELSE 'before' END", "if(a, 'now', NULL)",
         "coalesce(CAST(status AS STRING), '') = 'now'", "concat('now', a)", "locate('now', a) > 0", "'today'",
         "get_json_object(raw, '$.at') = 'now'", "status = 'nowhere'", "status = 'today is fine'", "words['now']",
         "t < TIMESTAMP 'epoch'", "payload.now = 1"],
    )  # fmt: skip
    def test_texts_that_stay_texts_may_say_so(self, sql):
        assert SCALAR.validate_python(sql) == sql

    def test_a_text_column_that_may_be_a_time_is_refused_with_a_way_out(self):
        refused = message(SCALAR, "status = 'now'")
        assert "CAST(a AS STRING) = 'now'" in refused

    @pytest.mark.parametrize("sql", ["explode(tags)", "posexplode_outer(tags)", "inline(rows)", "stack(2, a, b)"])
    def test_what_makes_several_events_of_one_is_refused(self, sql):
        assert "several rows of one event" in message(SCALAR, sql)

    @pytest.mark.parametrize("sql", ["window(sold_at, '1 hour')", "session_window(sold_at, '1 hour').start"])
    def test_windows_belong_into_aggregate(self, sql):
        assert "use Aggregate(window=...)" in message(SCALAR, sql)

    @pytest.mark.parametrize("sql", ["a > 1", "a", "NOT a", "a IS NULL", "true", "a BETWEEN 1 AND 2 OR f(b)"])
    def test_conditions_are_taken(self, sql):
        assert CONDITION.validate_python(sql) == sql

    @pytest.mark.parametrize("sql", ["a + 1", "(a * 2)", "1", "'yes'", "-a", "a || b"])
    def test_numbers_and_texts_are_no_conditions(self, sql):
        assert "expected a condition such as" in message(CONDITION, sql)

    @pytest.mark.parametrize("rule", [OneOf("status", ("now", "today")), NotNull("status"), Between("status", min=1)])
    def test_what_a_rule_makes_of_a_column_and_its_values_is_read(self, rule):
        assert columns(rule.condition) == {"status"}

    def test_a_rule_may_be_of_a_column_that_is_called_like_a_function(self):
        assert columns(NotNull("current_user").condition) == {"current_user"}


class TestGroups:
    @pytest.mark.parametrize(
        "sql",
        [
            "count(*)",
            "sum(quantity * unit_price)",
            "sum(a) / count(*)",
            "approx_count_distinct(a)",
            "max_by(price, sold_at)",
            "count_if(a > 1)",
            "sum(a) FILTER (WHERE b > 1)",
            "percentile_approx(a, 0.5)",
            "percentile_cont(0.5) WITHIN GROUP (ORDER BY a)",
            "mean(a)",
            "bool_or(a)",
            "any(a)",
            "concat_ws(',', sort_array(collect_set(a)))",
            "size(collect_set(a))",
            "listagg(a, ',') WITHIN GROUP (ORDER BY a)",
            "transform(array_sort(collect_list(struct(at, page))), click -> click.page)",
        ],
    )
    def test_aggregates_are_taken_as_written(self, sql):
        assert AGGREGATE.validate_python(sql) == sql

    @pytest.mark.parametrize(
        ("sql", "why"),
        [
            ("quantity", "expected an aggregate such as 'sum(quantity)'"),
            ("upper(a)", "expected an aggregate"),
            ("count(DISTINCT a)", "use approx_count_distinct(...)"),
            ("sum(DISTINCT a)", "incrementally"),
            ("first(a)", "use min_by(value, event_time)"),
            ("last(a) IGNORE NULLS", "use min_by(value, event_time)"),
            ("any_value(a)", "depends on the order"),
            ("collect_list(a)", "use sort_array(COLLECT_LIST(a))"),
            ("array_sort(collect_list(a), (x, y) -> 0)", "depends on the order"),
            ("mode(a)", "depends on the order"),
            ("histogram_numeric(a, 3)", "depends on the order"),
            ("max(to_date('today'))", "another one each time"),
            ("max(try_to_timestamp('now'))", "another one each time"),
            ("max(java_method('java.util.UUID', 'randomUUID'))", "answers differently each time"),
            ("concat_ws(',', collect_set(a))", "use sort_array(COLLECT_SET(a))"),
            ("listagg(a, ',')", "WITHIN GROUP (ORDER BY ...)"),
            ("sum(max(a))", "no aggregate inside another"),
            ("sum(a) HAVING sum(a) > 1", "a single Spark SQL expression"),
            ("sum(rand())", "answers differently each time"),
            ("max(explode(a))", "several rows of one event"),
        ],
    )
    def test_anything_else_is_refused_with_a_way_out(self, sql, why):
        refused = message(AGGREGATE, sql)
        assert why in refused
        assert repr(sql) in refused


class TestColumns:
    @pytest.mark.parametrize(
        ("sql", "read"),
        [
            ("1 + 2", set()),
            ("quantity * unit_price", {"quantity", "unit_price"}),
            ("`weird name`", {"weird name"}),
            ("größe", {"größe"}),
            ("payload.customer.id", {"payload"}),
            ("items[0].price", {"items"}),
            ("transform(tags, tag -> tag.name || suffix)", {"tags", "suffix"}),
            ("aggregate(prices, start, (sum, price) -> sum + price * rate)", {"prices", "start", "rate"}),
            ("transform(tags, x -> x) = x", {"tags", "x"}),
            ("exists(a, x -> exists(x.inner, y -> y > x.m))", {"a"}),
            ("sum(a) FILTER (WHERE b > 1)", {"a", "b"}),
            ("count(*)", set()),
        ],
    )
    def test_an_expression_reads_these_columns(self, sql, read):
        assert columns(sql) == read

    @pytest.mark.parametrize(
        ("sql", "loose"),
        [
            ("sum(a)", set()),
            ("sum(a) + b", {"b"}),
            ("sum(a) FILTER (WHERE b > 1)", set()),
            ("percentile_cont(0.5) WITHIN GROUP (ORDER BY a)", set()),
            ("concat(k, max(upper(a)))", {"k"}),
        ],
    )
    def test_outside_of_aggregates_it_reads_these(self, sql, loose):
        assert ungrouped_columns(sql) == loose

    @pytest.mark.parametrize(
        "name",
        ["product_id", "größe", "Names2", "order", "1a", "@timestamp", "event-time", "event:time", 'say"'],
    )
    def test_a_plain_column_is_a_name(self, name):
        assert COLUMN.validate_python(name) == name

    @pytest.mark.parametrize(
        "name",
        ["", "a.b", "a + 1", "upper(a)", "a b", "`a`", "a+b", "a::date", "a[0]", "a||b", "a\x1bb"],
    )
    def test_expressions_are_no_plain_columns(self, name):
        assert "compute it in a Select before" in message(COLUMN, name)


class TestOrder:
    def test_terms_keep_their_direction_and_their_nulls(self):
        assert split_order_by("units DESC NULLS FIRST, product_id, -x ASC NULLS LAST") == (
            "units DESC NULLS FIRST",
            "product_id",
            "-x ASC NULLS LAST",
        )

    @pytest.mark.parametrize(
        ("sql", "read"),
        [
            ("units DESC NULLS LAST", {"units"}),
            ("a / b DESC, concat(c, ' DESC', ' NULLS ')", {"a", "b", "c"}),
            ("CASE WHEN a > 1 THEN b END", {"a", "b"}),
        ],
    )
    def test_the_columns_of_its_terms_are_known(self, sql, read):
        assert ORDER_BY.validate_python(sql) == sql
        assert order_by_columns(sql) == read

    @pytest.mark.parametrize(
        ("sql", "why"),
        [
            ("", "expected an ORDER BY list"),
            ("units DESC DESC", "expected an ORDER BY list"),
            ("units LIMIT 3", "expected an ORDER BY list"),
            ("units; DROP TABLE a", "expected an ORDER BY list"),
            ("1", "expected columns to order by"),
            ("sum(units)", "got the aggregate"),
            ("rand()", "answers differently each time"),
            ("row_number() OVER (ORDER BY a)", "OVER (...)"),
        ],
    )
    def test_anything_else_is_refused(self, sql, why):
        assert why in message(ORDER_BY, sql)


class TestTypes:
    @pytest.mark.parametrize(
        "sql",
        ["STRING", "int", "INTEGER", "BIGINT", "LONG", "DOUBLE", "DECIMAL", "DECIMAL(38, 38)", "decimal(10,2)", "DATE",
         "TIMESTAMP", " Timestamp ", "TIMESTAMP_NTZ", "BOOLEAN", "BINARY", "ARRAY<STRING>", "MAP<STRING, INT>",
         "STRUCT<a: INT, b: ARRAY<STRUCT<long: LONG>>>", "STRUCT<a INT>"],
    )  # fmt: skip
    def test_types_of_spark_are_taken_as_written(self, sql):
        assert SQL_TYPE.validate_python(sql) == sql

    @pytest.mark.parametrize(
        "sql",
        ["", "STRNG", "TEXT", "NUMBER", "INT64", "UUID", "JSON", "VARCHAR(10)", "DECIMAL(39, 2)", "DECIMAL(2, 3)",
         "DECIMAL(x)", "INT(4)", "INT NOT NULL", "INT, b STRING", "TIMESTAMP(3)", "ARRAY", "ARRAY<TEXT>", "MAP<STRING>",
         "BIGINT UNSIGNED", "INT; DROP TABLE a"],
    )  # fmt: skip
    def test_types_of_other_engines_and_mistakes_are_refused(self, sql):
        refused = message(SQL_TYPE, sql)
        assert "such as 'STRING' or 'DECIMAL(10, 2)'" in refused
        assert repr(sql) in refused

    @pytest.mark.parametrize("sql", ["INT", "long", "DECIMAL(10, 2)", "REAL", "tinyint"])
    def test_numbers_are_numeric(self, sql):
        assert expressions.is_numeric(sql)

    @pytest.mark.parametrize("sql", ["STRING", "TIMESTAMP", "ARRAY<INT>", "STRUCT<int: INT>", "BOOLEAN"])
    def test_other_types_are_not(self, sql):
        assert not expressions.is_numeric(sql)


@pytest.fixture(scope="module")
def connection():
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


class TestDuckDB:
    """Each expected value is what Spark's documentation says of the expression, worked out by hand."""

    ROW = (
        "SELECT 7 AS a, 2 AS b, CAST(NULL AS INT) AS n, 'Paris, France' AS place, DATE '2024-02-29' AS day, "
        "TIMESTAMPTZ '2024-02-29 13:45:10+00' AS at, [3, 1, 2] AS numbers, CAST(12.34 AS DECIMAL(10, 2)) AS price, "
        "{'id': 5} AS payload"
    )

    @pytest.mark.parametrize(
        ("sql", "value"),
        [
            ("a / b", 3.5),
            ("a DIV b", 3),
            ("a % b", 1),
            ("coalesce(n, a)", 7),
            ("nvl(n, b)", 2),
            ("if(a > b, 'more', 'less')", "more"),
            ("n <=> NULL", True),
            ("a <=> n", False),
            ("element_at(split(place, ','), -1)", " France"),
            ("split(place, ',')[0]", "Paris"),
            ("substring(place, 1, 5)", "Paris"),
            ("place LIKE 'Par%'", True),
            ("place RLIKE '^P.*e$'", True),
            ("length(place)", 13),
            ("concat(place, '!')", "Paris, France!"),
            ("year(day) * 100 + month(day)", 202402),
            ("CAST(date_add(day, 1) AS DATE)", date(2024, 3, 1)),
            ("datediff(day, DATE '2024-01-01')", 59),
            ("date_trunc('HOUR', at)", datetime(2024, 2, 29, 13, tzinfo=UTC)),
            ("hour(at)", 13),
            ("to_date('2024-02-29')", date(2024, 2, 29)),
            ("array_sort(numbers)", [1, 2, 3]),
            ("numbers[0]", 3),
            ("size(numbers)", 3),
            ("transform(numbers, x -> x + a)", [10, 8, 9]),
            ("filter(numbers, x -> x > 1)", [3, 2]),
            ("price * 2", Decimal("24.68")),
            ("CAST('12' AS INT)", 12),
            ("payload.id", 5),
            ("pow(b, 3)", 8.0),
        ],
    )
    def test_one_row_gives_the_value_that_spark_gives(self, connection, sql, value):
        got = connection.execute(f"SELECT {to_duckdb(sql)} FROM ({self.ROW})").fetchone()[0]
        assert got == value

    @pytest.mark.parametrize(
        ("sql", "value"),
        [
            ("count(*)", 4),
            ("count(v)", 3),
            ("sum(v)", 9),
            ("avg(v)", 3.0),
            ("mean(v)", 3.0),
            ("sum(v * 2) + count(*)", 22),
            ("max_by(k, v)", "c"),
            ("min_by(k, v)", "a"),
            ("count_if(v > 2)", 2),
            ("sum(v) FILTER (WHERE k <> 'c')", 4),
            ("bool_or(v > 3)", True),
            ("bool_and(v > 1)", False),
            ("stddev_pop(v)", math.sqrt(8 / 3)),
            ("array_sort(collect_list(v))", [1, 3, 5]),
        ],
    )
    def test_a_group_gives_the_value_that_spark_gives(self, connection, sql, value):
        rows = "VALUES ('a', 1), ('b', 3), ('c', 5), ('d', NULL)"
        got = connection.execute(f"SELECT {to_duckdb(sql)} FROM ({rows}) AS t(k, v)").fetchone()[0]
        assert got == pytest.approx(value) if isinstance(value, float) else got == value
