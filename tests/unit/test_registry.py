"""Finding definitions: in the folder of pipelines, in a user's file, by name."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import spark_jobs.pipelines
from spark_jobs.pipelines import (
    UnknownPipelineError,
    load_file,
    problems,
    registered_readers,
    registry,
    resolve,
    with_sources,
)
from spark_jobs.spec import DefinitionError, Ingest, Pipeline

ROOT = Path(__file__).parents[2]
HEAVY = ("pyspark", "delta", "py4j", "pandas", "numpy", "pyarrow", "deltalake", "duckdb", "obstore", "airflow")

A_TOTAL = """
    from spark_jobs.spec import Aggregate, Pipeline, Sink, Table

    {name} = Pipeline(
        name="{name}",
        source=Table("bronze.sales"),
        steps=(Aggregate(measures={{"n": "count(*)"}}),),
        sink=Sink("{table}", mode="update"),
    )
"""


@pytest.fixture
def a_file(tmp_path):
    def write(text, name="mine.py"):
        path = tmp_path / name
        path.write_text(dedent(text))
        return path

    return write


def a_total(name="totals", table="gold.totals"):
    return dedent(A_TOTAL.format(name=name, table=table))


def test_importing_the_pipelines_loads_every_definition_and_nothing_heavy():
    program = f"""
        import sys
        from spark_jobs.pipelines import registry
        print(len(registry()), *(name for name in {HEAVY} if name in sys.modules))
    """
    done = subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == [str(len(registry()))]


def test_every_registered_definition_is_known_by_its_own_name_in_order():
    assert len(registry()) >= 2
    assert list(registry()) == sorted(registry())
    for name, definition in registry().items():
        assert isinstance(definition, Ingest | Pipeline)
        assert definition.name == name


@pytest.fixture
def registered(tmp_path, monkeypatch):
    """Writes files beside the registered ones."""
    monkeypatch.setattr(spark_jobs.pipelines, "__path__", [*spark_jobs.pipelines.__path__, str(tmp_path)])

    def write(**files):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(dedent(text))
            monkeypatch.delitem(sys.modules, f"spark_jobs.pipelines.{name}", raising=False)
        return tmp_path

    return write


def test_a_file_that_cannot_be_loaded_leaves_the_other_readers(registered):
    """Drivers ask for them when they start: that somebody edits a file must not keep them from it."""
    before = set(registry())
    folder = registered(broken_one="import nosuchlib", added_one=a_total("added"))
    told = []
    names = {reader.name for reader in registered_readers(told.append)}
    assert names == {"added", *(name for name in before if isinstance(registry()[name], Pipeline))}
    assert told == [f"file {folder / 'broken_one.py'}, line 1: ModuleNotFoundError: No module named 'nosuchlib'"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\nimport nosuchlib", "line 2: ModuleNotFoundError: No module named 'nosuchlib'"),
        ("x = (", "line 1: SyntaxError: '(' was never closed"),
        ("from tidemark import Table\nTable('sales')", "line 2: Table `sales`: name"),
        ("import sys\nsys.exit('no')", "line 2: SystemExit: no"),
    ],
)
def test_a_file_that_cannot_be_loaded_concerns_its_own_pipelines_only(registered, text, told):
    before = dict(registry())
    folder = registered(broken_two=text, added_two=a_total("added"))
    assert set(registry()) == {*before, "added"}
    assert [each.name for each in resolve(["top_products", "added"])] == ["top_products", "added"]
    assert [each.message.startswith(f"file {folder / 'broken_two.py'}, {told}") for each in problems()] == [True]
    with pytest.raises(
        UnknownPipelineError, match=r"pipeline `mine`: .*Left out until it is fixed: file .*broken_two\.py"
    ):
        resolve(["mine"])


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (("one", "gold.other"), r"pipeline `one` is defined in first_one\.py and second_one\.py: rename one"),
        (("other", "gold.one"), r"`one` \(first_one\.py\) and `other` \(second_one\.py\) write gold\.one"),
    ],
)
def test_two_files_that_claim_the_same_concern_nobody_else(registered, other, told):
    before = set(registry())
    registered(
        first_one=a_total("one", "gold.one"), second_one=a_total(*other), third_one=a_total("three", "gold.three")
    )
    assert set(registry()) == {*before, "three"}
    with pytest.raises(DefinitionError, match=told):
        resolve([other[0]])
    assert [each.name for each in resolve(["three"])] == ["three"]
    assert {"one", other[0]} <= {reader.name for reader in registered_readers([].append)}


def test_a_registered_pipeline_that_another_file_imports_is_no_second_one(registered):
    registered(importing_one="from spark_jobs.pipelines.sales import ingest_sales\n" + a_total("added"))
    assert {"added", "ingest_sales"} <= set(registry())
    assert problems() == ()


def test_the_registry_cannot_be_changed():
    with pytest.raises(TypeError):
        registry()["mine"] = None


def test_every_registered_definition_survives_being_kept_as_json():
    for definition in registry().values():
        assert type(definition).model_validate_json(definition.to_json()) == definition


def test_names_are_resolved_in_the_order_given_and_once():
    assert [d.name for d in resolve(["top_products", "ingest_sales", "top_products"])] == [
        "top_products",
        "ingest_sales",
    ]


def test_an_unknown_name_is_told_with_the_nearest_and_all_that_are_known():
    with pytest.raises(UnknownPipelineError) as unknown:
        resolve(["top_product"])
    message = str(unknown.value)
    assert message.startswith("pipeline `top_product`: expected a registered name or a path to a file")
    assert "Did you mean `top_products`?" in message
    assert "ingest_sales" in message


def test_without_anything_near_it_no_name_is_suggested():
    with pytest.raises(UnknownPipelineError) as unknown:
        resolve(["zzz"])
    assert "Did you mean" not in str(unknown.value)


@pytest.mark.parametrize("name", ["nowhere.py", ".", "tests", "README.md", ""])
def test_a_path_that_is_no_python_file_is_an_unknown_name(name):
    with pytest.raises(UnknownPipelineError):
        resolve([name])


def test_a_file_gives_what_it_defines(a_file):
    path = a_file(a_total("one", "gold.one") + a_total("two", "gold.two"))
    assert [definition.name for definition in load_file(path)] == ["one", "two"]
    assert [definition.name for definition in resolve([str(path)])] == ["one", "two"]


def test_a_value_with_two_names_is_one_definition(a_file):
    assert len(load_file(a_file(a_total() + "again = totals"))) == 1


def test_a_registered_definition_is_not_started_by_a_file_that_imports_it(a_file):
    path = a_file("from spark_jobs.pipelines.sales import ingest_sales\n" + a_total())
    assert [definition.name for definition in load_file(path)] == ["totals"]


def test_a_file_without_a_definition_is_refused(a_file):
    with pytest.raises(DefinitionError, match=r"mine\.py: expected an Ingest or a Pipeline at its top level"):
        load_file(a_file("x = 1"))


def test_a_file_that_is_no_python_is_refused(a_file):
    with pytest.raises(DefinitionError, match=r"mine\.txt: expected a Python file"):
        load_file(a_file("x = 1", "mine.txt"))


def test_a_wrong_definition_in_a_file_is_told_as_it_is(a_file):
    with pytest.raises(DefinitionError, match=r"Sink: table: .*got 'totals'"):
        load_file(a_file(a_total(table="totals")))


def test_two_pipelines_that_write_to_one_table_are_refused(a_file):
    path = a_file(a_total("one", "gold.same") + a_total("two", "gold.same"))
    with pytest.raises(DefinitionError, match=r"pipelines `one` and `two` both write gold\.same: rename one sink"):
        load_file(path)


def test_two_pipelines_of_one_name_are_refused(a_file):
    one, other = a_file(a_total(table="gold.a"), "a.py"), a_file(a_total(table="gold.b"), "b.py")
    with pytest.raises(DefinitionError, match="pipeline `totals` is defined twice: rename one"):
        resolve([str(one), str(other)])


@pytest.mark.parametrize("beside", [[], ["top_products"]])
def test_a_file_may_not_write_to_the_table_of_a_registered_pipeline(a_file, beside):
    path = a_file(a_total(table="gold.top_products"))
    with pytest.raises(DefinitionError, match=r"`totals`: writes gold\.top_products, .* table of `top_products`"):
        resolve([*beside, str(path)])


def test_of_two_ingests_that_could_fill_a_table_the_named_one_does():
    mine = registry()["ingest_sales"].model_copy(update={"name": "my_ingest"})
    names = [each.name for each in with_sources([mine, registry()["top_products"]])]
    assert names == ["my_ingest", "top_products"]
    assert [each.name for each in with_sources([registry()["top_products"]])] == ["ingest_sales", "top_products"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\ny = missing\n", r"mine\.py, line 2: NameError: name 'missing' is not defined"),
        ("x = (\n", r"mine\.py, line 1: SyntaxError"),
        ("import no_such_module\n", r"mine\.py, line 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("from tidemark import Table\n\n\nTable('sales')\n", r"mine\.py, line 4: Table `sales`: name"),
    ],
)
def test_a_file_that_does_not_run_is_told_with_the_line(a_file, text, told):
    with pytest.raises(DefinitionError, match=told):
        load_file(a_file(text))


def test_one_of_several_definitions_of_a_file_is_named_after_a_colon(a_file):
    path = a_file(a_total("one", "gold.one") + a_total("two", "gold.two"))
    assert [definition.name for definition in resolve([f"{path}:two"])] == ["two"]
    with pytest.raises(UnknownPipelineError, match=r"pipeline `three`.*Registered: one, two"):
        resolve([f"{path}:three"])
