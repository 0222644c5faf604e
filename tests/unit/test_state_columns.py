"""What a user calls the columns of Spark's state."""

import pytest

from spark_jobs.plan.state_columns import Measure, keys_in_state, measures_in_state
from spark_jobs.spec import Aggregate, Deduplicate, Pipeline, Sink, Table, Tumbling, Watermark


def a_pipeline(*steps: Aggregate | Deduplicate, mode: str = "append", **measures: str) -> Pipeline:
    own = steps or (Aggregate(window=Tumbling("1 hour"), by=("k",), measures=measures),)
    return Pipeline(
        name="sums",
        source=Table("bronze.clicks"),
        event_time="t",
        watermark=Watermark(delay="1 minute"),
        steps=own,
        sink=Sink("gold.sums", mode=mode),
    )


def test_an_average_is_of_two_parts_and_what_is_shared_is_kept_once() -> None:
    found = measures_in_state(
        a_pipeline(mean="avg(v)", n="count(*)", same="count(1)", total="sum(v)"),
        ["sum", "count", "count", "sum", "sum"],
    )
    assert found is not None
    assert [(each.name, each.places) for each in found] == [
        ("mean", (0, 1)),
        ("n", (2,)),
        ("same", (2,)),
        ("total", (3,)),
        ("__events", (4,)),
    ]


def test_the_sum_of_decimals_has_a_sign_beside_it() -> None:
    found = measures_in_state(a_pipeline(total="sum(v)", least="min(v)"), ["sum", "isEmpty", "min", "sum"])
    assert found == (Measure("total", (0,)), Measure("least", (2,)), Measure("__events", (3,)))


@pytest.mark.parametrize(
    ("sql", "kept"),
    [
        ("sum(v) / count(*)", ["sum", "count", "sum"]),
        ("sum(abs(v))", ["sum", "sum"]),
        ("max(v)", ["min", "sum"]),
        ("max(v)", ["max", "max", "sum"]),
    ],
)
def test_where_nobody_can_say_which_is_which_no_name_is_given(sql: str, kept: list[str]) -> None:
    assert measures_in_state(a_pipeline(m=sql), kept) is None


def test_each_operator_has_the_keys_of_its_own_step() -> None:
    steps = Deduplicate(keys=("id",), within="1 hour"), Aggregate(by=("k",), measures={"n": "count(*)"})
    pipeline = a_pipeline(*steps, mode="update")
    assert keys_in_state(pipeline, "dedupeWithinWatermark") == ("id",)
    assert keys_in_state(pipeline, "stateStoreSave") == ("k",)
    assert keys_in_state(pipeline, "symmetricHashJoin") is None
