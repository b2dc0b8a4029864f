"""The base of the operators, and of the parts that several of them share.

The error of a function that returned something other than a Spark DataFrame.

``airflow tasks test``: one task runs for real, outside of the scheduler.

What ``default_args`` do not decide about tasks that publish, and about what they hand to each other.

``default_args`` of a Dag, a task group or ``delta_transaction`` are meant for tasks in general. A trigger rule among them would
have a commit publish what an audit has refused; ``do_xcom_push=False`` would lose the handle and the staged writes; outlets would
emit events before anything is published. So these tasks have settings of their own, which only their own arguments change.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from airflow.sdk import BaseOperator, RetryPolicy, TriggerRule

from airflow_delta.contract.choices import Choices, Given, check_choices, check_literals
from airflow_delta.contract.kinds import Kinds
from airflow_delta.dag_checks import HANDS_ON, parent_defaults
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.tasks.lineage import TaskLineage, lineage_on_complete, lineage_on_start
from airflow_delta.tasks.parameters import check_parsed, text_of, use_rendered, with_literals
from airflow_delta.tasks.templates import is_of_text, render_fields

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context


_WITHOUT_OUTLETS = ("start", "audit", "audit_publication", "abort")

_CLEANS_UP = {"depends_on_past": False, "wait_for_downstream": False}
"""Whether leftovers of a run are deleted does not depend on other runs."""

_FIRST = "airflow_delta.plugins.priorities.EndsTransaction"
"""Weight rule of what ends a transaction, by its name: the scheduler alone loads it."""


def own_settings(operator_class: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a task that are its own unless its author names others.

    Constructors give them to ``BaseOperator``: from ``default_args``, Airflow then fills in only what is still missing.

    :param given: its arguments; ``task_group`` is the group that it is in.
    """
    role = getattr(operator_class, "transaction_role", None)
    group = next(_transaction_groups(given.get("task_group")), None)
    is_stage = role == "stage" and (group is not None or given.get("transaction") is not None)
    settings: dict[str, Any] = {}
    if role in HANDS_ON:
        settings["do_xcom_push"] = True
    if role in ("start", "commit", "abort") or (_publishes(operator_class) and not is_stage):
        settings["trigger_rule"] = TriggerRule.ALL_SUCCESS
    if role == "abort":
        settings |= _CLEANS_UP
    if role in ("commit", "abort") and not {"priority_weight", "weight_rule"} & {*given, *(given.get("default_args") or {})}:
        settings["weight_rule"] = _FIRST
    if role in _WITHOUT_OUTLETS or (is_stage and "outlets" not in getattr(group, "stage_kwargs", {})):
        settings["outlets"] = []
    return settings


def with_own_settings(operator_class: Any, made: Any, named: Mapping[str, Any]) -> Any:
    """Return what ``partial`` of an operator has made, with the settings that are its own.

    :param named: the arguments that the author gave it.
    """
    given = {**made.kwargs, "transaction": named.get("transaction")}
    made.kwargs.update({name: value for name, value in own_settings(operator_class, given).items() if name not in named})
    take_own_mode(operator_class, made.kwargs)
    return made


def take_own_mode(operator_class: Any, partial: dict[str, Any], **place: Any) -> None:
    """Give the arguments of a task to be mapped the ``mode`` of :func:`with_own_mode`.

    :param place: its ``dag`` and ``task_group``, if its arguments do not say.
    """
    found = with_own_mode(operator_class, {**partial, **place})
    partial.pop("mode", None)
    if "mode" in found:
        partial["mode"] = found["mode"]


SENSOR_MODES = ("poke", "reschedule")


def with_own_mode(operator_class: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a task with the ``mode`` that is meant for stages: sensors have a parameter of that name, too.

    So ``stage_kwargs`` pass it to stages alone, and a sensor's mode in ``default_args`` does not become the mode of a stage.

    :param given: its arguments, with those from ``default_args``; ``dag`` and ``task_group`` are where it is.
    """
    if not any("mode" in part.arguments() for part in getattr(operator_class, "parts", ())):
        return dict(given)
    mode, around = given.get("mode"), (given.get("task_group"), given.get("dag"))
    if mode in SENSOR_MODES and any(mode == (getattr(each, "default_args", None) or {}).get("mode") for each in around):
        mode = None
    if mode is not None:
        return dict(given)
    groups = _transaction_groups(given.get("task_group"))
    mode = next((each.stage_kwargs["mode"] for each in groups if "mode" in each.stage_kwargs), None)
    found = {name: value for name, value in given.items() if name != "mode"}
    return found if mode is None else {**found, "mode": mode}


WATCHER_SETTINGS: Mapping[str, Any] = {
    "outlets": [],
    "inlets": [],
    "on_execute_callback": None,
    "on_success_callback": None,
    **_CLEANS_UP,
}
"""Settings of the task that fails the run if the abort task fails; with callbacks it would need a worker."""


def _publishes(operator_class: Any) -> bool:
    """Return whether a task that is not a stage commits what readers of the table see."""
    return bool(getattr(operator_class, "emits_table", False))


def _transaction_groups(group: Any) -> Iterator[Any]:
    while group is not None:
        if getattr(group, "holds_transaction", False):
            yield group
        group = group.parent_group


def withdraw_defaults_outlets(task: Any) -> None:
    """Take from a mapped stage the outlets that it has from ``default_args``: the commit emits."""
    outlets = task.partial_kwargs.get("outlets") if task.is_mapped else None
    if outlets and outlets == parent_defaults(task).get("outlets"):
        task.partial_kwargs["outlets"] = []


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


_FRAMES = ("pandas.", "polars.", "pyarrow.")


def not_a_dataframe(task_id: str, result: Any, purpose: str) -> DeltaIllegalArgumentException:
    """Return the error, with what to return instead.

    :param purpose: what the DataFrame is for: ``to write``.
    """
    kind = type(result)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    name = "None" if result is None else f"a {module}{kind.__qualname__}"
    if module.startswith(_FRAMES):
        convert = "spark.createDataFrame(frame.to_pandas())" if module.startswith("polars.") else "spark.createDataFrame(frame)"
        way_out = f"Return {convert}; the function gets the session if it has a parameter spark."
        if purpose == "to write":
            way_out = f'Set engine="arrow" to write it without Spark, or return {convert}.'
    elif result is None:
        way_out = "Return the DataFrame instead of writing it; to stop without writing, raise AirflowSkipException."
    else:
        way_out = "To stop without writing, raise AirflowSkipException."
    return DeltaIllegalArgumentException(
        f"The function of the task {task_id!r} returned {name}, expected a Spark DataFrame (pyspark.sql.DataFrame) of the rows "
        f"{purpose}. {way_out}"
    )


TEST_MODE = "AIRFLOW_TEST_MODE"
"""Environment variable that ``airflow tasks test`` sets. ``dag.test()`` does not: it runs a whole Dag, and keeps the run."""


def _is_tested() -> bool:
    # Airflow 3.3.1 sets the variable only with --env-vars; the task runs in the process of the command.
    return os.environ.get(TEST_MODE) == "True" or sys.argv[1:3] == ["tasks", "test"]


def warn_if_tested(task: Any, table: str, what: str) -> None:
    """Log a warning if ``airflow tasks test`` runs a task that changes a table.

    :param what: what the task is about to do.
    """
    if _is_tested():
        task.log.warning(
            "`airflow tasks test` does not test, it runs %s: it is about to %s %s, for every reader, and records no state of the "
            "task. To try a Dag out, point its connection at a scratch location and use dag.test().",
            task.task_id,
            what,
            table,
        )
