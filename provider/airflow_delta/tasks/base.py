"""The base of the operators, and of the parts that several of them share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from airflow.sdk import BaseOperator, RetryPolicy

from airflow_delta.contract.choices import Choices, Given, check_choices, check_literals
from airflow_delta.contract.kinds import Kinds
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.tasks.lineage import TaskLineage, lineage_on_complete, lineage_on_start
from airflow_delta.tasks.parameters import check_parsed, text_of, use_rendered, with_literals
from airflow_delta.tasks.settings import own_settings, with_own_mode, with_own_settings
from airflow_delta.tasks.templates import is_of_text, render_fields

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context


PartT = TypeVar("PartT", bound="Part")

TABLE_VIEW = "airflow_delta_table"
"""What ``{{ table }}`` is in the SQL of a task: the name of a temporary view of the version that its transaction reads."""


@dataclass(kw_only=True, eq=False, repr=False)
class Part:
    """Parameters that several operators share, and what a running task does with them.

    The parameters of a part are parameters, and attributes, of every operator that lists it in ``parts``. A task makes its parts
    with :meth:`DeltaOperator.hold` when it runs, since only then its templates are rendered.
    """

    template_fields: ClassVar[tuple[str, ...]] = ()
    choices: ClassVar[Choices] = {}
    kinds: ClassVar[Kinds] = {}
    default_retry_policy: ClassVar[RetryPolicy | None] = None
    task: Any = field(init=False)

    @classmethod
    @cache
    def arguments(cls) -> Mapping[str, inspect.Parameter]:
        """Return the parameters by name."""
        return inspect.signature(cls).parameters

    @classmethod
    def of(cls, task: DeltaOperator) -> Self:
        """Return the part with the task's current parameters."""
        part = cls(**{name: getattr(task, name) for name in cls.arguments()})
        part.task = task
        return part

    @staticmethod
    def literal_problems(given: Given) -> Iterator[str]:  # noqa: ARG004 - for those with something to check
        """Yield what is wrong with the parameters, as far as they are literals."""
        return iter(())

    def on_kill(self) -> None:
        """End running work."""


Parts = tuple[type[Part], ...]


def templated(parts: Parts) -> tuple[str, ...]:
    """Return the template fields of parts."""
    return tuple(name for part in parts for name in part.template_fields)


class DeltaOperator(BaseOperator):
    """Base of the operators that are made of parts.

    :param kwargs: parameters of the parts and of any Airflow task.
    :cvar choices: words that a parameter may be, by parameter; those of the parts come on top.
    :cvar kinds: kinds of values that a parameter may be, by parameter; those of the parts come on top.
    :cvar sql_fields: template fields in which ``{{ table }}`` is :data:`TABLE_VIEW`.
    :cvar bound_fields: template fields with SQL whose named parameters Spark gets as arguments.
    :cvar emits_table: whether a task that commits by itself has the asset of its table as outlet, unless it is given others.
    """

    parts: ClassVar[Parts] = ()
    choices: ClassVar[Choices] = {}
    kinds: ClassVar[Kinds] = {}
    sql_fields: ClassVar[tuple[str, ...]] = ()
    bound_fields: ClassVar[tuple[str, ...]] = ()
    default_retry_policy: ClassVar[RetryPolicy | None] = None
    emits_table: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "parts" in vars(cls):
            if cls.default_retry_policy is None:
                given = (part.default_retry_policy for part in cls.parts)
                cls.default_retry_policy = next((policy for policy in given if policy is not None), None)
            cls.__init__ = _with_shared_parameters(cls)  # type: ignore[method-assign]

    def __init__(self, **kwargs: Any) -> None:
        kwargs = with_own_mode(type(self), kwargs)
        kwargs = with_literals(type(self), {**own_settings(type(self), kwargs), **kwargs})
        parts = [part(**{name: kwargs.pop(name) for name in part.arguments() if name in kwargs}) for part in self.parts]
        if self.default_retry_policy is not None:
            kwargs.setdefault("retry_policy", self.default_retry_policy)
        super().__init__(**kwargs)
        for part in parts:
            for name in part.arguments():
                setattr(self, name, getattr(part, name))
            check_choices(self, part.choices)
            check_literals(self, part.literal_problems)
        self._held: tuple[Part, ...] = ()
        self._killed = False

    @classmethod
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

    @staticmethod
    def literal_problems(given: Given) -> Iterator[str]:  # noqa: ARG004 - for those with something to check
        """Yield what is wrong with the parameters, as far as they are literals."""
        return iter(())

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


def _with_shared_parameters(cls: type[DeltaOperator]) -> Callable[..., None]:
    """Return the constructor of an operator with a signature that includes the parameters of its parts.

    Airflow reads these signatures to apply ``default_args``, and to check the arguments of ``partial`` and ``expand``.
    """
    init: Any = vars(cls).get("__init__")
    if init is None:

        def init(self: DeltaOperator, **kwargs: Any) -> None:
            super(cls, self).__init__(**kwargs)

    signature = inspect.signature(init)
    *own, variadic = signature.parameters.values()
    named = {each.name for each in own}
    shared = [each for part in cls.parts for each in part.arguments().values() if each.name not in named]
    if cls.default_retry_policy is not None:
        kind = inspect.Parameter.KEYWORD_ONLY
        shared.append(inspect.Parameter("retry_policy", kind, default=cls.default_retry_policy, annotation="RetryPolicy | None"))
    init.__signature__ = signature.replace(parameters=[*own, *shared, variadic])
    return init  # type: ignore[no-any-return]
