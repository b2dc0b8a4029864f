"""What sensors that look at logs share: what they refuse, a look before the task is deferred, and the error of their trigger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import PokeReturnValue
from airflow.sdk.exceptions import AirflowSkipException

from airflow_delta import engine, exceptions
from airflow_delta.contract.kinds import WHOLE_NUMBER
from airflow_delta.exceptions import DeltaError
from airflow_delta.retry_policies import REFUSALS
from airflow_delta.tasks.airflow_parameters import AirflowSensor
from airflow_delta.tasks.declared import Parameters, parameter, take_arguments
from airflow_delta.tasks.parameters import check_parsed, text_of, use_rendered, with_literals
from airflow_delta.tasks.templates import is_of_text, render_fields

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_delta.log.delta_log import DeltaLog
    from airflow_delta.table.observe.watch import Watermark
    from airflow_delta.tasks.declared import Taken


class LogSensor(Parameters, AirflowSensor):
    """A sensor that looks at the logs of tables, and may wait in the triggerer (:mod:`airflow_delta.triggers.watching`)."""

    default_retry_policy = REFUSALS
    bound_fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **kwargs: Any) -> None:
        kwargs = with_literals(type(self), kwargs)
        own = take_arguments(self, kwargs)
        kwargs.setdefault("retry_policy", self.default_retry_policy)
        super().__init__(**kwargs)
        for name, value in own.items():
            setattr(self, name, value)
        self.__post_init__()

    def resolve_template_files(self) -> None:
        """Check this task as operators do, when Airflow has read the whole Dag file."""
        super().resolve_template_files()
        check_parsed(self)

    def pre_execute(self, context: Context) -> None:
        """Take the rendered parameters as what they mean, right before the task runs."""
        super().pre_execute(context)
        use_rendered(self)

    @property
    def seconds_between_looks(self) -> float:
        """How often the trigger looks; Airflow has made a number of ``poke_interval``."""
        return self.poke_interval  # type: ignore[return-value]

    @property
    def longest_wait(self) -> timedelta:
        """How long the trigger waits at most; Airflow has made a number of ``timeout``."""
        return timedelta(seconds=self.timeout)  # type: ignore[arg-type]

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
        # A sensor without conditions waits for any commit, and changes nothing.
        render_fields(self, super()._do_render_template_fields, *given, **named, narrowing=())

    def _render(self, template: Any, context: Context, dag: Any = None) -> Any:
        return text_of(template, context) if is_of_text(template) else super()._render(template, context, dag)

    def check_event(self, event: Mapping[str, Any]) -> None:
        """Raise the error in an event of the trigger, if it has one."""
        if event.get("status") == "error":
            if self.never_fail:
                raise AirflowSkipException("Skipping due to never_fail is set to True.")
            kind = getattr(exceptions, str(event.get("error")), DeltaError)
            raise kind(str(event.get("message")), table=event.get("table"), version=event.get("version"))


class NextSensor(LogSensor):
    """A sensor that waits for what comes after a version: the given one, or the current one when it first looks.

    How far it has looked is kept in the task state store, across reschedules, retries and clears.

    :param after_version: that version. (templated)
    """

    state_key: ClassVar[str]
    after_version: Taken[int | str | None, int | None] = parameter(default=None, templated=True, kind=WHOLE_NUMBER)

    def waits_for(self) -> dict[str, Any]:
        """Return what a stored version belongs to: it does not apply to other tables or other conditions."""
        raise NotImplementedError

    def begin(self, context: Context, log: DeltaLog) -> Watermark:
        """Return the version after which commits count: the last one looked at, the given one, or the current one."""
        if (known := self.known(context)) is not None:
            return known
        seen = engine.watermark_now(log)
        self.remember(context, seen)
        return seen

    def known(self, context: Context) -> Watermark | None:
        """Return that version if the task state store or ``after_version`` has it."""
        store = context.get("task_state_store")
        stored = None if store is None else store.get(self.state_key)
        if isinstance(stored, dict) and stored.get("waits_for") == self.waits_for():
            return engine.Watermark.from_dict(stored)
        given = self.after_version
        return None if given is None else engine.Watermark(given)

    def remember(self, context: Context, seen: Watermark) -> None:
        """Keep how far the tables were searched without a match."""
        store = context.get("task_state_store")
        if store is not None:
            store.set(self.state_key, {**seen.to_dict(), "waits_for": self.waits_for()})
