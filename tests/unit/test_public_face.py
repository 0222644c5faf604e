"""The public face: what documents show is there, and to write a definition needs neither Spark nor a lake."""

import re
import subprocess
import sys
from pathlib import Path

import tidemark
from spark_jobs import spec

DOCUMENTS = Path(__file__).parents[2] / "docs"


def test_every_class_that_the_vocabulary_shows_can_be_imported() -> None:
    shown = set(re.findall(r"`([A-Z][a-z]\w+)[`(.]", (DOCUMENTS / "reference/vocabulary.md").read_text()))
    assert len(shown) > 25
    assert shown <= set(tidemark.__all__)


def test_it_gives_the_values_that_the_product_knows() -> None:
    assert all(getattr(tidemark, name) is getattr(spec, name) for name in tidemark.__all__)
    assert list(tidemark.__all__) == sorted(tidemark.__all__)


def test_a_definition_is_written_without_spark_and_without_a_lake() -> None:
    ask = "import sys, tidemark; print({'pyspark', 'deltalake', 'duckdb', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
