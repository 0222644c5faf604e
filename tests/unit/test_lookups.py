"""Keys by which columns are looked up: of another type they would find several rows, or none."""

import re

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from spark_jobs.commits.tables import SchemaMismatchError
from spark_jobs.engine.lookups import refuse_keys_of_other_types
from spark_jobs.spec import Enrich
from spark_jobs.spec.expressions import columns

STEP = Enrich("silver.customers", on=("customer_id",), columns={"city": "city"})


def keys(kind, name: str = "customer_id") -> StructType:
    return StructType().add(name, kind).add("city", StringType())


def test_a_number_is_not_compared_with_a_text():
    with pytest.raises(SchemaMismatchError) as refused:
        refuse_keys_of_other_types("by_city", STEP, keys(IntegerType()), keys(StringType()))
    assert str(refused.value) == (
        "pipeline `by_city`: Enrich compares `customer_id` of its events, int, with `customer_id` of silver.customers, "
        'string. Nothing was started or written. Cast it with `select` on the source: {…, "customer_id": '
        '"CAST(`customer_id` AS STRING)"}, or write silver.customers with int keys.'
    )


@pytest.mark.parametrize(
    ("events", "table"),
    [(keys(StringType()), keys(StringType())), (keys(IntegerType()), keys(LongType()))],
)
def test_the_same_values_are_compared(events, table):
    refuse_keys_of_other_types("by_city", STEP, events, table)


def test_a_name_in_another_case_is_the_same_column():
    with pytest.raises(SchemaMismatchError, match="Enrich compares `customer_id`"):
        refuse_keys_of_other_types("by_city", STEP, keys(IntegerType()), keys(StringType(), "Customer_ID"))


def test_a_column_that_is_missing_is_left_to_spark_to_name():
    refuse_keys_of_other_types("by_city", STEP, keys(IntegerType()), keys(StringType(), "id"))


def test_what_is_proposed_takes_a_word_of_sql_for_a_name():
    step = Enrich("silver.customers", on=("select",), columns={"city": "city"})
    with pytest.raises(SchemaMismatchError) as refused:
        refuse_keys_of_other_types("by_city", step, keys(IntegerType(), "select"), keys(StringType(), "select"))
    (proposed,) = re.findall('"select": "([^"]+)"', str(refused.value))
    assert columns(proposed) == {"select"}
