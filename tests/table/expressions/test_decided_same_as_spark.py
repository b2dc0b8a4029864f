"""Expressions that are decided here have Spark's value, type and errors, for every row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.spark_expressions import awkward_rows, differences, spark_view

pytestmark = pytest.mark.spark

LITERALS = r"""
1; -1; - 1; 2147483648; -2147483648; -9223372036854775808; 9223372036854775808; 1.0; .5; 5.; 0.10; 00.1; 1e3; 1.5e-2; 1Y;
-128Y; 2S; 3L; 1.5F; 2.5D; 1.5BD; 100BD; 1e3BD; 'a'; "b"; 'it''s'; 'a\nb'; 'a\\b'; '\u00e9\x'; 'a' 'b'; r'\n'; true; FALSE;
NULL; X'1F2'; X''; DATE '2024-02-29'; DATE '2024-1'; TIMESTAMP '2024-02-29 10:11:12.5'; TIMESTAMP '2024-02-29 10:11:12 UTC';
TIMESTAMP_NTZ '2024-02-29 10:11:12'; timestamp_ltz '2024-01-01'; -(1); +1; - -1;
--1
 2;
1 /* comment */;
"""

COLUMNS = """
i; `i`; I; s; st.x; ST.z; (st).Z; st.x + 1; b; h; l; f; d; c; e; g; o; y; t; u; v;
"""

COMPARISONS = """
i = j; i <> j; i != j; i == j; i < j; i <= j; i > j; i >= j; i <=> j; d = d; d = f; d < f; f >= d; d > 1; f = 0.1; d = 0.1;
f > 0.1D; d <=> f; d = -0.0D; d <> double('NaN'); i = l; b < h; l = d; i = f; l = f; c = i; c = 1.25; c > d; c = e; i < 1.5;
l > 1.5; g = i; g = l; e = j; c = 1; e > 0; s = q; s < q; s >= 'a'; s <=> q; s <=> NULL; o = p; o < p; y = X'6162';
y < X'61'; t = r; t < r; t <= DATE '1970-01-01'; t = u; u > v; t < v; u = TIMESTAMP '2024-02-29 23:59:59.999999'; i = '1';
i = n; b = '1'; d = '1.5'; d = n; c = '1.25'; c = n; t = '2024-02-29'; t > w; u > '2024-01-01'; o = 'true'; o = n;
v = '2024-01-01'; i = NULL; NULL = NULL; NULL <=> NULL; NULL <=> i; i IS NULL; i IS NOT NULL; st IS NULL; st.x IS NULL;
NULL IS NULL; o IS TRUE; o IS NOT TRUE; o IS FALSE; o IS UNKNOWN; o IS NOT UNKNOWN; (i > j) IS NOT FALSE;
i IS DISTINCT FROM j; i IS NOT DISTINCT FROM j; d IS NOT DISTINCT FROM f; i = j = o; i BETWEEN 0 AND j;
i NOT BETWEEN 0 AND j; d BETWEEN f AND 1e300; s BETWEEN 'a' AND 'z'; c BETWEEN 0 AND 1.5; i IN (0, 3); i NOT IN (0, 3);
i IN (0, NULL); i NOT IN (0, NULL); i IN (j, 3); i IN (NULL); d IN (0.0D, double('NaN')); d IN (f, 2.5); c IN (1.25, 0);
c IN (1, i); s IN ('abc', '', q); t IN (DATE '1970-01-01', r); l IN (5, i); i IN (1.5, 3); NULL IN (1, 2); b IN (1, 127);
t IN (u, r); y IN (X'6162'); o IN (true, NULL); greatest(i, j); least(i, j, 3); greatest(d, f); least(d, f, 0.0D);
greatest(c, 1); least(s, q); greatest(t, r); greatest(NULL, i); greatest(-0.0D, d); least(d, -0.0D); greatest(o, p);
least(t, u); greatest(c, e, 1); greatest(y, X'61'); st = st; st <> st; st <=> NULL; st = if(o, st, NULL);
st <=> if(o, st, NULL); st = named_struct('x', i, 'Z', q); st <=> named_struct('x', 1, 'Z', 'a'); ar = ar; ar <=> NULL;
ar <=> if(p, ar, NULL); ar <> if(p, ar, NULL); st IS DISTINCT FROM if(o, st, NULL); nullif(ar, if(p, ar, NULL));
named_struct('d', d, 'i', i) = named_struct('d', -d, 'i', j); named_struct('d', d, 'i', i) <=> named_struct('d', 0.0D, 'i', i);
named_struct('d', d, 'r', ar, 's', st) = named_struct('d', double(f), 'r', if(o, ar, NULL), 's', st);
named_struct('f', f) <> named_struct('f', -f); named_struct('c', c, 'y', y) <=> named_struct('c', nullif(c, 0), 'y', y);
"""

CONDITIONS = """
o AND p; o OR p; NOT o; NOT o AND p; o OR p AND i > 0; i > 0 AND j > 0 AND l > 0; o AND NULL; 1 / i > 0 AND false;
1 / i > 0 OR true; NULL OR p; NOT NULL;
i <> 0 AND 1 / i > 0; i = 0 OR 1 / i > 0; 1 / i > 0 OR i = 0; o AND 1 / i > 0;
CASE WHEN i > 0 THEN 'a' WHEN i < 0 THEN 'b' END; CASE WHEN i <> 0 THEN 1 / i ELSE 0 END;
CASE i WHEN 0 THEN 'zero' WHEN 3 THEN 'three' ELSE 'other' END; CASE WHEN o THEN i WHEN p THEN l ELSE 1.5 END;
CASE WHEN o THEN c ELSE e END; CASE WHEN o THEN c ELSE 1 END; CASE WHEN o THEN t ELSE u END;
CASE WHEN o THEN NULL ELSE i END; CASE WHEN o THEN NULL END; CASE d WHEN double('NaN') THEN 1 ELSE 0 END;
CASE WHEN o THEN st ELSE NULL END; CASE WHEN 1 / i > 0 THEN 1 ELSE 2 END;
CASE WHEN i = 0 THEN 0 WHEN 10 / i > 1 THEN j ELSE CAST(n AS INT) END; CASE WHEN o THEN f ELSE i END;
CASE WHEN o THEN b ELSE h END; CASE WHEN o THEN b ELSE 1 END; CASE WHEN o THEN f ELSE c END; if(o, i, j);
if(i = 0, 0, 1 / i); if(o, NULL, s); if(NULL, 1, 2); coalesce(i, j); coalesce(i, 1 / j, 0); coalesce(NULL, s, q);
coalesce(i, c); coalesce(i, l, 0); coalesce(NULL, NULL); coalesce(st.x, 0); coalesce(d, f); coalesce(t, u); coalesce(f, i);
nvl(i, j); nvl(i, 1 / j); ifnull(s, ''); nvl2(i, j, l); nvl2(i, 1 / i, 0); nullif(i, 0); nullif(i, j); 1 / nullif(i, 0);
nullif(s, ''); nullif(d, double('NaN')); nullif(c, 0); nullif(i, 1.5); isnull(i); isnotnull(s); isnan(d); isnan(f);
nanvl(d, 0.0D); nanvl(d, 1 / d);
"""

ARITHMETIC = """
i + j; i - j; i * j; i / j; i % j; i div j; -i; +i; - - i; abs(i); i + 1; i * 2L; b + b; b * b; b + h; b - 1Y; -b; -h; -l;
abs(b); abs(l); l + 1; l * l; l - i; l div j; l % j; b % h; b div h; h / b; l / i; l div -1; l % -1; mod(i, j); pmod(i, j);
pmod(l, j); pmod(-7, j); pmod(b, h); -7 % j; d + f; d - f; d * f; d / f; d % 2; d % f; 7 % d; f + f; f * f; f / f; f % f;
f - i; f + l; f * b; d + i; d / 0; i / 0.5D; -d; -f; abs(d); abs(f); +d; d + 1.5; f * 1.5; c * d; c / d; e + d; d - c; 5 % d;
d % double('Infinity'); c + c; c - c; c * c; c / c; c % c; c + 1; c * 2; c / 3; c % 2; c - i; c * l; c / j; c + b; 1 - c;
2 / c; 10 % c; c + 1Y; c * 1.5; c / 0.01; 0.1 / c; -c; abs(c); +c; c + c + c; c * c * c; 0.1 + 0.2; 1.0 / 3; 2.50 * 2;
100 * 1.1; 5 / 2.0; e + e; e - e; e * e; e / e; e % c; e + c; e * c; e / c; c / e; e - 1; e * 2; e / 3; e + i; g + g; g - 1;
g * 2; g * g; g / 3; g % 7; g / g; g + c; e + g; g * 0.5; e * e * c; -g; c / c / c; e / g; i & j; i | j; i ^ j; ~i; b & h;
l | i; ~b; i + j * 2; (i + j) * 2; i - j - 1; 2 * j % 3; i + NULL; NULL * c; NULL / i; d - NULL; i / NULL; NULL % j; - j % 3;
-j + 1; 7 - -j; i + j = 3; i & j + 1; i | j ^ 3 & 5; NULL + 1 / i; i + 1 / j; 1 / i + NULL; (1 / i) / nullif(j, 1);
"""

CASTS = """
CAST(i AS TINYINT); CAST(i AS SMALLINT); CAST(l AS INT); CAST(b AS BIGINT); i::bigint; -i::tinyint; CAST(i AS DOUBLE);
CAST(l AS DOUBLE); CAST(l AS FLOAT); CAST(i AS DECIMAL(10,2)); CAST(i AS DECIMAL(5,2)); CAST(l AS DECIMAL(38,18));
CAST(l AS DECIMAL(20,0)); CAST(b AS DECIMAL(2,0)); CAST(i AS STRING); CAST(l AS STRING); CAST(i AS BOOLEAN);
CAST(b AS BOOLEAN); CAST(d AS INT); CAST(d AS BIGINT); CAST(d AS TINYINT); CAST(f AS SMALLINT); CAST(f AS BIGINT);
CAST(d AS FLOAT); CAST(f AS DOUBLE); CAST(d AS BOOLEAN); CAST(f AS BOOLEAN); CAST(c AS INT); CAST(c AS BIGINT);
CAST(c AS TINYINT); CAST(c AS DOUBLE); CAST(e AS DOUBLE); CAST(g AS DOUBLE); CAST(c AS DECIMAL(4,1));
CAST(c AS DECIMAL(20,5)); CAST(e AS DECIMAL(10,2)); CAST(g AS DECIMAL(38,2)); CAST(e AS BIGINT); CAST(g AS BIGINT);
CAST(e AS INT); CAST(c AS STRING); CAST(e AS STRING); CAST(g AS STRING); CAST(c AS BOOLEAN); CAST(0.005 AS DECIMAL(5,2));
CAST(c AS DECIMAL(9,1)); CAST(o AS INT); CAST(o AS DOUBLE); CAST(o AS STRING); CAST(o AS TINYINT); CAST(n AS INT);
CAST(n AS BIGINT); CAST(n AS TINYINT); CAST(n AS DOUBLE); CAST(n AS FLOAT); CAST(n AS DECIMAL(10,2)); CAST(n AS BOOLEAN);
CAST(n AS BINARY); CAST(s AS BINARY); CAST(s AS INT); CAST(w AS DATE); CAST(w AS TIMESTAMP); CAST(w AS TIMESTAMP_NTZ);
int(n); string(i); boolean(n); double(i); date(w); CAST(s AS BOOLEAN); CAST(s AS DATE); TRY_CAST(n AS INT);
TRY_CAST(n AS DOUBLE); TRY_CAST(n AS BOOLEAN); TRY_CAST(w AS DATE); TRY_CAST(i AS TINYINT); TRY_CAST(l AS INT);
TRY_CAST(d AS INT); TRY_CAST(c AS DECIMAL(4,2)); TRY_CAST(w AS TIMESTAMP); TRY_CAST(n AS DECIMAL(10,2));
TRY_CAST(1 / i AS INT); CAST(t AS STRING); CAST(u AS STRING); CAST(v AS STRING); CAST(t AS TIMESTAMP);
CAST(t AS TIMESTAMP_NTZ); CAST(u AS DATE); CAST(v AS DATE); CAST(u AS TIMESTAMP_NTZ); CAST(v AS TIMESTAMP);
CAST(NULL AS INT); CAST(NULL AS DECIMAL(5,2)); CAST('1' AS INT); CAST(i AS INT); CAST(' 5 ' AS BIGINT);
CAST('2024-02-29' AS DATE);
"""

STRINGS = r"""
concat(s, q); s || q; s || '-' || i; concat(s, i, o); concat(s, NULL); concat(t, ' ', c); s || q = 'abca'; concat(s);
'a' || 1; concat(s, i div j); concat(u, v); upper(s); lower(s); ucase(q); lcase(s); trim(s); ltrim(s); rtrim(s); btrim(s);
length(s); len(q); char_length(s); character_length(q); length(y); length(NULL); reverse(s); substring(s, 2);
substring(s, j); substring(s, j, 2); substr(s, -2, 1); substring(s, 0, 2); substring(s, i, j); substring(s, -100, 3);
substring(s, 1, -1); substring(s, -2147483648, 2147483647); substring(s, 2, i); left(s, j); right(s, j); left(s, 0);
right(s, 2); left(s, i); right(s, i); replace(s, 'a', 'xx'); replace(s, 'b'); replace(s, '', 'x'); replace(s, q, s);
lpad(s, 5); rpad(s, 5, 'xy'); lpad(s, j, 'ab'); rpad(s, j); lpad(s, 4, ''); rpad(s, 5, q); lpad(s, 5, 'é😀');
lpad(s, -1, 'a'); instr(s, 'b'); instr(s, q); instr(s, ''); startswith(s, q); endswith(s, q); contains(s, q);
startswith(s, 'a'); s LIKE 'a%'; s LIKE '%b%'; s LIKE '_'; s LIKE '__%'; s NOT LIKE '%a%'; s LIKE 'a\\%b\\_c\\\\';
s LIKE 'a/%b/_c\\' ESCAPE '/'; s LIKE '%\n'; s LIKE ''; s LIKE '%'; s ILIKE 'AB%'; q NOT ILIKE 'A'; s LIKE '%é%';
s LIKE 'abc'; s LIKE '____'; md5(s); sha1(s); sha(y); sha2(s, 256); sha2(y, 0); sha2(s, 512); sha2(s, 224); sha2(s, 384);
crc32(s); crc32(y); md5(y);
"""

NUMBERS = """
ceil(d); floor(d); ceil(f); floor(f); ceil(c); floor(c); ceil(e); floor(e); ceil(i); floor(l); ceiling(c); ceil(b); round(c);
round(c, 1); round(c, 2); round(c, 5); round(e, 3); round(e); round(i); round(i, 2); round(l); bround(c); bround(c, 1);
bround(e, 2); round(2.5); bround(2.5); round(-2.5); round(g, 0); bround(i); sign(i); sign(d); sign(c); signum(f); sqrt(i);
sqrt(d); sqrt(c); sqrt(l); abs(-5); negative(i); positive(c); sign(l); floor(-0.5); ceil(0.5D);
"""

TIMES = """
year(t); quarter(t); month(t); day(t); dayofmonth(t); dayofyear(t); weekofyear(t); weekday(t); dayofweek(t); year(u);
month(v); day(u); dayofweek(u); hour(u); minute(u); second(u); hour(t); extract(YEAR FROM t); extract(month FROM u);
extract(week FROM t); extract(DOY FROM t); extract(DAYOFWEEK FROM t); extract(HOUR FROM u); extract(QUARTER FROM u);
extract(DAY FROM v); extract(minute FROM u); t + 1; t - 1; 1 + t; t + j; t + b; t - h; date_add(t, 1); date_sub(t, j);
date_add(t, i); datediff(t, r); date_diff(r, t); datediff(u, t); datediff(v, u); add_months(t, 1); add_months(t, -1);
add_months(t, j); add_months(u, 12); last_day(t); last_day(u); make_date(2024, j, 1); make_date(2023, 2, j);
make_date(j, 1, 1); trunc(t, 'year'); trunc(t, 'MM'); trunc(t, 'quarter'); trunc(t, 'WEEK'); trunc(u, 'month');
trunc(t, 'yyyy'); trunc(t, 'mon'); date_trunc('year', u); date_trunc('quarter', u); date_trunc('MONTH', u);
date_trunc('week', u); date_trunc('day', u); date_trunc('DD', u); date_trunc('hour', u); date_trunc('minute', u);
date_trunc('second', u); date_trunc('millisecond', u); date_trunc('microsecond', u); date_trunc('month', t);
date_trunc('day', v); date_trunc('MM', u); to_date(t); to_date(u); to_date(v); to_date(w); to_date('2024-02-29');
"""

NESTED = """
struct(i, s); struct(i + 1, s); named_struct('a', i, 'B', s || q); named_struct('a', st.x).a; struct(i, j).i; size(ar);
cardinality(ar); array_contains(ar, 1); array_contains(ar, i); named_struct('x', 1, 'y', NULL); struct(st.x, st.z);
struct(i, named_struct('a', 1 / nullif(i, 0)));
"""

TABLE = {
    "literals": LITERALS,
    "columns": COLUMNS,
    "comparisons": COMPARISONS,
    "conditions": CONDITIONS,
    "arithmetic": ARITHMETIC,
    "casts": CASTS,
    "strings": STRINGS,
    "numbers": NUMBERS,
    "times": TIMES,
    "nested": NESTED,
}


@pytest.fixture(scope="module")
def view(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with spark_view(spark, awkward_rows(), tmp_path_factory.mktemp("rows")) as name:
        yield name


@pytest.mark.parametrize("kind", TABLE)
def test_value_type_and_errors_are_those_of_spark(spark: Any, view: str, kind: str):
    texts = [text.strip() for text in TABLE[kind].split(";") if text.strip()]
    problems = differences(spark, view, awkward_rows(), texts)
    assert not problems, "\n".join(problems)
