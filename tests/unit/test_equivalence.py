"""Which conditions DuckDB may judge for Spark: those of a list, by the types of what they read."""

import pytest

from spark_jobs.spec import Between, Matches, NotNull, OneOf
from spark_jobs.spec.equivalence import why_unproven

TYPES = {
    "code": "STRING",
    "Price": "DOUBLE",
    "weight": "FLOAT",
    "amount": "DECIMAL(10, 2)",
    "long_amount": "DECIMAL(38, 10)",
    "units": "INT",
    "total": "BIGINT",
    "ok": "BOOLEAN",
    "at": "TIMESTAMP",
    "day": "DATE",
    "tags": "ARRAY<STRING>",
    "local": "TIMESTAMP_NTZ",
}

# The rules for which DuckDB computes another value than Spark, without an error.
DIFFERENT = (
    "dayofweek(at) BETWEEN 2 AND 6",
    "dayname(at) NOT IN ('Sat', 'Sun')",
    "monthname(at) = 'Jan'",
    "weekday(at) < 5",
    r"code LIKE 'A\_%'",
    "code LIKE 'A!_%' ESCAPE '!'",
    "substring(code, 0, 2) = 'A1'",
    "round(Price, 2) = Price",
    "CAST(code AS INT) <= 4",
    "CAST(Price AS STRING) = '1.0'",
    "CAST(code AS BOOLEAN)",
    "size(tags) > 0",
    "format_string('%d', units) = '1'",
    "timestampdiff(DAY, at, at) = 0",
    "upper(code) = 'A'",
    "lower(code) = 'a'",
    "code > 5",
    "at > '2026-01-01'",
    "at > day",
    "local > local",
    "units / 2 > 1",
    "units % total = 0",
    "weight > units",
    "weight > 100000000",
    "long_amount > Price",
    "long_amount > 12345678901234567890123456789.0",
    "Price * amount > 1",
    "long_amount * amount > 1",
    "code RLIKE '^[0-9]+$'",
    "code RLIKE '.'",
    "coalesce(amount, 0.001) > 1",
    "CASE units WHEN 1 THEN ok ELSE NOT ok END",
    "nothing = 1",
)

ALIKE = (
    "units > 0",
    "units BETWEEN 1 AND 5 AND total >= units",
    "amount > 0.01 OR amount IS NULL",
    "amount * units > 100.50",
    "Price >= 0.1",
    "PRICE <> -1.5e3",
    "weight <= 100",
    "NOT ok AND code IN ('EUR', 'CHF')",
    "code LIKE 'A%_'",
    "length(code) <= 12",
    "units % 2 = 0",
    "coalesce(units, 0) > 0",
    "coalesce(code, '') <> ''",
    "CASE WHEN ok THEN units > 1 ELSE total > 1 END",
    "if(ok, units, total) > 3",
    "units <=> total",
    "at >= TIMESTAMP '2026-01-01 00:00:00'",
    "day < DATE '2026-01-01'",
)


@pytest.mark.parametrize("condition", DIFFERENT)
def test_what_is_not_proven_is_left_to_spark(condition: str) -> None:
    assert why_unproven(condition, TYPES)


@pytest.mark.parametrize("condition", ALIKE)
def test_what_is_proven_may_be_judged_by_duckdb(condition: str) -> None:
    assert why_unproven(condition, TYPES) is None


def test_rules_of_the_vocabulary_are_proven_for_the_types_that_they_take() -> None:
    rules = (
        NotNull("tags"),
        NotNull("code"),
        Between("units", min=1, max=5),
        Between("amount", min=0.01),
        Between("Price", min=-1e9, max=1),
        OneOf("code", ("a", "it's", "back\\slash")),
        Matches("code", "[A-Z]{2}-[0-9]+"),
    )
    assert {
        rule.name: why_unproven(rule.condition, TYPES) for rule in rules if why_unproven(rule.condition, TYPES)
    } == {}
