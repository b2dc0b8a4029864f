"""A notifier for what publishes nothing: a conflict, a rejected audit, a failed stage, an abandoned transaction."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.notifications.events import ABANDONED, CONFLICT, FAILED, KINDS, REJECTED, delta_events

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["DeltaNotifier"]


class DeltaNotifier(BaseNotifier):
    """Hand what kept a transaction from being published to other notifiers, as ``delta_event`` of their context.

    For ``on_failure_callback`` and ``on_success_callback`` of tasks; does nothing if none of these happened. The templates
    of the notifiers can use ``{{ delta_event.title }}``, ``{{ delta_event.message }}`` and its other keys::

        DeltaNotifier(SlackNotifier(text="{{ delta_event.message }}"))

    ``conflict``
        a task failed because another commit conflicts with its own; not one that ``on_conflict="restart"`` recovers from.
    ``rejected``
        between the stages and the commit, a ``DeltaAuditOperator`` or any other task failed, or an ``ApprovalOperator`` was
        answered with *Reject* or not in time.
    ``failed``
        for any other reason the start task, a stage, a task before the stages or the commit failed, and no retry is left.
    ``abandoned``
        VACUUM (``DeltaVacuumOperator``, ``DeltaMaintenanceOperator``) gave up transactions that nobody committed or aborted.

    Keys of ``delta_event``: ``kind``, ``title`` (one line), ``message`` (all there is to say, as plain text), ``table``,
    ``dag_id``, ``run_id``, ``task_id``, ``map_index``, ``try_number``, ``log_url``, ``transaction_id``, ``read_version``,
    ``num_records`` (staged rows that are not published), ``exception`` (name of its class), ``reason``; of a conflict
    ``version`` and ``commit_info`` of the other commit, whose ``tags`` name its Dag run; ``checks`` that failed, and
    ``rejected_by``; ``transactions`` that were abandoned. What is unknown is ``None``.

    :param notifiers: one or several notifiers, or functions that take Airflow's context.
    :param events: kinds of events to report.
    """

    def __init__(
        self,
        notifiers: BaseNotifier | Callable[[Context], Any] | Sequence[BaseNotifier | Callable[[Context], Any]],
        *,
        events: Sequence[str] = (CONFLICT, REJECTED, FAILED, ABANDONED),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.notifiers = list(notifiers) if isinstance(notifiers, Sequence) else [notifiers]
        self.events = (events,) if isinstance(events, str) else tuple(events)
        if not self.notifiers or not all(map(callable, self.notifiers)):
            raise DeltaIllegalArgumentException(
                "DeltaNotifier sends nothing itself: pass one or several notifiers, such as SlackNotifier(text='{{ "
                f"delta_event.message }}}}'), or functions that take the context. Got {notifiers!r}."
            )
        if unknown := sorted(set(self.events) - set(KINDS)):
            raise DeltaIllegalArgumentException(
                f"events of DeltaNotifier must be some of {', '.join(KINDS)}, got {', '.join(map(repr, unknown))}."
            )

    def notify(self, context: Context) -> None:
        """Call the notifiers, once for each event.

        :raises ExceptionGroup: if notifiers failed; the others were called.
        """
        errors = []
        for event in delta_events(context):
            if event["kind"] not in self.events:
                continue
            for notifier in self.notifiers:
                # A notifier renders its templates once and for all.
                call = copy.copy(notifier) if isinstance(notifier, BaseNotifier) else notifier
                try:
                    call({**context, "delta_event": event})  # type: ignore[typeddict-unknown-key]
                except Exception as error:  # noqa: BLE001 - the other notifiers are called
                    errors.append(error)
        if errors:
            raise ExceptionGroup(f"{len(errors)} notifications failed", errors)
