"""The rules of the project's structure find what they forbid."""

import pytest

from infra.lint_structure import problems


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("isinstance(window, Session)", "asks whether something is a Session"),
        ("isinstance(step, Where | Select)", "asks whether something is a Select"),
        ("match step:\n    case Aggregate():\n        pass", "asks whether something is a Aggregate"),
        ("isinstance(source, Files) and source.header", "asks whether a source is Files"),
        ("match source:\n    case Kafka(topic=topic):\n        pass", "asks whether a source is Kafka"),
        ('source.kind == "kafka"', "compares the kind of a source"),
        ('source.kind in ("files", "objects")', "compares the kind of a source"),
        ('name = f"{table}__late"', "names a side table by '__late'"),
        ("frame._jdf.count()", "reaches for _jdf"),
        ("opened = DeltaTable(lake.table_uri(table))", "opens a table unasked what it needs"),
        ('lake.store.list_with_delimiter(f"{folder}/")["objects"]', "takes the mark of a folder for an object"),
    ],
)
def test_what_is_another_layers_business_is_found(source, said):
    (problem, *_) = problems("spark_jobs/engine/some.py", source)
    assert said in problem


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("spark_jobs/plan/operators/some.py", "isinstance(window, Session)"),
        ("spark_jobs/spec/some.py", "isinstance(source, Files)"),
        ("spark_jobs/engine/sources/some.py", "isinstance(source, Kafka)"),
        ("spark_jobs/job/some.py", 'LAGS = {"files": 1, "kafka": 2}'),
        ("spark_jobs/plan/tables.py", 'late = "__late"'),
        ("spark_jobs/spark/some.py", "frame._jdf"),
        ("spark_jobs/lake/some.py", '"""Such as gold.top_products__late."""'),
    ],
)
def test_the_layer_whose_business_it_is_may(path, source):
    assert list(problems(path, source)) == []


@pytest.mark.parametrize("path", ["spark_jobs/cli/some.py", "spark_jobs/console/some.py", "dags/some.py"])
def test_whoever_shows_an_operation_decides_nothing_about_it(path):
    source = "def f():\n    from spark_jobs.control.desired.awaiting import refuse_deployed\n"
    (problem,) = problems(path, source)
    assert "a guard belongs to the plan of its operation" in problem
    assert list(problems("spark_jobs/operations/some/plan.py", source)) == []
