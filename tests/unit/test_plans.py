"""What each registered pipeline means, as a person reads it: one golden file each, in `tests/unit/plans`.

After a change that is meant, `python -m tests.unit.test_plans` writes them again; read what has changed.
"""

from pathlib import Path

import pytest

from spark_jobs.pipelines import registry
from spark_jobs.plan.describe import describe
from spark_jobs.plan.logical import build
from spark_jobs.spec import Aggregate, Deduplicate, Late, Session, Sink, Tumbling, Watermark
from tests.support.builders import a_pipeline

GOLDEN = Path(__file__).parent / "plans"


@pytest.mark.parametrize("name", registry())
def test_a_plan_says_what_it_said(name):
    assert describe(build(registry()[name])) == (GOLDEN / f"{name}.txt").read_text()


def test_every_golden_file_is_a_pipelines():
    assert {file.stem for file in GOLDEN.glob("*.txt")} == set(registry())


@pytest.mark.parametrize("window", [None, Tumbling("1 hour"), Session("1 hour")])
@pytest.mark.parametrize("late", [Late.DROP, Late.SIDE_OUTPUT])
def test_what_is_late_for_deduplicate_is_kept_whatever_follows(window, late):
    groups = Aggregate(window=window, by=("product_id",), measures={"units": "sum(quantity)"})
    mode = "update" if window is None else "append"
    plan = build(
        a_pipeline(
            steps=(Deduplicate("sale_id", within="1 hour"), groups),
            watermark=Watermark(delay="2 minutes", late=late),
            sink=Sink("gold.hourly_sales", mode=mode),
        )
    )
    kept = late is Late.SIDE_OUTPUT
    assert [table.name for table in plan.tables if table.role == "late"] == ["gold.hourly_sales__late"] * kept
    assert [each.plus for each in plan.invariants if each.label == "late"] == [("late",)] * kept


def write() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for name, definition in registry().items():
        (GOLDEN / f"{name}.txt").write_text(describe(build(definition)))


if __name__ == "__main__":
    write()
