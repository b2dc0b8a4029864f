"""The base of the operators, and of the parts that several of them share."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from airflow_delta.contract.choices import check_choices, check_literals, literal_problems
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.tasks.airflow_parameters import AirflowTask
from airflow_delta.tasks.declared import Parameters, take_arguments
from airflow_delta.tasks.lineage import TaskLineage, lineage_on_complete, lineage_on_start
from airflow_delta.tasks.outlets import set_default_outlets
from airflow_delta.tasks.parameters import check_parsed, text_of, use_rendered, with_literals
from airflow_delta.tasks.settings import own_settings, with_own_mode, with_own_settings
from airflow_delta.tasks.templates import is_of_text, render_fields

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context


PartT = TypeVar("PartT", bound="Part")

TABLE_VIEW = "airflow_delta_table"
"""What ``{{ table }}`` is in the SQL of a task: the name of a temporary view of the version that its transaction reads."""


class Part(Parameters):
    """What a running task does with parameters that several operators share.

    A part derives from the class that declares its parameters, as do the operators that take them. A task makes its parts with
    :meth:`DeltaOperator.hold` when it runs, since only then its templates are rendered.
    """

    task: Any

    def __init__(self, **given: Any) -> None:
        for name, value in take_arguments(self, given).items():
            setattr(self, name, value)
        self.__post_init__()

    @classmethod
    def of(cls, task: DeltaOperator) -> Self:
        """Return the part with the task's current parameters."""
        part = cls(**{name: getattr(task, each.attribute) for name, each in cls.declared.items()})
        part.task = task
        return part

    def on_kill(self) -> None:
        """End running work."""


class DeltaOperator(Parameters, AirflowTask):
    """Base of the operators, which declare their parameters, and share some of them by bases.

    :param kwargs: declared parameters, and those of any Airflow task.
    :cvar sql_fields: template fields in which ``{{ table }}`` is :data:`TABLE_VIEW`.
    :cvar bound_fields: template fields with SQL whose named parameters Spark gets as arguments.
    :cvar by_job: whether a request describes all of the task's work on Spark, so that any job can do it (``delta_job``); a text
        says why not, after "which"; ``None``: there is no such work.
    :cvar emits_table: whether a task that commits by itself has the asset of its table as outlet, unless it is given others.
    """

    sql_fields: ClassVar[tuple[str, ...]] = ()
    bound_fields: ClassVar[tuple[str, ...]] = ()
    by_job: ClassVar[bool | str | None] = None
    emits_table: ClassVar[bool] = False

    def __init__(self, **kwargs: Any) -> None:
        given = kwargs
        kwargs = with_own_mode(type(self), kwargs)
        kwargs = with_literals(type(self), {**own_settings(type(self), kwargs), **kwargs})
        own = take_arguments(self, kwargs)
        if self.default_retry_policy is not None:
            kwargs.setdefault("retry_policy", self.default_retry_policy)
        super().__init__(**kwargs)
        for name, value in own.items():
            setattr(self, name, value)
        set_default_outlets(self, given)
        check_choices(self, self.choices)
        check_literals(self, partial(literal_problems, type(self)))
        self.__post_init__()
        self._held: tuple[Part, ...] = ()
        self._killed = False

    @classmethod  # type: ignore[misc] # Airflow's is an attribute
    def partial(cls, **kwargs: Any) -> Any:
        """Return a task to be mapped; ``default_args`` change its own settings no more than those of any other.

        :raises DeltaIllegalArgumentException: of a commit.
        """
        if getattr(cls, "transaction_role", None) == "commit":
            raise DeltaIllegalArgumentException(
                f"The commit {kwargs.get('task_id')!r} cannot be mapped: which stages belong to which of its instances is not "
                "known, so rows could be left out. Put a delta_transaction(...) into a task group, and expand that: @task_group "
                "with .expand(...)."
            )
        return with_own_settings(cls, super().partial(**kwargs), kwargs)

    def resolve_template_files(self) -> None:
        """Check this task, and those of its Dag that cannot do so: Airflow calls this when it has read the whole Dag file."""
        super().resolve_template_files()
        check_parsed(self)

    def hold(self, part: type[PartT]) -> PartT:
        """Return a part with the rendered parameters; a kill of the task reaches it."""
        held = part.of(self)
        self._held = (*self._held, held)
        return held

    def pre_execute(self, context: Context) -> None:
        """Take the rendered parameters as what they mean; Airflow calls this right before :meth:`execute`."""
        super().pre_execute(context)
        use_rendered(self)

    def on_kill(self) -> None:
        """End the work of the parts; a commit reads :attr:`is_cancelled` right before it puts its log entry."""
        self._killed = True
        for part in self._held:
            part.on_kill()
        super().on_kill()

    def _do_render_template_fields(self, *given: Any, **named: Any) -> None:
        # What both a task and an instance of a mapped task call to render.
        render_fields(self, super()._do_render_template_fields, *given, **named, in_sql={"table": TABLE_VIEW})

    def _render(self, template: Any, context: Context, dag: Any = None) -> Any:
        return text_of(template, context) if is_of_text(template) else super()._render(template, context, dag)

    @property
    def is_cancelled(self) -> bool:
        """Whether the task was asked to stop."""
        return self._killed

    @cached_property
    def lineage(self) -> TaskLineage:
        """The tables that the running task has read and written."""
        return TaskLineage(self.log)

    def table_to_write(self) -> str | None:
        """Return the table that the task commits to; ``None`` for a stage, or a name that needs its connection."""
        return None

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """Return the table that the task is about to write, if its arguments name it."""
        return lineage_on_start(self.table_to_write())

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:  # noqa: ARG002 - as it is called
        """Return the versions that the task has read and written."""
        return lineage_on_complete(self.lineage)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the versions that the task had read and committed before it failed."""
        return self.get_openlineage_facets_on_complete(task_instance)
