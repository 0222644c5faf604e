"""What of a pipeline does not fit its tables is known before Spark starts."""

import pytest
from typer.testing import CliRunner

from spark_jobs.cli import app
from spark_jobs.control.desired import deployment
from spark_jobs.control.desired.deployment import Action
from spark_jobs.lake.errors import MissingTableError
from spark_jobs.lake.tables.fitting import refuse_misfit
from spark_jobs.operations.run.plan import plan_run
from spark_jobs.pipelines import registry
from spark_jobs.plan.fitting import misfits
from spark_jobs.spec import (
    METADATA_COLUMNS,
    DefinitionError,
    Enrich,
    Ingest,
    Join,
    Pipeline,
    Select,
    Table,
    Union,
    Where,
)
from tests.support.builders import a_lake, a_pipeline, an_aggregate, an_ingest, write

SALES = {
    "product_id": "string",
    "Quantity": "int",
    "sold_at": "timestamp",
    "price": "decimal(10,2)",
    "paid": "boolean",
    "tags": "array",
    "place": "struct",
}
KNOWN = {"bronze.sales": SALES, "silver.products": {"product_id": "string", "label": "string"}}


def said(*steps, known=KNOWN, **changes):
    return list(misfits(a_pipeline(**{"steps": (*steps, an_aggregate()), **changes}), known))


def test_a_pipeline_that_fits_is_not_spoken_of():
    assert said(Where("quantity > 1 AND place.city = 'x' AND size(filter(tags, tag -> tag = 'y')) > 0")) == []


@pytest.mark.parametrize(
    ("steps", "what"),
    [
        ((Where("quantty > 1"),), "Where reads `quantty`, which bronze.sales does not have. Did you mean `Quantity`?"),
        ((Select({"twice": "2 * pric"}),), "Select 'twice' reads `pric`"),
        (
            (Enrich("silver.products", on=("product_id",), columns={"a": "lable"}),),
            "which silver.products does not have",
        ),
        ((Enrich("silver.products", on=("product_id",), columns={"a": "label"}), Where("b = 'x'")), "Where reads `b`"),
    ],
)
def test_a_misspelt_column_is_told_with_the_one_that_was_meant(steps, what):
    (told,) = said(*steps)
    assert what in told


def test_keys_measures_and_the_event_time_are_looked_for_too():
    assert "Aggregate by reads `produkt_id`" in said(steps=(an_aggregate(by=("produkt_id",)),))[0]
    assert "Aggregate measure 'units' reads `n`" in said(steps=(an_aggregate(measures={"units": "sum(n)"}),))[0]
    assert "event_time reads `sold`" in said(event_time="sold")[0]


def test_what_is_selected_of_a_table_is_looked_for_in_the_table():
    table = Table("bronze.sales", select={"product_id": "product", "sold_at": "sold_at", "quantity": "quantity"})
    (told,) = said(source=table)
    assert told.startswith("select 'product_id' of bronze.sales reads `product`")
    two = Union(table.model_copy(update={"name": "bronze.other"}), table)
    assert said(source=two) == []  # of the first one nothing is known


def test_both_sides_of_a_join_are_looked_at():
    join = Join(Table("bronze.payments"), on=("product_id",), event_time="paid_at", within="1 hour")
    known = {**KNOWN, "bronze.payments": {"product_id": "string", "payed_at": "timestamp"}}
    (told,) = said(steps=(join,), known=known)
    assert "Join event_time reads `paid_at`, which bronze.payments does not have. Did you mean `payed_at`?" in told


@pytest.mark.parametrize(
    "condition", ["quantity = sold_at", "paid > 1", "sold_at IN (1, 2)", "tags = 'x'", "price BETWEEN sold_at AND 3"]
)
def test_values_that_cannot_be_compared_are_told(condition):
    assert "compares" in said(Where(condition))[0]


@pytest.mark.parametrize(
    "condition",
    ["quantity = '1'", "sold_at > '2026-11-01'", "quantity < price", "cast(quantity AS STRING) = 'x'", "paid = true",
     "date(sold_at) = sold_at", "quantity + 1 = sold_at IS NULL"],
)  # fmt: skip
def test_values_that_may_be_compared_are_not(condition):
    assert said(Where(condition)) == []


def test_every_registered_pipeline_fits_what_its_ingests_write():
    ingests = [each for each in registry().values() if isinstance(each, Ingest)]
    known = {each.sink.table: {**dict.fromkeys(METADATA_COLUMNS, ""), **each.payload} for each in ingests}
    pipelines = [each for each in registry().values() if isinstance(each, Pipeline)]
    assert {each.name: list(misfits(each, known)) for each in pipelines} == {each.name: [] for each in pipelines}


@pytest.fixture
def lake(tmp_path):
    return a_lake(tmp_path / "lake")


MISSPELT = a_pipeline(name="misspelt", steps=(an_aggregate(by=("produkt_id",)),))


def test_of_several_pipelines_those_that_fit_are_run(lake):
    write(lake, "bronze.sales", {"product_id": ["p"], "quantity": [1], "sold_at": ["x"]})
    plan = plan_run(lake, [MISSPELT, a_pipeline()])
    assert ([each.name for each in plan.definitions], plan.nothing_to_do) == (["hourly_sales"], None)
    ((name, error),) = plan.refused
    assert (name, type(error)) == ("misspelt", DefinitionError)
    assert "Nothing was started or written" in str(error)


def test_a_table_that_is_not_there_is_told_unless_the_run_makes_it(lake):
    with pytest.raises(MissingTableError, match="Fill it with an ingest first"):
        refuse_misfit(lake, a_pipeline())
    fills = an_ingest(columns={"product_id": "STRING", "quantity": "INT", "sold_at": "TIMESTAMP"})
    refuse_misfit(lake, a_pipeline(), [fills])
    with pytest.raises(DefinitionError, match="Did you mean `product_id`"):
        refuse_misfit(lake, MISSPELT, [fills])


def test_an_ingest_that_lets_more_pass_than_its_reader_takes_is_told(lake):
    computed = {"product_id": "product_id", "quantity": "quantity", "sold_at": "sold_at - INTERVAL 1 HOUR"}
    fills = an_ingest(columns={"product_id": "STRING", "quantity": "INT", "sold_at": "TIMESTAMP"}, max_future="1 day")
    refuse_misfit(lake, a_pipeline(max_future="1 day"), [fills])
    refuse_misfit(lake, a_pipeline(source=Table("bronze.sales", select=computed)), [fills])
    with pytest.raises(DefinitionError, match="1 day ahead of their arrival"):
        refuse_misfit(lake, a_pipeline(max_future="1 hour"), [fills])


def test_a_deploy_of_a_misspelt_column_is_refused_with_its_text(lake):
    assert [each.action for each in deployment.plan(lake, [MISSPELT]).steps] == [Action.START]
    write(lake, "bronze.sales", {"product_id": ["p"], "quantity": [1], "sold_at": ["x"]})
    (step,) = deployment.plan(lake, [MISSPELT]).steps
    assert (step.action, "Did you mean `product_id`?" in step.why) == (Action.REFUSED, True)
    assert [each.action for each in deployment.plan(lake, [a_pipeline()]).steps] == [Action.START]


def test_a_run_with_a_misspelt_column_starts_no_spark(lake, tmp_path, monkeypatch):
    write(lake, "bronze.sales", {"product_id": ["p"], "quantity": [1], "sold_at": ["x"]})
    file = tmp_path / "mine.py"
    file.write_text(
        "from tidemark import Pipeline, Sink, Table, Where\n"
        "mine = Pipeline(name='mine', source=Table('bronze.sales'), event_time='sold_at', "
        "steps=(Where('quantty > 1'),), sink=Sink('gold.mine'))\n"
    )
    monkeypatch.setattr("spark_jobs.console.running.session", None)
    done = CliRunner().invoke(app, ["run", str(file), "--lake", lake.uri])
    assert done.exit_code == 1
    assert "error: pipeline `mine` does not fit its source: Where reads `quantty`" in " ".join(done.output.split())
