"""Which worker of `make test` takes which file: one of three has those that mostly wait, two those that compute."""

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

WAITING = (
    "tests/dags/test_streams_under_airflow.py",
    "tests/control/test_alerts.py",
    "tests/control/test_supervised.py",
    "tests/control/test_zombies.py",
    "tests/control/test_cluster.py",
    "tests/chaos/test_killed_timers.py",
    "tests/chaos/test_faults.py",
    "tests/chaos/test_killed_restore.py",
    "tests/dags/test_laptop.py",
)
"""Files that mostly wait, for Airflow or for drivers as processes, and need no session of their own."""

WORKERS = 3
"""Of `make test`: one for those, and one for each of two processors."""
_WAITER = "gw0"
"""The worker that takes them."""


class WaitingApart(LoadFileScheduling):
    """Gives whole files to workers, by what they ask of the machine.

    The first worker takes files that wait, then unit tests, and ends: it has no session to compute with. The others
    take files that compute, then what there is. Within a kind files come in the order in which they were collected.
    """

    def _reschedule(self, node: WorkerController) -> None:
        if self.workqueue and node.gateway.id == _WAITER and all(_kind(file) == "computes" for file in self.workqueue):
            node.shutdown()
        else:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        order = ("waits", "unit", "computes") if node.gateway.id == _WAITER else ("computes", "unit", "waits")
        self.workqueue.move_to_end(min(self.workqueue, key=lambda file: order.index(_kind(file))), last=False)
        super()._assign_work_unit(node)


def _kind(file: str) -> str:
    if file in WAITING:
        return "waits"
    return "unit" if file.startswith("tests/unit/") else "computes"
