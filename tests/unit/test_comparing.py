"""How measures may be compared: every order of the addends is within what the plan allows, and little else is."""

import math
import random

import duckdb
import pyarrow as pa
import pytest
import sqlglot

from spark_jobs.operations.audit.plan import Audit
from spark_jobs.operations.audit.text import audit_text
from spark_jobs.plan.comparing import depending_on, leeways, not_compared
from spark_jobs.spec import Select, TopN, Where

TYPES = {"d": "double", "f": "float", "i": "bigint", "p": "decimal(10,2)", "s": "string"}


def found(measures):
    return {each.measure: each for each in leeways(measures, lambda sql: TYPES.get(sql, "double"))}


class TestWhichMeasures:
    @pytest.mark.parametrize(
        "sql",
        [
            *(
                "sum(d)",
                "sum(f)",
                "sum(s)",
                "avg(d)",
                "avg(i)",
                "mean(d)",
                "try_sum(d)",
                "try_avg(d)",
                "sum(d) FILTER (WHERE i > 1)",
            ),
            *("stddev(d)", "std(d)", "stddev_pop(i)", "variance(d)", "var_pop(d)", "var_samp(d)", "corr(d, i)"),
            *("covar_pop(d, i)", "covar_samp(d, i)", "round(sum(d), 2)", "sum(d) > 10", "named_struct('m', avg(d))"),
            *("array(avg(d), max(d))", "max_by(s, i)", "min_by(s, i)", "coalesce(max_by(s, i), 'none')"),
        ],
    )
    def test_it_may_have_several_values(self, sql):
        assert list(found({"m": sql})) == ["m"]

    @pytest.mark.parametrize(
        "sql",
        [
            *("count(*)", "sum(i)", "sum(p)", "avg(p)", "max(d)", "min(d)", "percentile(d, 0.5)", "median(d)"),
            *("approx_count_distinct(d)", "sort_array(collect_list(d))", "bool_and(d > 1)", "count_if(d > 1)"),
            *("regr_count(d, i)", "max(named_struct('i', i, 's', s)).s", "listagg(s) WITHIN GROUP (ORDER BY s)"),
        ],
    )
    def test_it_has_one_value(self, sql):
        assert found({"m": sql}) == {}
        assert not_compared({"m": sql}) == {}

    @pytest.mark.parametrize(
        ("sql", "function"),
        [
            ("percentile_approx(d, 0.5)", "percentile_approx"),
            ("approx_percentile(d, array(0.5, 0.9), 100)[0]", "percentile_approx"),
            ("hll_sketch_estimate(hll_sketch_agg(s))", "hll_sketch_agg"),
            ("kurtosis(d)", "kurtosis"),
            ("regr_slope(d, i)", "regr_slope"),
            ("listagg(s) WITHIN GROUP (ORDER BY i)", "listagg"),
            ("max_by(s, i, 3)", "max_by"),
        ],
    )
    def test_it_is_not_compared(self, sql, function):
        assert not_compared({"m": sql}) == {"m": function}
        assert found({"m": sql}) == {}

    def test_columns_that_follow_from_one_are_known(self):
        steps = (Select({"high": "P95 * 2"}), Where("n > 1"), Select({"share": "high / n", "other": "n + 1"}))
        assert depending_on(["p95"], steps) == {"p95", "high", "share"}
        assert depending_on(["p95"], (TopN(3, order_by="p95 DESC"),)) == {"p95", "rank"}


def by_duckdb(rows, aggregates):
    """Aggregates of Spark over rows with `d` and `e`."""
    with duckdb.connect() as connection:
        connection.register("events", pa.table({"d": [d for d, _ in rows], "e": [e for _, e in rows]}))
        sql = sqlglot.transpile(f"SELECT {', '.join(aggregates)} FROM events", read="spark", write="duckdb")[0]
        return connection.execute(sql).fetchone()


def slack(sql, rows):
    (each,) = found({"m": sql}).values()
    (value,) = by_duckdb(rows, [each.parts["__part_0_slack"]])
    return value


class Moments:
    """Spark's own arithmetic of variances: one value at a time, and two parts put together."""

    def __init__(self):
        self.n, self.mean, self.other, self.m2, self.c = 0, 0.0, 0.0, 0.0, 0.0

    def add(self, d, e):
        self.n += 1
        before = d - self.mean
        self.mean += before / self.n
        self.m2 += before * (before - before / self.n)
        self.other += (e - self.other) / self.n
        self.c += before * (e - self.other)

    def merge(self, part):
        n, before, other = self.n + part.n, part.mean - self.mean, part.other - self.other
        if part.n:
            self.m2 += part.m2 + before * (before * self.n / n * part.n)
            self.c += part.c + before * (other * self.n / n * part.n)
            self.mean += before * part.n / n
            self.other += other * part.n / n
            self.n = n


def sum_in_parts(values, chance):
    parts = [0.0] * chance.choice([1, 2, 5])
    for value in values:
        parts[chance.randrange(len(parts))] += value
    total = 0.0
    for part in parts:
        total += part
    return total


def moments_in_parts(rows, chance):
    parts = [Moments() for _ in range(chance.choice([1, 2, 5]))]
    for row in rows:
        parts[chance.randrange(len(parts))].add(*row)
    whole = Moments()
    for part in parts:
        if part.n and not whole.n:
            whole = part
        elif part.n:
            whole.merge(part)
    return whole


COMPUTED = {
    "sum(d)": lambda rows, chance: sum_in_parts([d for d, _ in rows], chance),
    "avg(d)": lambda rows, chance: sum_in_parts([d for d, _ in rows], chance) / len(rows),
    "var_pop(d)": lambda rows, chance: moments_in_parts(rows, chance).m2 / len(rows),
    "variance(d)": lambda rows, chance: moments_in_parts(rows, chance).m2 / (len(rows) - 1),
    "stddev(d)": lambda rows, chance: math.sqrt(moments_in_parts(rows, chance).m2 / (len(rows) - 1)),
    "stddev_pop(d)": lambda rows, chance: math.sqrt(moments_in_parts(rows, chance).m2 / len(rows)),
    "covar_pop(d, e)": lambda rows, chance: moments_in_parts(rows, chance).c / len(rows),
}

SHAPES = {
    "cancelling": lambda chance: chance.choice([1e9, -1e9, 1e9 + 0.1, 0.1]),
    "ordinary": lambda chance: chance.uniform(-5, 50),
    "all alike": lambda _: 0.1,
    "far from zero": lambda chance: 1e8 + chance.uniform(0, 1e-3),
}


class TestHowFar:
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("sql", COMPUTED)
    def test_every_order_of_the_events_is_allowed(self, sql, shape):
        chance = random.Random(f"{sql} {shape}")
        for _ in range(3):
            rows = [(SHAPES[shape](chance), chance.uniform(-3, 1e6)) for _ in range(chance.choice([2, 3, 100]))]
            values = []
            for _ in range(12):
                chance.shuffle(rows)
                values.append(COMPUTED[sql](rows, chance))
            assert max(values) - min(values) <= slack(sql, rows)

    def test_a_sum_that_cancels_is_moved_by_its_addends_and_not_by_itself(self):
        rows = [(1e9, 0.0), (-1e9, 0.0), (0.1, 0.0)]
        # The sum is 0.1 in one order and 0.1000000238 in another.
        assert 2.4e-8 < slack("sum(d)", rows) < 1e-5

    @pytest.mark.parametrize("sql", ["sum(d)", "avg(d)", "stddev(d)", "variance(d)"])
    def test_a_value_that_is_wrong_in_its_tenth_digit_is_not_allowed(self, sql):
        chance = random.Random(4)
        rows = [(chance.uniform(1, 2), 0.0) for _ in range(100)]
        (value,) = by_duckdb(rows, [sql])
        assert slack(sql, rows) < abs(value) * 1e-10

    def test_of_values_that_hardly_differ_a_correlation_says_nothing(self):
        (each,) = found({"m": "corr(d, e)"}).values()
        unknown = sqlglot.transpile(each.values.partition("(")[2].partition(", NULL")[0], read="spark", write="duckdb")
        for rows, expected in (
            ([(0.1, 1.0), (0.1, 2.0), (0.1, 3.0)], True),
            ([(1.0, 1.0), (2.0, 2.1), (3.0, 2.9)], False),
        ):
            (slack,) = by_duckdb(rows, [each.parts["__part_0_slack"]])
            given = unknown[0].replace("__part_0_slack", "NULL" if slack is None else repr(slack))
            with duckdb.connect() as connection:
                assert connection.execute(f"SELECT {given}").fetchall() == [(expected,)]


class TestValues:
    def test_an_expression_of_a_sum_is_computed_from_each_end(self):
        (each,) = found({"m": "round(sum(d), 1)"}).values()
        ends = (f"ROUND((__part_0 {sign} coalesce(1 * __part_0_slack, 0D)), 1)" for sign in "-+")
        assert each.values == f"concat(array(`m`), array({', '.join(ends)}))"

    def test_of_several_sums_each_is_moved_alone_and_further(self):
        several = found({"ratio": "sum(d) / avg(f)", "other": "sum(d)"})
        assert several["ratio"].values.count("coalesce(3 * ") == 4
        assert several["other"].values.count("coalesce(3 * ") == 2
        names = [name for each in several.values() for name in each.parts]
        assert len(names) == len(set(names)) == 6

    def test_what_is_exact_beside_a_sum_stays_as_it_is(self):
        (each,) = found({"m": "named_struct('mean', avg(d), 'n', count(*) FILTER (WHERE i > 1))"}).values()
        assert each.parts["__part_1"] == "COUNT(*) FILTER (WHERE i > 1)"
        assert "COUNT" not in each.values
        assert each.values.count("__part_1 AS n") == 2

    def test_a_choice_is_any_of_those_that_tie(self):
        (each,) = found({"m": "upper(max_by(s, i) FILTER (WHERE s <> 'x'))"}).values()
        assert each.parts == {
            "__part_0": "max_by(named_struct('x', s, 'y', i), i, 1000) FILTER (WHERE (i) IS NOT NULL AND (s <> 'x'))",
            "__part_0_best": "max(i) FILTER (WHERE (i) IS NOT NULL AND (s <> 'x'))",
        }
        assert "array(UPPER(__part_0_one))" in each.values

    @pytest.mark.parametrize("condition", ["", " FILTER (WHERE i > 1)"])
    def test_an_order_goes_with_its_function(self, condition):
        exact = f"PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY d){condition}"
        (each,) = found({"m": f"{exact} - avg(d)"}).values()
        assert exact in each.parts.values()
        assert "WITHIN" not in each.values
        assert "FILTER" not in each.values

    def test_texts_are_joined_as_they_were_beside_a_sum(self):
        (each,) = found({"m": "concat(listagg(s) WITHIN GROUP (ORDER BY s), CAST(avg(d) AS STRING))"}).values()
        assert "LISTAGG(s, '') WITHIN GROUP (ORDER BY s)" in each.parts.values()

    def test_a_choice_among_no_events_is_null_beside_others(self):
        (each,) = found({"m": "named_struct('a', max_by(s, i), 'b', max_by(s, d))"}).values()
        # As many values as there are pairs; a choice that has no event counts as one.
        first, second = (f"filter(__part_{n}, e -> e.y <=> __part_{n}_best)" for n in (0, 1))
        pairs = f"greatest(size({first}), 1) * greatest(size({second}), 1)"
        assert each.values.startswith(f"IF({pairs} >= 1000, NULL, ")
        for ties in (first, second):
            chosen = f"transform({ties}, e -> e.x)"
            assert f"IF(size({ties}) > 0, {chosen}, array(get({chosen}, 0)))" in each.values

    def test_a_condition_of_a_sum_is_one_of_its_slack(self):
        (each,) = found({"m": "sum(d) FILTER (WHERE i > 1)"}).values()
        assert each.parts["__part_0_slack"].count("FILTER (WHERE i > 1)") == 2


def test_an_audit_says_which_columns_it_has_not_compared():
    found = Audit(pipeline="p", table="gold.p", recounted="all", rows=3, not_compared=("p95: percentile_approx() …",))
    assert found.sound
    assert "  -     not compared: p95: percentile_approx() …" in audit_text(found).splitlines()
