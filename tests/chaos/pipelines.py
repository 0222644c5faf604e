"""What the killed drivers run: the shop's pipelines with pinned batch boundaries (one file a batch)."""

from spark_jobs.pipelines import registry
from spark_jobs.spec import Definition, Ingest


def _one_file_a_batch(definition: Definition) -> Definition:
    changes = {"max_files_per_trigger": 1}
    if isinstance(definition, Ingest):
        # The landing folder is shared by all lakes of a test; it is named by the environment of the driver.
        return definition.model_copy(update={"source": definition.source.model_copy(update=changes)})
    return definition.model_copy(update={"source": definition.source.model_copy(update=changes)})


ingest_sales = _one_file_a_batch(registry()["ingest_sales"])
top_products = _one_file_a_batch(registry()["top_products"])
top_products_live = _one_file_a_batch(registry()["top_products_live"])
shop_totals = _one_file_a_batch(registry()["shop_totals"])
