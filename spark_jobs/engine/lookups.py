"""Tables in which a pipeline looks columns up: each plan takes one version of each, and is made again for a newer one.

Spark makes a streaming plan once and keeps it. So the version is part of the plan: a batch that is to run while a newer
version has other rows ends the query before it has done anything, and the same batch runs in the new plan. A batch of
which a table has a part already is run with the version that this part was made with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import duckdb
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, IntegralType, StructType

from spark_jobs.commits.tables import SchemaMismatchError
from spark_jobs.engine.query import PlanOutdatedError
from spark_jobs.lake import Lake
from spark_jobs.lake.accounting.ledger_table import changes_rows
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import actions_at
from spark_jobs.lake.errors import CheckpointError, MissingTableError, TidemarkError
from spark_jobs.lake.tables import opening as tables
from spark_jobs.spec import Enrich
from spark_jobs.spec.names import in_duckdb, in_spark


class LookupMovedError(PlanOutdatedError):
    """A table has a newer version than the plan."""


class RepeatedKeyError(TidemarkError):
    """A table in which columns are looked up has a key more than once: an event would become several."""


def refuse_keys_of_other_types(pipeline: str, step: Enrich, events: StructType, table: StructType) -> None:
    """Refuses to compare a key with one of another type.

    Spark would cast one of them, and so find several rows for an event: the number 7 is both `'7'` and `'07'`. Whole
    numbers of different sizes are the same numbers.

    Args:
        pipeline: which looks the columns up.
        step: by which it does.
        events: what meets the step.
        table: in which it looks.

    Raises:
        SchemaMismatchError: if there is such a key.
    """
    given, held = ({field.name.casefold(): field.dataType for field in each} for each in (events, table))
    for key in step.on:
        mine, theirs = given.get(key.casefold()), held.get(key.casefold())
        # A column that is not there Spark names itself.
        if mine is None or theirs is None or _same(mine, theirs):
            continue
        told, wanted = mine.simpleString(), theirs.simpleString()
        raise SchemaMismatchError(
            f"pipeline `{pipeline}`: Enrich compares `{key}` of its events, {told}, with `{key}` of {step.table}, "
            f"{wanted}. Nothing was started or written. Cast it with `select` on the source: "
            f'{{…, "{key}": "CAST({in_spark(key)} AS {wanted.upper()})"}}, or write {step.table} with {told} keys.'
        )


def _same(one: DataType, other: DataType) -> bool:
    return one == other or (isinstance(one, IntegralType) and isinstance(other, IntegralType))


@dataclass
class Lookups:
    """The versions that a plan takes.

    Attributes:
        spark: the session.
        lake: where.
        pipeline: whose plan it is.
        steps: that look columns up.
        versions: table -> version of the plan.
        ids: table -> id of the Delta table of that version.
    """

    spark: SparkSession
    lake: Lake
    pipeline: str
    steps: Sequence[Enrich]
    versions: dict[str, int] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._seen: dict[str, int] = {}

    def take(self, versions: Mapping[str, int], ids: Mapping[str, str]) -> dict[str, DataFrame]:
        """Takes a version of each table, the newest where none is given.

        Args:
            versions: with which the batch was begun.
            ids: of the tables that had these versions, as far as that is known.

        Raises:
            MissingTableError: if one does not exist.
            CheckpointError: if one was made anew since a batch was begun with it.
            RepeatedKeyError: if one has a key twice.
        """
        frames = {}
        for step in self.steps:
            if not tables.exists(self.lake, step.table):
                raise MissingTableError(
                    f"pipeline `{self.pipeline}` looks columns up in {step.table}, which does not exist in "
                    f"{self.lake.uri}. Nothing was started. Run the pipeline that fills it first."
                )
            opened = tables.open_table(self.lake, step.table)
            self.ids[step.table] = str(opened.metadata().id)
            if ids.get(step.table, self.ids[step.table]) != self.ids[step.table]:
                raise CheckpointError(
                    f"pipeline `{self.pipeline}`: a batch was begun with version {versions[step.table]} of "
                    f"{step.table}, which was removed and made anew since: the version of this number is another one. "
                    "Nothing was started or written. Bring the table back as it was, or begin a new epoch: "
                    f"{command('reset', self.pipeline, '--empty-tables')}"
                )
            version = versions.get(step.table, opened.version())
            self._refuse_repeated_keys(step, version)
            self.versions[step.table] = self._seen[step.table] = version
            reader = self.spark.read.format("delta").option("versionAsOf", version)
            frames[step.table] = reader.load(self.lake.table_path(step.table))
        return frames

    def moved(self) -> bool:
        """Whether a table has other rows by now; commits that change none, as those of a ledger, do not count."""
        return any(self._has_moved(step.table) for step in self.steps)

    def _has_moved(self, table: str) -> bool:
        while (actions := actions_at(self.lake, table, self._seen[table] + 1)) is not None:
            if changes_rows(actions):
                return True
            self._seen[table] += 1
        return False

    def _refuse_repeated_keys(self, step: Enrich, version: int) -> None:
        keys = tables.open_table(self.lake, step.table, version=version).to_pyarrow_dataset()
        names = ", ".join(map(in_duckdb, step.on))
        present = " AND ".join(f"{in_duckdb(name)} IS NOT NULL" for name in step.on)
        with duckdb.connect() as connection:
            connection.register("lookup", keys)
            found = connection.execute(
                f"SELECT {names} FROM lookup WHERE {present} GROUP BY ALL HAVING count(*) > 1 LIMIT 1"
            ).fetchone()
        if found is not None:
            key = ", ".join(step.on)
            query = f"SELECT {names}, count(*) FROM {step.table} GROUP BY ALL HAVING count(*) > 1"
            raise RepeatedKeyError(
                f"pipeline `{self.pipeline}`: {step.table} has more than one row with the same {key} (version "
                f"{version}): each event with this key would become several. Nothing was written. Leave one row of "
                "each key in the table, or look up by more columns. Find them: "
                f"{command('sql', query)}"
            )
