"""A parameter of a task, declared once: constructor, attribute, template field, kind, choices and checks follow from it.

    class DeltaDeleteOperator(DeltaTableOperator, RunnerParameters, SqlParameters):
        predicate: str | None = parameter(default=None, templated=True)

Type checkers know the constructor from these fields (``dataclass_transform``). At run time it gets its signature from them, which
Airflow reads to apply ``default_args``, and to check the arguments of ``partial`` and ``expand``.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, dataclass_transform

from airflow.sdk import BaseOperator

from airflow_delta.contract.choices import Choices, Given
from airflow_delta.contract.kinds import Kind, Kinds
from airflow_delta.light_dataclasses import dataclass

if TYPE_CHECKING:
    from airflow.sdk import RetryPolicy

GivenT = TypeVar("GivenT")
ReadT = TypeVar("ReadT")

_REQUIRED: Any = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Declared:
    """What is declared of a parameter.

    :param keyword: its name, in the constructor and in ``kinds`` and ``choices``.
    :param attribute: where the task keeps it, and its template field.
    """

    default: Any
    alias: str | None
    templated: bool
    kind: Kind | None
    choices: Sequence[str]
    renderer: str | None
    attribute: str = ""
    annotation: Any = _REQUIRED

    @property
    def keyword(self) -> str:
        return self.alias or self.attribute

    def parameter(self) -> inspect.Parameter:
        """Return the parameter of the constructor."""
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(self.keyword, kind, default=self.default, annotation=self.annotation)


def parameter(
    *,
    default: Any = _REQUIRED,
    alias: str | None = None,
    templated: bool = False,
    kind: Kind | None = None,
    choices: Sequence[str] = (),
    renderer: str | None = None,
) -> Any:
    """Declare a parameter, in the body of a class of :class:`Parameters`.

    :param default: its default; without one it is required.
    :param alias: its name in the constructor, if the attribute has another.
    :param templated: whether Airflow renders it.
    :param kind: the kind of its values.
    :param choices: the words that it may be.
    :param renderer: how Airflow shows what it is rendered to (``template_fields_renderers``).
    """
    return Declared(default, alias, templated, kind, choices, renderer)


if TYPE_CHECKING:

    class Taken(Generic[GivenT, ReadT]):
        """Annotation of a parameter that authors give as one type, and a running task reads as another, by its kind.

        A template is text until right before the task runs (:meth:`~airflow_delta.tasks.base.DeltaOperator.pre_execute`).
        """

        def __get__(self, task: Any, owner: Any = None) -> ReadT: ...
        def __set__(self, task: Any, value: GivenT) -> None: ...


def _given(annotation: Any) -> Any:
    """Return the type that authors give."""
    if not isinstance(annotation, str) or not annotation.startswith("Taken["):
        return annotation
    (found,) = ast.parse(annotation).body
    return ast.unparse(found.value.slice.elts[0])  # type: ignore[attr-defined]


@dataclass_transform(kw_only_default=True, field_specifiers=(parameter,))
class Parameters:
    """Base of what declares parameters: tasks, and parts that tasks share.

    A task takes the parameters of all its bases; annotations without :func:`parameter` are only attributes.

    :cvar declared: parameters by name, those of the bases too; ``kinds`` and ``choices`` likewise.
    """

    declared: ClassVar[Mapping[str, Declared]] = {}
    kinds: ClassVar[Kinds] = {}
    choices: ClassVar[Choices] = {}
    default_retry_policy: ClassVar[RetryPolicy | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = _taken_from(cls)
        declared = dict(own)
        for base in cls.__mro__[1:]:
            declared |= {name: each for name, each in vars(base).get("declared", {}).items() if name not in declared}
        cls.declared = declared
        cls.kinds = {name: each.kind for name, each in cls.declared.items() if each.kind is not None}
        cls.choices = {name: each.choices for name, each in cls.declared.items() if each.choices}
        _set_template_fields(cls, own.values())
        if issubclass(cls, BaseOperator) and _declares_more(cls):
            cls.__init__ = _constructor(cls)  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        """Check or complete the parameters; called when they are set, first of the bases."""

    @staticmethod
    def literal_problems(given: Given) -> Iterator[str]:  # noqa: ARG004 - for those with something to check
        """Yield what is wrong with the parameters, as far as they are literals."""
        return iter(())


def _taken_from(cls: type[Parameters]) -> dict[str, Declared]:
    """Return the parameters that the body of a class declares, which are attributes of its instances only."""
    annotations = inspect.get_annotations(cls)
    found = {}
    for name, value in list(vars(cls).items()):
        if isinstance(value, Declared):
            own = replace(value, attribute=name, annotation=_given(annotations[name]))
            found[own.keyword] = own
            delattr(cls, name)
    return found


def _set_template_fields(cls: Any, own: Iterable[Declared]) -> None:
    """Set what Airflow reads, unless the body of the class does: the fields of the bases, and those of its own parameters."""
    if "template_fields" not in vars(cls):
        fields = [field for base in cls.__bases__ for field in getattr(base, "template_fields", ())]
        fields += [each.attribute for each in own if each.templated]
        cls.template_fields = tuple(dict.fromkeys(fields))
    if "template_fields_renderers" not in vars(cls):
        shown: dict[str, str] = {}
        for base in reversed(cls.__bases__):
            shown.update(getattr(base, "template_fields_renderers", {}))
        shown.update({each.attribute: each.renderer for each in own if each.renderer is not None})
        cls.template_fields_renderers = shown


def _declares_more(cls: type[Parameters]) -> bool:
    """Return whether the constructor of a class takes other parameters, or other defaults, than that of a base."""
    inherited = [base.declared for base in cls.__bases__ if issubclass(base, Parameters)]
    return cls.declared not in inherited or "default_retry_policy" in vars(cls)


def _constructor(cls: type[Parameters]) -> Callable[..., None]:
    """Return the constructor of a class of tasks, with a signature that has its parameters."""
    init: Any = vars(cls).get("__init__")
    if init is None:

        def init(self: Any, **kwargs: Any) -> None:
            super(cls, self).__init__(**kwargs)

    signature = inspect.signature(init)
    *own, variadic = signature.parameters.values()
    named = {each.name for each in own}
    shared = [each.parameter() for name, each in cls.declared.items() if name not in named]
    if cls.default_retry_policy is not None and "retry_policy" not in named:
        kind = inspect.Parameter.KEYWORD_ONLY
        shared.append(inspect.Parameter("retry_policy", kind, default=cls.default_retry_policy, annotation="RetryPolicy | None"))
    init.__signature__ = signature.replace(parameters=[*own, *shared, variadic])
    return init  # type: ignore[no-any-return]


def take_arguments(task: Parameters, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Take the declared parameters out of the arguments of a constructor, and return their values by attribute."""
    return {
        each.attribute: kwargs.pop(name, each.default)
        for name, each in task.declared.items()
        if name in kwargs or each.default is not _REQUIRED
    }
