"""Delta tables of other programs, written by hand: with a protocol and settings that Tidemark never gives a table."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs.lake import Lake

OLDER = {"minReaderVersion": 2, "minWriterVersion": 5}
"""Protocol in which features have no lists yet; it allows column mapping."""

BY_NAME = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}


def write_by_hand(
    lake: Lake,
    table: str,
    *,
    protocol: Mapping[str, Any] = OLDER,
    settings: Mapping[str, str] = BY_NAME,
    rows: Sequence[int] = range(1, 10),
    prefix: str = "col-",
) -> None:
    """Writes a table with columns `n` and `name`, a commit and a file for each row.

    Args:
        lake: where.
        table: such as `gold.foreign`.
        protocol: as the log has it.
        settings: `configuration` of its metadata.
        rows: the values of `n`.
        prefix: of the columns' names in the files.
    """
    folder = Path(lake.table_path(table))
    (folder / "_delta_log").mkdir(parents=True)
    fields = [
        {
            "name": name,
            "type": kind,
            "nullable": True,
            "metadata": {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"{prefix}{name}"},
        }
        for number, (name, kind) in enumerate((("n", "long"), ("name", "string")), start=1)
    ]
    metadata = {
        "id": "7f4ae4a2-6a3c-4f0a-9f55-0f1d3a3e6b11",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": dict(settings),
    }
    _commit(folder, 0, {"protocol": dict(protocol)}, {"metaData": metadata})
    for version, n in enumerate(rows, start=1):
        path = f"part-{version}.parquet"
        values = {f"{prefix}n": n, f"{prefix}name": f"row {n}"}
        pq.write_table(pa.table({name: [value] for name, value in values.items()}), folder / path)
        statistics = {
            "numRecords": 1,
            "minValues": values,
            "maxValues": values,
            "nullCount": dict.fromkeys(values, 0),
        }
        added = {
            "path": path,
            "partitionValues": {},
            "size": (folder / path).stat().st_size,
            "modificationTime": 1_700_000_000_000 + version,
            "dataChange": True,
            "stats": json.dumps(statistics),
        }
        _commit(folder, version, {"commitInfo": {"timestamp": 1_700_000_000_000 + version}}, {"add": added})


def _commit(folder: Path, version: int, *actions: Mapping[str, Any]) -> None:
    text = "".join(f"{json.dumps(action)}\n" for action in actions)
    (folder / "_delta_log" / f"{version:020d}.json").write_text(text)
