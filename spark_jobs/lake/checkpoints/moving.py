"""A lake at another address than the one at which its streams have run.

Tables, offsets and state know no address: they may be moved or copied byte for byte. Two things in a checkpoint do. The
log of Spark's file source knows a file by its whole path. At another address every file would be a new one, and all of
the input would be read again. So a start looks first, and `adopt` makes the log fit. And what describes a keyed
operator names the files of its schemas; a start makes that fit by itself, as nothing is lost by it.
"""

import json
import os
from dataclasses import dataclass
from urllib.parse import unquote

import obstore

from spark_jobs.lake.checkpoints.contents import named_here
from spark_jobs.lake.checkpoints.continuity import refuse_lost_batches, refuse_torn_commits
from spark_jobs.lake.checkpoints.epochs import Epoch, current_epoch
from spark_jobs.lake.checkpoints.spark_log import file_log, file_logs, newest_batch, tables_read
from spark_jobs.lake.commands import command
from spark_jobs.lake.commit_records.history import find_stamp
from spark_jobs.lake.errors import CheckpointError, MissingTableError
from spark_jobs.lake.location import Lake
from spark_jobs.lake.store.durable import replace_object
from spark_jobs.lake.store.folders import objects_below
from spark_jobs.lake.tables.opening import exists, open_table
from spark_jobs.plan.tables import beside
from spark_jobs.spec import Definition, Ingest, definition_from_json

_WILD = frozenset("*?[{")
# What Java leaves as it is in the path of a URI, beside letters and digits.
_PLAIN = frozenset("/-_.!~'()*,;:$&+=@")


def name_state_here(lake: Lake, epoch: Epoch) -> None:
    """Has what describes a keyed operator name the files of its schemas where they are now.

    Args:
        lake: where.
        epoch: whose checkpoint it is; no driver runs it.
    """
    for item in objects_below(lake, f"{epoch.folder}/state/0/_metadata/v2"):
        path = item["path"].removeprefix(f"{epoch.folder}/")
        content = bytes(obstore.get(lake.store, item["path"]).bytes())
        if (fitting := named_here(path, content, lake.path(epoch.folder))) != content:
            replace_object(lake, item["path"], fitting)


class AdoptionRefusedError(CheckpointError):
    """A checkpoint cannot be made to fit the place where its lake is now."""


@dataclass(frozen=True)
class Adoption:
    """What has to be done so that a checkpoint fits the place where its lake is.

    Attributes:
        epoch: whose checkpoint it is.
        before: the lake's address when the stream has run; None: it fits already.
        logs: entries of the file source's log that name files there, the oldest first.
        files: how many they name.
    """

    epoch: Epoch
    before: str | None = None
    logs: tuple[str, ...] = ()
    files: int = 0


def refuse_moved(lake: Lake, definition: Definition, epoch: Epoch) -> None:
    """Refuses to read an input that was read at another address of the lake: Spark would read all of it again.

    One small file is read, of the checkpoint of an ingest of files in the lake.

    Raises:
        CheckpointError: if it was.
    """
    folder = _folder_in_lake(definition)
    logs = file_logs(lake, epoch.folder) if folder is not None else []
    if folder is None or not logs:
        return
    _, entries = file_log(lake, logs[-1])
    newest = max((entry["batchId"] for entry in entries), default=-1)
    read = [_plain(entry["path"]) for entry in entries if entry["batchId"] == newest]
    elsewhere = [path for path in read if not path.startswith(_within(lake.uri, folder))]
    if not elsewhere or len(elsewhere) < len(read):
        return
    raise CheckpointError(
        f"pipeline `{definition.name}`: its checkpoint {lake.path(epoch.folder)} knows its input by other addresses, "
        f"such as {elsewhere[-1]}, and the lake is {lake.uri}: Spark would take every file for a new one, and read all "
        "of them again. Nothing was started, read or written. If the lake was moved or copied as a whole: "
        f"{command('adopt', definition.name)}. If it is the same lake by another name, give the name that it had "
        "(--lake, TIDEMARK_LAKE)."
    )


def plan_adoption(lake: Lake, definition: Definition, *, before: str | None = None) -> Adoption:
    """What has to be done for a pipeline; nothing is written.

    Args:
        lake: where it is now.
        definition: of the pipeline.
        before: the lake's address before; None: the checkpoint tells it.

    Raises:
        MissingTableError: if the pipeline has not run on this lake.
        CheckpointError: if checkpoint and tables do not hold the same batches, as where not all was moved.
        AdoptionRefusedError: if it cannot be made to fit.
    """
    epoch = current_epoch(lake, definition.name)
    if epoch is None:
        raise MissingTableError(
            f"pipeline `{definition.name}` has not run on {lake.uri}: there is nothing to adopt. Start it: "
            f"{command('run', definition.name)}"
        )
    began_with = definition_from_json(epoch.definition)
    refuse_torn_commits(lake, definition, epoch)
    refuse_lost_batches(lake, definition, epoch)
    _refuse_other_tables(lake, epoch)
    folder = _folder_in_lake(began_with)
    if folder is None:
        return Adoption(epoch)
    elsewhere: dict[str, list[str]] = {}
    for log in file_logs(lake, epoch.folder):
        _, entries = file_log(lake, log)
        paths = [entry["path"] for entry in entries]
        if odd := next((path for path in paths if _as_uri(_plain(path), path) != path), None):
            raise _refused(epoch, f"it names {odd}, in a form that is not known here")
        foreign = [path for path in map(_plain, paths) if not path.startswith(_within(lake.uri, folder))]
        if foreign:
            elsewhere[log] = foreign
    if not elsewhere:
        return Adoption(epoch)
    old = _address(epoch, folder, [path for paths in elsewhere.values() for path in paths], before)
    _refuse_half_written(lake, epoch, began_with)
    return Adoption(epoch, old, tuple(elsewhere), len({path for paths in elsewhere.values() for path in paths}))


def adopt(lake: Lake, plan: Adoption) -> None:
    """Makes a checkpoint fit; it may be interrupted and repeated.

    The newest entry, by which a start judges, is written last.
    """
    if plan.before is None:
        return
    for log in plan.logs:
        head, entries = file_log(lake, log)
        lines = [head]
        for entry in entries:
            path = _plain(entry["path"])
            if path.startswith(plan.before + "/"):
                entry = {**entry, "path": _as_uri(lake.uri + path.removeprefix(plan.before), entry["path"])}
            lines.append(json.dumps(entry, separators=(",", ":"), ensure_ascii=False))
        replace_object(lake, log, "\n".join(lines).encode())


def _folder_in_lake(definition: Definition) -> str | None:
    """The folder of an ingest's input, relative to the lake, up to a pattern; None: it knows nothing of the lake."""
    path = definition.source.path_in_lake if isinstance(definition, Ingest) else None
    if path is None:
        return None
    fixed = []
    for part in path.strip("/").split("/"):
        if _WILD & set(part):
            break
        fixed.append(part)
    folder = os.path.normpath("/".join(fixed)) if fixed else ""
    return "" if folder == "." else folder


def _within(address: str, folder: str) -> str:
    # As Hadoop writes it, also of a folder beside the lake.
    scheme, rest = ("s3a://", address.removeprefix("s3a://")) if address.startswith("s3a://") else ("", address)
    return scheme + os.path.normpath(f"{rest}/{folder}").rstrip("/") + "/"


def _plain(path: str) -> str:
    """A path of Spark's log as people and `Lake` write it."""
    text = unquote(path)
    return "/" + text.removeprefix("file:").lstrip("/") if text.startswith("file:") else text


def _as_uri(path: str, like: str = "file:///") -> str:
    """The same as Spark writes it: Java's form of a URI.

    Args:
        path: as people write it.
        like: a path of the same log; files of this machine are named with one slash or with three.
    """
    of_files = "file:" if like.startswith("file:/") and not like.startswith("file:///") else "file://"
    scheme, rest = ("s3a://", path.removeprefix("s3a://")) if path.startswith("s3a://") else (of_files, path)
    return scheme + "".join(_in_uri(sign) for sign in rest)


def _in_uri(sign: str) -> str:
    if sign in _PLAIN or (sign.isascii() and sign.isalnum()):
        return sign
    # Java leaves letters of all languages alone, but no kind of space and no control character.
    if not sign.isascii() and sign.isprintable() and not sign.isspace():
        return sign
    return "".join(f"%{byte:02X}" for byte in sign.encode())


def _address(epoch: Epoch, folder: str, paths: list[str], before: str | None) -> str:
    """Where the lake was: what stands before the folder in all of these paths."""
    if folder.split("/")[0] == "..":
        raise _refused(
            epoch,
            f"it names {paths[0]}, and its input {folder} does not lie in the lake",
            " Make that path lead to the input again, such as by a lake at the address that it had.",
        )
    if before is not None:
        old = before.rstrip("/")
        if other := next((path for path in paths if not path.startswith(_within(old, folder))), None):
            raise _refused(epoch, f"it names {other}, which was not in {folder} of a lake at {old}")
        return old
    addresses: set[str] | None = None
    for path in paths:
        cuts = [at for at in range(len(path)) if path.startswith(f"/{folder}/", at)] if folder else []
        here = {path[:at] for at in cuts}
        addresses = here if addresses is None else addresses & here
    if not addresses:
        raise _refused(
            epoch,
            f"it names {paths[0]}, and nothing tells where the lake was whose folder {folder or '/'} that is in",
            f" If you know it: {command('adopt', epoch.pipeline, '--from', 'ADDRESS')}.",
        )
    if len(addresses) > 1:
        raise _refused(
            epoch,
            f"the lake may have been at {' or '.join(sorted(addresses))}",
            f" Say which: {command('adopt', epoch.pipeline, '--from', 'ADDRESS')}.",
        )
    return addresses.pop()


def _refuse_half_written(lake: Lake, epoch: Epoch, definition: Definition) -> None:
    """A batch of which only the quarantine has its part runs again, and would name its files otherwise."""
    planned, finished = (newest_batch(lake, epoch.folder, log) for log in ("offsets", "commits"))
    if planned is None or planned == finished:
        return
    has = []
    for table in (beside(definition.sink.table, "quarantine"), definition.sink.table):
        found = find_stamp(lake, table, lambda stamp: stamp.pipeline == epoch.pipeline) if exists(lake, table) else None
        has.append(found is not None and (found.epoch, found.batch_id) == (epoch.number, planned))
    if has == [True, False]:
        raise _refused(
            epoch,
            f"batch {planned} was interrupted when only its quarantine was written, under the addresses of before",
            " Start it once where the lake was, until the batch is done, then move it.",
        )


def _refuse_other_tables(lake: Lake, epoch: Epoch) -> None:
    """Tables that were written anew, instead of copied byte for byte, are other ones to a stream that reads them."""
    definition = definition_from_json(epoch.definition)
    if not definition.read_tables:
        return
    known = {str(open_table(lake, name).metadata().id) for name in definition.read_tables}
    if lost := sorted(set(tables_read(lake, epoch.folder)) - known):
        names = ", ".join(definition.read_tables)
        raise _refused(
            epoch,
            f"it reads a table with the id {lost[0]}, and {names} here has another one: it was written anew, instead "
            "of moved with its log",
        )


def _refused(epoch: Epoch, why: str, remedy: str = "") -> AdoptionRefusedError:
    return AdoptionRefusedError(
        f"pipeline `{epoch.pipeline}`: its checkpoint does not fit this lake, and cannot be made to: {why}. Nothing "
        f"was changed.{remedy} Else move or copy the whole lake again, byte for byte, or begin a new epoch: "
        f"{command('reset', epoch.pipeline, '--empty-tables')}"
    )
