"""Keys whose templates have no value in a run: refused where they are rendered, whatever task has them."""

from __future__ import annotations

import datetime
from types import SimpleNamespace

import lazy_object_proxy
import pytest
from airflow.sdk import DAG, BaseOperator

from airflow_delta import exceptions
from airflow_delta.operators.clone import DeltaCloneOperator
from airflow_delta.operators.convert import DeltaConvertOperator
from airflow_delta.operators.create import DeltaCreateTableOperator
from airflow_delta.operators.delete_update import DeltaDeleteOperator
from airflow_delta.operators.stream import DeltaStreamOperator
from airflow_delta.operators.transaction import DeltaStartTransactionOperator
from airflow_delta.tasks.base import DeltaOperator
from airflow_delta.tasks.keys.named_fields import KEY_FIELDS
from support.task_classes import task_classes

REFUSED = exceptions.DeltaIllegalArgumentException

DAY = datetime.datetime(2026, 3, 29, tzinfo=datetime.UTC)
CONTEXT = {
    "dag_run": SimpleNamespace(conf={}, partition_key=None, logical_date=None, data_interval_start=None),
    "params": {"x": None, "empty": "", "blank": " ", "none": [], "batch": 7, "zero": 0, "region": "eu", "parts": ["a", None]},
    "proxied": lazy_object_proxy.Proxy(lambda: None),
    "run_id": "manual__1",
    "data_interval_start": DAY,
}


def key_of(template, field="transaction_key", *, native=False, **scope):
    dag = DAG("keys", schedule=None, start_date=DAY, render_template_as_native_obj=native)
    operator = DeltaStartTransactionOperator(task_id="start", table="/t", dag=dag, **{field: template})
    operator.render_template_fields({**CONTEXT, **scope})
    return getattr(operator, field)


NOTHING = {
    "orders/{{ dag_run.conf.get('batch') }}": r"dag_run.conf.get\('batch'\) in",
    "orders/{{ dag_run.conf['batch'] }}": r"dag_run.conf\['batch'\] in",
    "orders/{{ params.x }}": "params.x in",
    "orders/{{ params.missing }}": "params.missing in transaction_key='orders/{{ .* }}' of the task 'start' is undefined",
    "orders/{{ params.empty }}": "params.empty in",
    "orders/{{ params.blank }}": "params.blank in",
    "orders/{{ params.none }}": "params.none in",
    "orders/{{ dag_run.conf }}": "dag_run.conf in",
    "orders/{{ dag_run.partition_key }}": "dag_run.partition_key in .* is None",
    "orders/{{ dag_run.logical_date }}": "dag_run.logical_date in",
    "orders/{{ dag_run.data_interval_start | ds }}": r"dag_run.data_interval_start \| ds in",
    "orders/{{ dag_run.logical_date.isoformat() }}": "has no attribute 'isoformat'",
    "orders/{{ ds }}": "ds in .* is undefined",
    "orders/{{ proxied }}": "proxied in",
    "{{ 'orders/' ~ params.x }}": "params.x in",
    "{{ params.region ~ '/' ~ params.empty }}": "params.empty in",
    "{{ 'orders/%s' % params.x }}": "params.x in",
    "{{ 'orders/%s/%s' % (params.region, params.x) }}": r"an expression in|params.x in",
    "{{ 'orders/{}'.format(params.x) }}": "params.x in",
    "{{ 'orders/{day}'.format(day=params.x) }}": "params.x in",
    "{{ '/'.join(params.parts) }}": "params.parts in",
    "{{ 'orders/%s' | format(params.x) }}": "params.x in",
    "{{ [params.region, params.x] | join('/') }}": "an expression in",
    "{{ params.parts | join('/') }}": "params.parts in",
    "orders/{{ params.x | string }}": "params.x in",
    "orders/{{ params.x | lower }}": "params.x in",
    "orders/{{ params.x | int }}": "params.x in",
    "orders/{{ params.x | tojson }}": "params.x in",
    "{% set key = 'orders/' ~ params.x %}{{ key }}": "params.x in",
    "{% set key %}orders/{{ params.x }}{% endset %}{{ key }}": "params.x in",
    "{% macro key(x) %}orders/{{ x }}{% endmacro %}{{ key(params.x) }}": "x in",
    "orders/{% if params.batch %}{{ params.x }}{% endif %}": "params.x in",
    "orders/{{ params.x or '' }}": "params.x or '' in",
    "{{ params.x }}": "params.x in",
    "orders/{{ none }}": "None in",
}


@pytest.mark.parametrize("native", [False, True], ids=["text", "native"])
@pytest.mark.parametrize("template", NOTHING)
def test_what_has_no_value_is_refused_by_name(template, native):
    with pytest.raises(REFUSED, match=NOTHING[template]):
        key_of(template, native=native)


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("orders", "orders"),
        ("orders/{{ run_id }}", "orders/manual__1"),
        ("orders/{{ params.zero }}", "orders/0"),
        ("orders/{{ params.region ~ '/' ~ params.batch }}", "orders/eu/7"),
        ("orders/{{ data_interval_start.isoformat() }}", "orders/2026-03-29T00:00:00+00:00"),
        ("orders/{{ data_interval_start | ts }}", "orders/2026-03-29T00:00:00+00:00"),
        ("orders/{{ (dag_run.logical_date | ts) or run_id }}", "orders/manual__1"),
        ("orders/{{ params.x | default('all', true) }}", "orders/all"),
        ("orders/{{ params.missing | default('all') | upper }}", "orders/ALL"),
        ("orders/{{ params.x | int(9) }}", "orders/9"),
        ("orders/{{ params.x if params.x else 'all' }}", "orders/all"),
        ("orders{% if params.x %}/{{ params.x }}{% endif %}", "orders"),
        ("{% for part in [1, 2] %}{{ part }}{% if not loop.last %}-{% endif %}{% endfor %}-", "1-2-"),
        ("{{ ['orders', params.batch] | join('/') }}", "orders/7"),
        ("{{ 'orders/%s' % params.batch }}", "orders/7"),
        ("{{ 'orders/{}'.format(params.batch) }}", "orders/7"),
        ("{{ params.region ~ ' ' ~ params.batch }}", "eu 7"),
        ("{{ '' ~ params.region }}", "eu"),
    ],
)
@pytest.mark.parametrize("native", [False, True], ids=["text", "native"])
def test_what_has_a_value_is_rendered_as_ever(template, key, native):
    assert key_of(template, native=native) == key


def test_filters_and_macros_of_the_dag():
    dag = DAG(
        "keys",
        schedule=None,
        start_date=DAY,
        user_defined_macros={"half": lambda day: day // 2},
        user_defined_filters={"short": lambda text: text[:3]},
    )
    key = "{{ half(params.batch) }}/{{ 'orders' | short }}"
    operator = DeltaStartTransactionOperator(task_id="start", table="/t", transaction_key=key, dag=dag)
    operator.render_template_fields(CONTEXT, dag.get_template_env())
    assert operator.transaction_key == "3/ord"


@pytest.mark.parametrize(("field", "template"), [("app_id", "load/{{ params.x }}"), ("txn_version", "{{ params.x | int }}")])
def test_the_monotonic_scheme(field, template):
    with pytest.raises(REFUSED, match=f"params.x in {field}="):
        key_of(template, field)


@pytest.mark.parametrize(
    "template", [lambda context, jinja_env: None, lambda context, jinja_env: "", "{% if params.x %}k{% endif %}"]
)
def test_a_key_that_comes_to_nothing_is_not_the_default_key(template):
    with pytest.raises(REFUSED, match="transaction_key of the task 'start' is"):
        key_of(template)


def test_an_xcom_that_is_none():
    with DAG("keys", schedule=None, start_date=DAY) as dag:
        upstream = BaseOperator(task_id="find")
        operator = DeltaStartTransactionOperator(task_id="start", table="/t", transaction_key=upstream.output)

    class Pulling(SimpleNamespace):
        def xcom_pull(self, **_):
            return None

    ti = Pulling(task_id="start", run_id="a_run", map_index=-1, dag_id="keys", task=operator)
    with pytest.raises(REFUSED, match="transaction_key of the task 'start' is None"):
        operator.render_template_fields({**CONTEXT, "ti": ti, "dag": dag, "expanded_ti_count": None})


@pytest.mark.parametrize("given", ["partial", "expand", "expand_kwargs"])
def test_mapped_tasks(given):
    template = "orders/{{ params.x }}"
    with DAG("keys", schedule=None, start_date=DAY) as dag:
        if given == "partial":
            mapped = DeltaDeleteOperator.partial(task_id="delete", transaction_key=template).expand(table=["/a", "/b"])
        elif given == "expand":
            mapped = DeltaDeleteOperator.partial(task_id="delete", table="/a").expand(transaction_key=[template, None])
        else:
            mapped = DeltaDeleteOperator.partial(task_id="delete", table="/a").expand_kwargs(
                [{"transaction_key": template}, {"transaction_key": None}]
            )
    for index in (0,) if given == "partial" else (0, 1):
        ti = SimpleNamespace(task_id="delete", run_id="a_run", map_index=index, dag_id="keys", is_mapped=True)
        with pytest.raises(REFUSED, match="transaction_key"):
            mapped.render_template_fields({**CONTEXT, "ti": ti, "dag": dag, "task": mapped, "expanded_ti_count": 2})


def test_instances_without_a_key_have_the_default_one():
    with DAG("keys", schedule=None, start_date=DAY) as dag:
        mapped = DeltaDeleteOperator.partial(task_id="delete", predicate="id = 1").expand_kwargs(
            [{"table": "/a", "transaction_key": "orders"}, {"table": "/b"}]
        )
    keys = []
    for index in (0, 1):
        ti = SimpleNamespace(task_id="delete", run_id="a_run", map_index=index, dag_id="keys", is_mapped=True)
        context = {**CONTEXT, "ti": ti, "dag": dag, "task": mapped, "expanded_ti_count": 2}
        mapped.render_template_fields(context)
        keys.append((context["task"].transaction_key, context["task"].app_id))
    assert keys == [("orders", None), (None, None)]


NEEDED = {
    DeltaCloneOperator: {"source": "/s"},
    DeltaConvertOperator: {},
    DeltaCreateTableOperator: {"schema": "id BIGINT"},
    DeltaDeleteOperator: {"predicate": "id = 1"},
}


@pytest.mark.parametrize("kind", NEEDED, ids=lambda kind: kind.__name__)
def test_operations_with_a_transaction_of_their_own(kind):
    operator = kind(task_id="task", table="/t", transaction_key="orders/{{ params.x }}", **NEEDED[kind])
    with pytest.raises(REFUSED, match=r"params\.x in transaction_key"):
        operator.render_template_fields(dict(CONTEXT))


def test_a_stream():
    operator = DeltaStreamOperator(
        task_id="task", python_callable=lambda: None, table="/t", checkpoint_location="/c", query_id="q/{{ params.x }}"
    )
    with pytest.raises(REFUSED, match=r"params\.x in query_id"):
        operator.render_template_fields(dict(CONTEXT))


def test_every_task_with_a_key_renders_it_here():
    kinds = [kind for kind in task_classes() if set(kind.template_fields) & set(KEY_FIELDS)]
    assert len(kinds) > 15
    here = DeltaOperator._do_render_template_fields
    assert [kind for kind in kinds if kind._do_render_template_fields is not here] == []
