"""Templates of what identifies a transaction, rendered so that nothing in them is silently empty.

Jinja prints ``None`` as text and what is undefined as nothing: ``orders/{{ dag_run.conf.get('batch') }}`` would be the same key
for all runs without a batch, and all but the first would skip their rows. So each ``{{ }}`` of such a template must have a value,
as must what it puts into a text: an operand of ``~``, ``%`` or ``format``, and the input of a filter that makes a text or a
number of anything. What is optional goes into ``{% if %}``. What a function or filter of the author makes of ``None`` is not
seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from dataclasses import field
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateSyntaxError, Undefined, UndefinedError, nodes

from airflow_delta.airflow_internals.tasks import arguments_given_to
from airflow_delta.exceptions import DeltaIllegalArgumentException
from airflow_delta.light_dataclasses import dataclass
from airflow_delta.tasks.dag_file import argument_of

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context


KEY_FIELDS = ("transaction_key", "app_id", "txn_version", "query_id")
"""Parameters that identify a transaction in the table's log."""

PLACE_FIELDS = ("table", "delta_conn_id", "source", "copy_source", "source_conn_id")
"""Parameters that name a place: ``lake/{{ params.tenant }}`` without a tenant would be another one."""

_ONE, _EACH = "_delta_key_part", "_delta_key_parts"

_MAKE_TEXT = {
    *(
        "capitalize",
        "center",
        "e",
        "escape",
        "forceescape",
        "format",
        "indent",
        "lower",
        "replace",
        "safe",
        "string",
        "striptags",
    ),
    *("title", "tojson", "trim", "truncate", "upper", "urlencode", "wordcount", "wordwrap", "xmlattr"),
}
"""Filters of Jinja that make a text of ``None`` and of what is undefined."""

_MAKE_SQL = _MAKE_TEXT - {"tojson"}
"""The same for SQL, in which the ``null`` of JSON is a value."""

_MAKE_NUMBER = {"int", "float"}
"""Filters of Jinja that make 0 of it, unless they are given something else."""

_PRINTED_NOTHING = {"None", "nan", "NaN", "NaT", "<NA>"}
"""What missing values print: those of pandas, and a ``None`` that Airflow hands out behind a proxy."""


def render_named_fields(
    task: Any,
    fields: Iterable[str],
    context: Context,
    jinja_env: jinja2.Environment,
    render: Callable[[Iterable[str]], None],
) -> None:
    """Render the keys and places of a task: they must have a value if the Dag file gives them one.

    :param jinja_env: its templates are texts.
    :param render: renders fields as Airflow does, with it.
    :raises DeltaIllegalArgumentException: if an expression in a key or place is ``None``, undefined or empty, or all of it is.
    """
    for name in fields:
        value = getattr(task, name)
        if not isinstance(value, str):
            render((name,))
        elif "{" in value:
            setattr(task, name, _rendered(task, name, value, context, jinja_env))
        if is_nothing(found := getattr(task, name)) and (value is not None or is_given(task, name, context)):
            so = (
                "it does not identify the run's rows. Give it a value, or leave the parameter out: the default names the run."
                if name in KEY_FIELDS
                else "it names no place. Give it a value."
            )
            raise DeltaIllegalArgumentException(
                f"{name} of the task {task.task_id!r} is {found!r}: what the Dag file gives it has no value in this run, so {so}"
            )


def is_given(task: Any, name: str, context: Context) -> bool:
    """Return whether the Dag file gives a parameter to a mapped task, whatever its value is for this instance."""
    definition: Any = getattr(context.get("dag"), "task_dict", {}).get(task.task_id)
    if not getattr(definition, "is_mapped", False) or argument_of(definition, name, None) is None:
        return False
    return name in arguments_given_to(task)  # expand_kwargs may give it to some instances, or to none


def _rendered(task: Any, name: str, template: str, context: Context, jinja_env: jinja2.Environment) -> Any:
    where = f"{name}={template!r} of the task {task.task_id!r}"
    way_out = _WAY_OUT if name in KEY_FIELDS else _WAY_OUT_OF_PLACES
    try:
        checked = _Guard(where, way_out, is_nothing, frozenset(_MAKE_TEXT | _MAKE_NUMBER)).template(template, jinja_env)
    except TemplateSyntaxError as error:
        raise DeltaIllegalArgumentException(f"{where} is not a valid template: {error}.") from error
    try:
        return task._render(checked, context)
    except UndefinedError as error:  # such as an attribute of None
        raise DeltaIllegalArgumentException(f"{where} cannot be rendered in this run: {error}. {way_out}") from error


_WAY_OUT = (
    "Runs without it would share a key, and all but the first would skip their rows. Use what every run has, such as "
    "{{ run_id }}, or data_interval_start.isoformat() in a Dag whose runs have an interval; put what is optional into {% if %}."
)
_WAY_OUT_OF_PLACES = "Without it, it would be another place. Give it a value in every run; put what is optional into {% if %}."


def printing_values(jinja_env: jinja2.Environment, where: str) -> jinja2.Environment:
    """Return an environment whose templates, of SQL above all, do not print ``None``: ``day < 'None'`` is true of every date.

    An empty text is a value here: a part of a condition that is left out.

    :param where: the parameter and its task, for errors.
    """
    environment = jinja_env.overlay()
    guard = _Guard(where, _WAY_OUT_OF_SQL, is_refused=_prints_nothing, makers=frozenset(_MAKE_SQL))
    environment.from_string = lambda source, *_, **__: guard.template(source, jinja_env)  # type: ignore[method-assign]
    return environment


_WAY_OUT_OF_SQL = (
    "The SQL would contain the word None, and select other rows than you mean. Give it a value in every run; put what is "
    "optional into {% if %}."
)


@dataclass(slots=True)
class _Guard:
    """Puts a check around each expression of a template that is made into a text.

    :param where: the parameter, the template and the task, for errors.
    :param way_out: what the author can do.
    :param is_refused: decides whether a value must not be printed.
    :param makers: filters that turn any value, ``None`` too, into text or a number: their input is checked as well.
    :param texts: the expressions that are checked, as errors show them.
    """

    where: str
    way_out: str
    is_refused: Callable[[Any], bool]
    makers: frozenset[str]
    texts: list[str] = field(default_factory=list)

    def template(self, source: str, jinja_env: jinja2.Environment) -> jinja2.Template:
        """Return the template with its checks."""
        environment = jinja_env.overlay()
        tree = environment.parse(source)
        for node in [tree, *tree.find_all(nodes.Node)]:
            self._around_parts(node)
        environment.filters = {**environment.filters, _ONE: self._one, _EACH: self._each}
        tree.set_environment(environment)
        # As from_string() does.
        return environment.template_class.from_code(environment, environment.compile(tree), environment.make_globals(None))

    def _around_parts(self, node: nodes.Node) -> None:
        match node:
            case nodes.Output() | nodes.Concat():
                node.nodes = [self._around(part) for part in node.nodes]
            case nodes.Mod(left=nodes.Const(value=str())):
                node.right = self._around(node.right, each=isinstance(node.right, nodes.Tuple))
            case nodes.Call(node=nodes.Getattr(node=nodes.Const(value=str()), attr="format")):
                node.args = [self._around(part) for part in node.args]
                for named in node.kwargs:
                    named.value = self._around(named.value)
            case nodes.Call(node=nodes.Getattr(node=nodes.Const(value=str()), attr="join")) if node.args:
                node.args[0] = self._around(node.args[0], each=True)
            case nodes.Filter(node=nodes.Expr() as given):
                self._around_input(node, given)

    def _around_input(self, node: nodes.Filter, given: nodes.Expr) -> None:
        if node.name == "join":
            node.node = self._around(given, each=True)
        elif node.name in self.makers and not (node.name in _MAKE_NUMBER and (node.args or node.kwargs)):
            node.node = self._around(given)
        if node.name == "format":
            node.args = [self._around(part) for part in node.args]
            for named in node.kwargs:
                named.value = self._around(named.value)

    def _around(self, node: nodes.Expr, *, each: bool = False) -> nodes.Expr:
        if isinstance(node, nodes.TemplateData) or (isinstance(node, nodes.Const) and node.value is not None):
            return node  # a text of the template's own, such as a blank between two parts
        self.texts.append(_text(node))
        number = nodes.Const(len(self.texts) - 1, lineno=node.lineno)
        return nodes.Filter(node, _EACH if each else _ONE, [number], [], None, None, lineno=node.lineno)

    def _one(self, value: Any, number: int) -> Any:
        if self.is_refused(value):
            raise DeltaIllegalArgumentException(
                f"{self.texts[number]} in {self.where} {_shown(value)} in this run. {self.way_out}"
            )
        return value

    def _each(self, values: Any, number: int) -> Any:
        if isinstance(values, str) or not isinstance(values, Iterable) or self.is_refused(values):
            return self._one(values, number)
        kind = tuple if isinstance(values, tuple) else list
        return kind(self._one(value, number) for value in values)


def is_nothing(value: Any) -> bool:
    """Return whether a value says nothing: ``None``, also behind a proxy, undefined, or without content."""
    if isinstance(value, str):
        return not value.strip()
    return _prints_nothing(value) or (isinstance(value, Sized) and not len(value))


def _prints_nothing(value: Any) -> bool:
    return isinstance(value, Undefined) or (not isinstance(value, str) and str(value) in _PRINTED_NOTHING)


def _shown(value: Any) -> str:
    return "is undefined" if isinstance(value, Undefined) else f"is {value!r}"


def _text(node: nodes.Node) -> str:
    """Return an expression about as the Dag file has it."""
    match node:
        case nodes.Name(name=name):
            return str(name)
        case nodes.Const(value=value):
            return repr(value)
        case nodes.Getattr(node=of, attr=name):
            return f"{_text(of)}.{name}"
        case nodes.Getitem(node=of, arg=key):
            return f"{_text(of)}[{_text(key)}]"
        case nodes.Call(node=of, args=arguments):
            return f"{_text(of)}({', '.join(map(_text, arguments))})"
        case nodes.Filter(node=nodes.Expr() as of, name=name):
            return f"{_text(of)}" if name in (_ONE, _EACH) else f"{_text(of)} | {name}"
        case nodes.Concat(nodes=parts):
            return " ~ ".join(map(_text, parts))
        case nodes.Or(left=left, right=right):
            return f"{_text(left)} or {_text(right)}"
    return "an expression"
