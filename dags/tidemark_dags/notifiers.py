"""Who is notified when a breach begins and when it clears: the task's log, and what the Airflow variable names.

`tidemark_notifiers` is a JSON list such as
`[{"kind": "webhook", "conn_id": "tidemark_webhook", "endpoint": "alerts"}, {"kind": "email", "to": ["a@b.example"]}]`.
"""

import html
import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from tidemark_dags.tasks import log

if TYPE_CHECKING:
    from spark_jobs.control.monitoring.monitor import Observation
    from spark_jobs.lake import Lake

VARIABLE = "tidemark_notifiers"

UNREACHABLE_SINCE = "tidemark_lake_unreachable_since"
"""The Airflow variable that says since when the lake is unreachable: that cannot be noted in the lake itself."""

_MORE = "More: docs/operate/runbook.md#lake-unreachable"

_TIMEOUT_S = 10
_ALL_S = 45


class _Notifier(Protocol):
    def notify(self, context: Any) -> None: ...


def notify_of(lake: "Lake", seen: "Observation", context: Any) -> None:
    """Notifies of what a look has found, and marks it as reported; what nobody accepted is in the next look again.

    So is what was not delivered because this ended in between.

    Args:
        lake: at which it looked.
        seen: what it has found.
        context: of the task.
    """
    from spark_jobs.control.monitoring import monitor

    taken = notify([change.model_dump(mode="json") for change in seen.changes], context)
    changes = tuple(change for change, is_taken in zip(seen.changes, taken, strict=True) if is_taken)
    monitor.mark_reported(lake, seen.model_copy(update={"changes": changes}))


def notify(changes: Sequence[Mapping[str, Any]], context: Any) -> list[bool]:
    """Sends each change once to everybody; a notifier that fails is logged, and nothing else fails.

    All are notified side by side, within 45 seconds: one that does not answer keeps neither the others nor the monitor.

    Args:
        changes: breaches that began or have cleared: `pipeline`, `job`, `kind`, `began`, `at`, `message`.
        context: of the task.

    Returns:
        Of each change, whether somebody accepted it, or nobody is to be notified: else it is to be sent again.
    """
    for change in changes:
        log(_title(change), logging.WARNING if change["began"] else logging.INFO)
        log(change["message"])
    if not changes:
        return []
    try:
        configured = _configured()
    except ValueError as error:
        log(
            f"variable {VARIABLE}: {error}. Nobody was notified. Fix it: alerts that last until then are sent then.",
            logging.ERROR,
        )
        return [False] * len(changes)
    deliveries = [_Delivery(place, settings, changes, context) for place, settings in enumerate(configured)]
    for each in deliveries:
        each.start()
    deadline = time.monotonic() + _ALL_S
    for each in deliveries:
        each.join(max(0.0, deadline - time.monotonic()))
        if each.is_alive():
            each.missed(f"{each.left} of {len(changes)} changes", f"no answer within {_ALL_S} s")
    return [not deliveries or any(place in each.taken for each in deliveries) for place in range(len(changes))]


class _Delivery(threading.Thread):
    """One notifier with all that it is to send."""

    def __init__(self, place: int, settings: Any, changes: Sequence[Mapping[str, Any]], context: Any) -> None:
        super().__init__(name=f"notifier {place}", daemon=True)
        self._place, self._settings, self._changes, self._context = place, settings, changes, context
        self.left = len(changes)
        self.taken: set[int] = set()

    def run(self) -> None:
        for place, change in enumerate(self._changes):
            try:
                _build(self._settings, change).notify(self._context)
                self.taken.add(place)
            except Exception as error:  # noqa: BLE001 (whatever a notifier does, the alert itself must be seen)
                self.missed(repr(_title(change)), f"{type(error).__name__}: {error}")
            self.left -= 1

    def missed(self, what: str, why: str) -> None:
        """Says in the log what was not delivered."""
        name = self._settings.get("kind") if isinstance(self._settings, Mapping) else self._settings
        log(
            f"variable {VARIABLE}, entry {self._place} ({name}): {what} could not be delivered ({why}). The alert "
            "remains; see the other tasks of this run.",
            logging.ERROR,
        )


def notify_lake_unreachable(lake: str, said: str, at: datetime, context: Any) -> None:
    """Reports, once, that the monitor cannot use the lake.

    Args:
        lake: its address.
        said: what is wrong.
        at: when that was seen.
        context: of the task.
    """
    from airflow.sdk import Variable

    if Variable.get(UNREACHABLE_SINCE, default=None) is not None:
        return
    if all(notify([_lake_change(began=True, at=at, since=at.isoformat(), said=f"{said}\n{_MORE}")], context)):
        Variable.set(UNREACHABLE_SINCE, at.isoformat(), description=f"since when {lake} cannot be used")


def notify_lake_back(lake: str, at: datetime, context: Any) -> None:
    """Reports, once, that the monitor can use the lake again, if it could not before."""
    from airflow.sdk import Variable

    since = Variable.get(UNREACHABLE_SINCE, default=None)
    if since is not None:
        said = f"cleared: lake {lake} can be used again"
        if all(notify([_lake_change(began=False, at=at, since=since, said=said)], context)):
            Variable.delete(UNREACHABLE_SINCE)


def _lake_change(*, began: bool, at: datetime, since: str, said: str) -> dict[str, Any]:
    every = {"pipeline": "every pipeline", "job": "", "kind": "lake-unreachable", "muted": False}
    return {**every, "began": began, "at": at.isoformat(), "since": since, "message": said}


def _configured() -> list[Any]:
    from airflow.sdk import Variable

    text = Variable.get(VARIABLE, default="[]")
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise ValueError(f"expected a JSON list, got {text!r}")
    return found


def _build(settings: Mapping[str, Any], change: Mapping[str, Any]) -> _Notifier:
    match settings:
        case {"kind": "webhook", "conn_id": str(connection), **rest}:
            return _webhook(connection, str(rest.get("endpoint", "")), change)
        case {"kind": "email", "to": [*to], **rest}:
            return _email(to, rest, change)
    raise ValueError('expected {"kind": "webhook", "conn_id": …, "endpoint": …} or {"kind": "email", "to": […], …}')


def _webhook(connection: str, endpoint: str, change: Mapping[str, Any]) -> _Notifier:
    from airflow.providers.http.notifications import HttpNotifier

    # `text` is what chat services show.
    body = {
        **change,
        "state": "began" if change["began"] else "cleared",
        "text": f"{_title(change)}\n{change['message']}",
    }
    return HttpNotifier(http_conn_id=connection, endpoint=endpoint, json=body, extra_options={"timeout": _TIMEOUT_S})


def _email(to: Sequence[str], settings: Mapping[str, Any], change: Mapping[str, Any]) -> _Notifier:
    from airflow.providers.smtp.notifications.smtp import SmtpNotifier

    return SmtpNotifier(
        to=list(to),
        from_email=settings.get("from"),
        subject=_title(change),
        html_content=f"<pre>{html.escape(change['message'])}</pre>",
        smtp_conn_id=settings.get("conn_id", "smtp_default"),
    )


def _title(change: Mapping[str, Any]) -> str:
    return f"{'ALERT' if change['began'] else 'cleared'} {change['pipeline']}: {change['kind']}"
