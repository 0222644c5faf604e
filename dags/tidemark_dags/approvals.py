"""Approvals: a run waits, without a slot, until a person has answered on Airflow's page, and knows who that was."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import HITLOperator

APPROVE, REJECT = "Approve", "Reject"

WAITS = timedelta(hours=12)


@dataclass(frozen=True)
class Answer:
    """What a person has answered.

    Attributes:
        approved: whether it is to be done.
        by: the person's name, as Airflow knows it.
    """

    approved: bool
    by: str


class Question(dict[str, Any]):
    """What a person is asked about; empty: nothing.

    The task that finds it logs a text for people; Airflow logs what the task returns, too, which is a line so.
    """

    def __str__(self) -> str:
        """That there is one, or none."""
        return "to ask a person about what is above" if self else "nothing to ask"


def approval(*, subject: str, body: str, task_id: str = "approval", waits: timedelta = WAITS) -> HITLOperator:
    """A task that ends when somebody has approved or rejected; see `answer_of`.

    After a rejection the next task runs as well, so that it can be recorded; Airflow's own `ApprovalOperator` skips it.

    Args:
        subject: what is asked, in a line; a template.
        body: what the person needs to know, in Markdown; a template.
        task_id: of the task.
        waits: after so long without an answer the task fails, and nothing is done.
    """
    return HITLOperator(
        task_id=task_id,
        subject=subject,
        body=body,
        options=[APPROVE, REJECT],
        response_timeout=waits,
        retries=0,
    )


def line_by_line(text: str) -> str:
    """A template of Markdown with a list of the lines of a text, which Airflow's page would run together.

    Args:
        text: what gives it, as an expression of a template.
    """
    return "{% for line in (" + text + ").splitlines() if line.strip() %}- {{ line.strip() }}\n{% endfor %}"


def answer_of(response: Mapping[str, Any]) -> Answer:
    """Who has answered what, from the result of an approval's task.

    Raises:
        ValueError: if no person has; nothing may be done in nobody's name.
    """
    person = response.get("responded_by_user") or {}
    name = person.get("name") or person.get("id")
    if not name:
        raise ValueError(f"approval: expected an answer by a person, got {dict(response)!r}. Nothing was done.")
    return Answer(approved=response["chosen_options"] == [APPROVE], by=str(name))
