"""What sensors that look at logs share: what they refuse, a look before the task is deferred, and the error of their trigger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowSkipException

from airflow_delta import engine, exceptions
from airflow_delta.exceptions import DeltaError
from airflow_delta.tasks.parameters import text_of
from airflow_delta.tasks.templates import is_of_text, render_fields

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.table.observe.watch import Watermark


class LogSensor(BaseSensorOperator):
    """A sensor that looks at the logs of tables, and may wait in the triggerer (:mod:`airflow_delta.triggers.watching`)."""

    def watched(self) -> Sequence[str]:
        """Return the tables, as given."""
        raise NotImplementedError

    def look_once(self, context: Context) -> PokeReturnValue:
        """Look outside of Airflow's loop of pokes; errors are handled as in it."""
        try:
            return self.poke(context)
        except Exception as error:
            if self.never_fail:
                raise AirflowSkipException("Skipping due to never_fail is set to True.") from error
            if not self.silent_fail:
                raise
            self.log.exception("This look at %s failed; the next one comes later.", ", ".join(self.watched()))
            return PokeReturnValue(is_done=False)

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        raise NotImplementedError

    def _do_render_template_fields(self, *given: Any, **named: Any) -> None:
        # A sensor that is not told what to wait for waits for any commit, and changes nothing.
        render_fields(self, super()._do_render_template_fields, *given, **named, narrowing=())

    def _render(self, template: Any, context: Context, dag: Any = None) -> Any:
        return text_of(template, context) if is_of_text(template) else super()._render(template, context, dag)

    def check_event(self, event: Mapping[str, Any]) -> None:
        """Raise the error that an event of the trigger tells of, if it does."""
        if event.get("status") == "error":
            if self.never_fail:
                raise AirflowSkipException("Skipping due to never_fail is set to True.")
            kind = getattr(exceptions, str(event.get("error")), DeltaError)
            raise kind(str(event.get("message")), table=event.get("table"), version=event.get("version"))


def stored_watermark(context: Context, key: str, waits_for: dict[str, Any]) -> Watermark | None:
    """Return how far the task has looked before: from its state store, if that belongs to the same tables and conditions."""
    store = context.get("task_state_store")
    stored = None if store is None else store.get(key)
    if not isinstance(stored, dict) or stored.get("waits_for") != waits_for:
        return None
    return engine.Watermark.from_dict(stored)


def store_watermark(context: Context, key: str, seen: Watermark, waits_for: dict[str, Any]) -> None:
    """Keep how far the task has looked without a match."""
    store = context.get("task_state_store")
    if store is not None:
        store.set(key, {**seen.to_dict(), "waits_for": waits_for})
