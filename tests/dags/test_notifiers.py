"""Who is told of a breach, without an Airflow that runs."""

from __future__ import annotations

import json
import socket
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk import Variable
from tidemark_dags import notifiers

from spark_jobs.console.laptop.ports import free_port
from spark_jobs.control.monitoring import monitor
from spark_jobs.lake import Lake
from spark_jobs.lake.errors import LakeUnavailableError
from spark_jobs.pipelines import registry
from tests.dags.receiver import listening
from tests.support.deploying import deploy
from tests.support.waiting import PATIENCE_S


def change(pipeline: str) -> dict[str, object]:
    return {
        "pipeline": pipeline,
        "job": "streams",
        "kind": "late-share",
        "began": True,
        "at": "",
        "message": "11 of 100",
    }


def test_a_notifier_that_does_not_answer_holds_up_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(notifiers, "log", lambda text, level=0: said.append(text))

    def monotonic() -> float:
        """All time is over when who answers has been told."""
        for each in threading.enumerate():
            if asked and each.name == "notifier 1":
                each.join(PATIENCE_S)
        asked.append(None)
        return notifiers._ALL_S * (len(asked) > 1)

    asked: list[None] = []
    monkeypatch.setattr(notifiers, "_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(notifiers, "time", SimpleNamespace(monotonic=monotonic))
    entries = [{"kind": "webhook", "conn_id": name, "endpoint": "alerts"} for name in ("silent", "there")]
    changes = [change(name) for name in ("a", "b", "c")]
    with listening() as there:
        # It takes connections and never answers.
        with socket.create_server(("127.0.0.1", 0)) as silent:
            monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
            monkeypatch.setenv("AIRFLOW_VAR_TIDEMARK_NOTIFIERS", json.dumps(entries))
            monkeypatch.setenv("AIRFLOW_CONN_SILENT", f"http://127.0.0.1:{silent.getsockname()[1]}")
            monkeypatch.setenv("AIRFLOW_CONN_THERE", there.address)
            taken: list[bool] = []
            telling = threading.Thread(target=lambda: taken.extend(notifiers.notify(changes, {})), daemon=True)
            telling.start()
            telling.join(PATIENCE_S)
            assert not telling.is_alive()
            assert taken == [True, True, True]
            assert [body["pipeline"] for _, body in there.received] == ["a", "b", "c"]
            assert "entry 0 (webhook): 3 of 3 changes could not be delivered (no answer within 45 s)" in " ".join(said)
        for left in threading.enumerate():
            if left.name.startswith("notifier"):
                left.join(PATIENCE_S)


@pytest.mark.parametrize(
    ("variable", "taken"),
    [
        ('[{"kind": "webhook", "conn_id": "nobody"}]', False),
        ('[{"kind": "webhook", "conn_id": "nobody"}, {"kind": "webhook", "conn_id": "there"}]', True),
        ('[{"kind": "telegram"}]', False),
        ('{"kind": "webhook", "conn_id": "there"}', False),
        ("webhook", False),
        ("[]", True),
    ],
)
def test_what_nobody_took_is_to_be_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, taken: bool
) -> None:
    monkeypatch.setattr(notifiers, "log", lambda text, level=0: None)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_VAR_TIDEMARK_NOTIFIERS", variable)
    with listening() as there:
        monkeypatch.setenv("AIRFLOW_CONN_NOBODY", f"http://127.0.0.1:{free_port()}")
        monkeypatch.setenv("AIRFLOW_CONN_THERE", there.address)
        assert notifiers.notify([change("a"), change("b")], {}) == [taken, taken]
    assert notifiers.notify([], {}) == []


def test_a_breach_that_nobody_took_is_told_once_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifiers, "log", lambda text, level=0: None)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv(
        "AIRFLOW_VAR_TIDEMARK_NOTIFIERS", '[{"kind": "webhook", "conn_id": "ops", "endpoint": "alerts"}]'
    )
    lake, now = Lake(str(tmp_path / "lake")).ensure_exists(), datetime.now(UTC)
    deploy(lake, [registry()["shop_totals"]])

    def look(minutes: int) -> None:
        notifiers.notify_of(lake, monitor.look(lake, now=now + timedelta(minutes=minutes)), {})

    monkeypatch.setenv("AIRFLOW_CONN_OPS", f"http://127.0.0.1:{free_port()}")
    look(5)
    with listening() as there:
        monkeypatch.setenv("AIRFLOW_CONN_OPS", there.address)
        look(6)
        assert there.of("shop_totals") == [("/alerts", "no-supervisor", "began")]
        look(7)
        assert len(there.received) == 1


def test_a_lake_that_is_not_there_is_told_once_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its disk is not mounted; under Airflow: tests/dags/test_streams_under_airflow.py (long)."""
    noted: dict[str, str] = {}
    monkeypatch.setattr(notifiers, "log", lambda text, level=0: None)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_VAR_TIDEMARK_NOTIFIERS", '[{"kind": "webhook", "conn_id": "ops"}]')
    configured = Variable.get
    # Without a database Airflow keeps no variable; those of the environment it reads itself.
    monkeypatch.setattr(Variable, "get", lambda name, **rest: noted.get(name) or configured(name, **rest))
    monkeypatch.setattr(Variable, "set", lambda name, value, **_: noted.update({name: value}))
    monkeypatch.setattr(Variable, "delete", noted.pop)
    lake, now = Lake(str(tmp_path / "lake")).ensure_exists(), datetime.now(UTC)
    deploy(lake, [registry()["shop_totals"]])
    Path(lake.uri).rename(tmp_path / "away")
    Path(lake.uri).mkdir()
    with listening() as there:
        monkeypatch.setenv("AIRFLOW_CONN_OPS", there.address)
        for _ in range(2):
            with pytest.raises(LakeUnavailableError, match=r"is its disk mounted\?") as refused:
                monitor.look(lake, now=now)
            notifiers.notify_lake_unreachable(lake.uri, str(refused.value), now, {})
        assert list(Path(lake.uri).iterdir()) == []
        for _ in range(2):
            notifiers.notify_lake_back(lake.uri, now, {})
        assert [(body["kind"], body["began"]) for _, body in there.received] == [
            ("lake-unreachable", True),
            ("lake-unreachable", False),
        ]
    assert noted == {}
