"""What a backfill or a repair says of itself in the commits by which it revised a result."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import ValidationError

from spark_jobs.lake.accounting.ledger import LedgerEntry
from spark_jobs.lake.checkpoints.lineage import lineage
from spark_jobs.lake.commit_records.history import commit_at, info_of, latest_version, revision_commits
from spark_jobs.lake.commit_records.stamps import SIGN, decode
from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.formats import FormatError, PersistedValue
from spark_jobs.plan.tables import Role

Mode = Literal["corrected", "as-streamed"]


class Revision(PersistedValue):
    """A commit that revised rows which a stream had written.

    Attributes:
        tidemark: which tells it from the commits of a stream and of other programs.
        pipeline: its name.
        epoch: of the checkpoint whose results it revised.
        run: of the backfill or the repair; its commits to several tables have one run.
        number: of the slice.
        role: which of the pipeline's tables it wrote.
        mode: `corrected`: late events are counted in; `as-streamed`: they are not.
        begin_us: rows that are placed at or after it were revised, microseconds since 1970; None: those that late
            events belong to.
        end_us: up to it, itself left out.
        late_version: the version of the table of late events whose rows were taken into account.
        replaced: version of the table in which another program had changed rows of the range, which are put right with
            this commit -> whether nothing of that change is left.
        ledger: what was read, and by how many rows and pairs the table has grown; with the table of all groups, which
            is the result unless that is picked out of them.
    """

    tidemark: Literal["revision"] = "revision"
    pipeline: str
    epoch: int
    run: str
    number: int = 0
    role: Role
    mode: Mode = "corrected"
    begin_us: int | None = None
    end_us: int | None = None
    late_version: int | None = None
    replaced: Mapping[int, bool] = {}
    ledger: LedgerEntry | None = None

    def encode(self) -> str:
        """As the commit's `userMetadata`."""
        return self.model_dump_json(exclude_none=True)


def decode_revision(commit: Mapping[str, Any]) -> Revision | None:
    """The revision that a commit is; None where it is none.

    Raises:
        FormatError: if it is one, in a form that this version cannot read.
    """
    text = commit.get("userMetadata")
    if not isinstance(text, str) or '"revision"' not in text:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value, dict) or value.get(SIGN) != "revision":
        return None
    try:
        return Revision.model_validate(value)
    except ValidationError as error:
        raise FormatError(f"a revision cannot be read: {error}. Nothing was changed now.") from error


def newest_writer(lake: Lake, table: str) -> str:
    """Who made the newest commit of a table, in words."""
    return writer_of(lake, table, latest_version(lake, table))


def writer_of(lake: Lake, table: str, version: int) -> str:
    """Who made a commit of a table, in words.

    Args:
        lake: where.
        table: such as `gold.top_products`.
        version: of the commit.
    """
    info = commit_at(lake, table, version) or {}
    at = f"(version {version}, {info.get('operation', 'of an unknown operation')})"
    if (stamp := decode(info)) is not None:
        return f"the stream of `{stamp.pipeline}`, batch {stamp.batch_id} {at}"
    if (revision := decode_revision(info)) is not None:
        return f"{revision.run} of `{revision.pipeline}` {at}"
    return f"another program {at}"


def revisions(lake: Lake, table: str, pipeline: str, epoch: int) -> list[tuple[int, Revision]]:
    """Version and revision, of one epoch of a pipeline, from the history of a table, oldest first."""
    found, which = [], lineage(lake, pipeline, epoch)
    for version, actions in revision_commits(lake, table):
        revision = decode_revision(info_of(actions))
        mine = revision is not None and revision.pipeline == pipeline
        if mine and revision is not None and which.counts(table, version, revision.epoch):
            found.append((version, revision))
    return found


def with_revised(terms: Mapping[str, int], found: Iterable[Revision]) -> dict[str, int]:
    """The sums of a ledger's terms with what revisions have added to the tables, or taken away."""
    sums = dict(terms)
    for revision in found:
        for term, count in (revision.ledger.terms if revision.ledger else {}).items():
            sums[term] = sums.get(term, 0) + count
    return sums
