"""Which functions an expression in a Dag may call on Spark.

Predicates and expressions are templated, and Spark runs them with the rights of its driver: ``reflect`` calls any JVM method.
A condition may call Spark's built-in functions that are deterministic and depend only on their arguments (outside predicates,
also on the clock); an assigned expression may also call random functions and functions registered in the session. The list is
that of Spark 4.3 (a test compares it with the registry); an older Spark itself refuses functions that it lacks. The text is
tokenised by Spark's lexical rules; anything ambiguous is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_delta.contract.queries import CALLS_JVM, NAMES_FROM_TEXT


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


NOT_DETERMINISTIC = _names(
    """
    from_base32 hmac input_file_block_length input_file_block_start input_file_name jaro_winkler_similarity
    monotonically_increasing_id rand randn random randstr shuffle spark_partition_id timestamp_nanos
    to_base32 try_variant_array_append try_variant_insert try_variant_set uniform unix_nanos uuid
    variant_array_append variant_delete variant_insert variant_set variant_strip_nulls
    """
)
"""Functions with a different value at each evaluation, by their Spark SQL names."""

OF_THE_SESSION = _names(
    """
    current_timestamp now localtimestamp current_date curdate current_time current_timezone current_user
    user session_user current_catalog current_database current_schema localtime
    """
)
"""Functions whose value depends on who evaluates them, and when."""

DETERMINISTIC = _names(
    """
    abs acos acosh add_months aes_decrypt aes_encrypt aggregate and approx_top_k_estimate array array_append
    array_compact array_contains array_distinct array_except array_insert array_intersect array_join array_max
    array_min array_position array_prepend array_remove array_repeat array_size array_sort array_union
    arrays_overlap arrays_zip ascii asin asinh assert_true atan atan2 atanh base64 between bigint bin binary
    bit_count bit_get bit_length bitmap_bit_position bitmap_bucket_number bitmap_count boolean bround btrim
    cardinality case cast cbrt ceil ceiling char char_length character_length chr coalesce collate collation
    concat concat_ws contains conv convert_timezone cos cosh cot crc32 csc date date_add date_diff date_format
    date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek
    dayofyear decimal decode degrees div double e element_at elt encode endswith equal_null exists exp expm1
    extract factorial filter find_in_set flatten float floor forall format_number format_string from_csv
    from_json from_unixtime from_utc_timestamp get get_json_object getbit greatest hash hex hll_sketch_estimate
    hll_union hour hypot if ifnull ilike in initcap instr int is_valid_utf8 is_valid_variant is_variant_null
    isnan isnotnull isnull json_array_length json_object_keys kll_sketch_get_n_bigint kll_sketch_get_n_double
    kll_sketch_get_n_float kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double
    kll_sketch_get_quantile_float kll_sketch_get_rank_bigint kll_sketch_get_rank_double
    kll_sketch_get_rank_float kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float
    kll_sketch_to_string_bigint kll_sketch_to_string_double kll_sketch_to_string_float last_day lcase least left
    len length levenshtein like ln locate log log10 log1p log2 lower lpad ltrim luhn_check make_date
    make_dt_interval make_interval make_time make_timestamp make_timestamp_ltz make_timestamp_ntz
    make_valid_utf8 make_ym_interval map map_concat map_contains_key map_entries map_filter map_from_arrays
    map_from_entries map_keys map_values map_zip_with mask md5 minute mod month monthname months_between
    named_struct nanvl negative next_day not nullif nullifzero nvl nvl2 octet_length or overlay parse_json
    parse_url pi pmod position positive pow power printf quarter quote radians raise_error reduce regexp
    regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr repeat
    replace reverse right rint rlike round rpad rtrim schema_of_csv schema_of_json schema_of_variant
    schema_of_xml sec second sentences sequence sha sha1 sha2 shiftleft shiftright shiftrightunsigned sign
    signum sin sinh size slice smallint sort_array soundex space split split_part sqrt st_asbinary
    st_geogfromwkb st_geomfromwkb st_setsrid st_srid startswith str_to_map string struct substr substring
    substring_index tan tanh theta_difference theta_intersection theta_sketch_estimate theta_union time
    time_bucket time_diff time_from_micros time_from_millis time_from_seconds time_to_micros time_to_millis
    time_to_seconds time_trunc timediff timestamp timestamp_micros timestamp_millis timestamp_seconds
    timestampadd timestampdiff tinyint to_binary to_char to_csv to_date to_json to_number to_time to_timestamp
    to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp to_varchar to_variant_object to_xml
    transform transform_keys transform_values translate trim trunc try_add try_aes_decrypt try_cast try_divide
    try_element_at try_make_interval try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_mod
    try_multiply try_parse_json try_parse_url try_subtract try_to_binary try_to_date try_to_number try_to_time
    try_to_timestamp try_url_decode try_validate_utf8 try_variant_get tuple_difference_double
    tuple_difference_integer tuple_difference_theta_double tuple_difference_theta_integer
    tuple_intersection_double tuple_intersection_integer tuple_intersection_theta_double
    tuple_intersection_theta_integer tuple_sketch_estimate_double tuple_sketch_estimate_integer
    tuple_sketch_summary_double tuple_sketch_summary_integer tuple_sketch_theta_double
    tuple_sketch_theta_integer tuple_union_double tuple_union_integer tuple_union_theta_double
    tuple_union_theta_integer typeof ucase unbase64 unhex unix_date unix_micros unix_millis unix_seconds
    unix_timestamp upper url_decode url_encode validate_utf8 variant_get vector_avg vector_cosine_similarity
    vector_inner_product vector_l2_distance vector_norm vector_normalize vector_sum weekday weekofyear when
    width_bucket xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number xpath_short
    xpath_string xxhash64 year zeroifnull zip_with
    """
)
"""Built-in scalar functions that are deterministic, have no side effects and depend only on their arguments."""

UNSAFE = _names("from_avro to_avro schema_of_avro from_protobuf to_protobuf from_xml") | {*CALLS_JVM, NAMES_FROM_TEXT}
"""Functions that call JVM methods, read files named in their arguments, or turn text into identifiers."""

OTHERS = _names(
    """
    any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate
    approx_top_k_combine array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg
    bool_and bool_or collations collect_list collect_set collect_union corr count count_if count_min_sketch
    counter_diff covar_pop covar_samp cume_dist current_path dense_rank every explode explode_outer first first_value grouping
    grouping_id histogram_numeric hll_sketch_agg hll_union_agg inline inline_outer json_tuple
    kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double
    kll_sketch_agg_float kurtosis lag last last_value lead listagg max max_by mean measure median min min_by
    mode nth_value ntile percent_rank percentile percentile_approx percentile_cont percentile_disc posexplode
    posexplode_outer python_worker_logs range rank regr_avgx regr_avgy regr_count regr_intercept regr_r2
    regr_slope regr_sxx regr_sxy regr_syy row_number schema_of_variant_agg session_window skewness some
    sql_keywords stack std stddev stddev_pop stddev_samp string_agg sum theta_intersection_agg theta_sketch_agg
    theta_union_agg try_avg try_sum tuple_intersection_agg_double tuple_intersection_agg_integer
    tuple_sketch_agg_double tuple_sketch_agg_integer tuple_union_agg_double tuple_union_agg_integer var_pop
    var_samp variance variant_explode variant_explode_outer version window window_time
    """
)
"""Spark's other built-in functions: aggregates, windows, generators, table functions, functions of the session."""

# Words that may precede a parenthesis without being a call.
_WORDS = _names(
    """
    and or not in between like rlike ilike regexp is when then else end case as distinct using on div interval any all some
    escape from for over partition by order both leading trailing varchar character dec numeric within group
    """
)
# No possessive quantifier on a group: Python before 3.11.5 matches them wrongly.
_TOKEN = re.compile(
    r"""
      (?P<space>\s++|--[^\r\n\\]*+(?:\\(?!\n)[^\r\n\\]*+)*)
    | (?P<string>[rR](?:'[^']*+'|"[^"]*+")|'[^'\\]*+(?:\\.[^'\\]*+)*'|"[^"\\]*+(?:\\.[^"\\]*+)*")
    | `(?P<quoted>[^`]*+(?:``[^`]*+)*)`(?!`)
    | (?P<word>\w++)
    | (?P<other>/\*|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENING, _CLOSING = frozenset("(["), frozenset(")]")
MAX_DEPTH = 32
MAX_TOKENS = 10_000
_UNREADABLE = {"'": "an unclosed quote", '"': "an unclosed quote", "`": "an unclosed backtick"}
_UNREADABLE |= {"/*": "a comment between /* and */", "$": "a dollar sign"}
_UNREADABLE["\\"] = "a backslash outside a string"  # at the end of a comment it makes Spark continue the comment
_AFTER_COLUMN = _names("and between div escape ilike in is like not or regexp rlike")


def refused_function(text: str, *, assigned: bool = False, session: bool = True) -> str | None:
    """Return why an expression is refused, for an error message; ``None`` if it is allowed.

    :param assigned: whether its value is stored rather than used as a condition; it is then evaluated once, and may be random.
    :param session: whether it may depend on the time, the user and the like.
    """
    if "${" in text:  # even inside strings: ${env:HOME} is read from the driver's environment
        return r"contains ${, which Spark replaces by a variable; write $\{ in a string"
    previous: list[tuple[str, str]] = []  # the last two tokens: kind, text
    for kind, value in _tokens(text):
        if kind == "other" and value in _UNREADABLE:
            return f"contains {_UNREADABLE[value]}"
        if kind == "string" and previous and previous[-1] == ("word", "using"):
            return "runs a script (USING)"
        if previous == [("other", "("), ("word", "table")] and (
            kind == "quoted" or (kind == "word" and value not in _AFTER_COLUMN)
        ):
            return "contains a subquery (TABLE)"
        if value == "(" and kind == "other" and previous:
            last = previous[-1]
            qualified = len(previous) > 1 and previous[-2] == ("other", ".")
            if (problem := _called(*last, qualified, assigned, session)) is not None:
                return problem
        previous = [*previous[-1:], (kind, value)]
    return None


def oversized(text: str) -> str | None:
    """Return why an expression is too large to parse, for an error message; ``None`` if it is not.

    The time that the parser needs grows with every operator, and faster with every level of nesting.
    """
    depth = count = types = 0
    before = ""
    for kind, value in _tokens(text):
        if value in _OPENING and kind == "other":
            depth += 1
            if depth > MAX_DEPTH:
                return f"is nested too deeply (more than {MAX_DEPTH} levels)"
        elif value in _CLOSING and kind == "other":
            depth -= 1
        elif value == "<" and before in ("array", "map", "struct"):
            types += 1
            if types > MAX_DEPTH:
                return f"has more than {MAX_DEPTH} nested types"
        if kind == "quoted" or (kind == "word" and not value[0].isdecimal()) or (kind == "other" and value != ","):
            count += 1
            if count > MAX_TOKENS:
                return f"has more than {MAX_TOKENS:,} names and operators"
        before = value
    return None


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for match in _TOKEN.finditer(text):
        kind = str(match.lastgroup)
        if kind == "space":
            continue
        value = match[kind]
        if kind == "other" and not value.isascii():
            continue  # may be white space to Spark, which then calls the name before it
        yield kind, value.replace("``", "`") if kind == "quoted" else value.lower() if kind == "word" else value


def _called(kind: str, name: str, qualified: bool, assigned: bool, session: bool) -> str | None:
    if kind == "string":  # an identifier where spark.sql.ansi.doubleQuotedIdentifiers is set
        return f"calls {name}" if name[:1] == '"' else None
    if kind == "other" or (kind == "word" and not qualified and name in _WORDS):
        return None
    folded = name.lower()
    if folded in UNSAFE:
        return f"calls {folded}(), which is never allowed"
    own = assigned and folded not in OTHERS | DETERMINISTIC | NOT_DETERMINISTIC | OF_THE_SESSION
    if own:
        return None
    if qualified:
        return f"calls {name}() by a qualified name; use the plain names of Spark's built-in functions"
    if folded in DETERMINISTIC or (session and folded in OF_THE_SESSION) or (assigned and folded in NOT_DETERMINISTIC):
        return None
    what = "is not deterministic" if folded in NOT_DETERMINISTIC else "is not one of Spark's built-in deterministic functions"
    return f"calls {name}(), which {what}"
