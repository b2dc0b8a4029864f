"""Masking credentials in texts, and deciding which options may be written down.

The whole provider uses this module: errors, logs, pages, XCom, and files written beside a table and into its log. It imports
only the standard library, because it is sent to clusters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from airflow_delta.lazy_patterns import lazy_pattern

MASK = "***"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The part between the scheme and an @ in the authority. In Azure URLs that may be a container (container@account).
_USER_INFO = lazy_pattern(r"(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<user>[^/?#\s\"'<>]*)@")
_CONTAINERS = frozenset({"abfs", "abfss", "wasb", "wasbs", "adl", "az", "azure"})
# A password with a slash, which ends the authority for a parser: s3://key:a/b@bucket. A bucket has no colon; a host may.
_BUCKET_USER = lazy_pattern(
    r"(?<![A-Za-z0-9+.-])(?P<scheme>s3[an]?|gcs|gs|abfss?|wasbs?|adl|az|azure)://(?P<user>[^/?#@\s\"'<>]{0,300}:[^\s\"'<>]{0,300})@",
    re.IGNORECASE,
)
_SLASHED_USER = lazy_pattern(
    r"(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://"
    r"(?P<user>[^/?#@:\s\"'<>\[]{1,300}:(?!\d+[/?#])[^/?#@\s\"'<>]{0,300}[/?#][^\s\"'<>]{0,300})@"
)
# A key and a secret without an @, before a slash: s3://key:secret/t.
_COLON = lazy_pattern(r"(?P<scheme>s3[an]?|gcs|gs|abfss?|wasbs?|adl|az|azure)://[^/?#@\s\"'<>]*:[^/?#@\s\"'<>]+", re.IGNORECASE)
# Parameters of URLs, such as signed ones and those of JDBC: ?password=..., &sig=..., ;password=...
_URL = lazy_pattern(r"(?:(?:https?|sc)://|jdbc:)[^\s\"'<>]*", re.IGNORECASE)
_LOCATION_PARAMETER = lazy_pattern(r"(?P<start>[?&#;](?P<name>[A-Za-z0-9_.\-]+)=)(?P<value>[^&;#\s\"'<>()]+)")
_ORACLE = lazy_pattern(r"(?P<driver>jdbc:oracle:[a-z0-9]+:)[^@\s\"'<>]{1,500}@", re.IGNORECASE)
_PARAMETER = lazy_pattern(r"(?P<start>[?&;(,#](?P<name>[A-Za-z0-9_.\-]+)=)(?P<value>\{[^}\s]{0,200}\}|[^&;#\s\"'<>()]+)")
_HARMLESS_PARAMETERS = _words("""
    comp continuation-token database databasename delete delimiter encoding-type encrypt fetch-owner list-type marker
    max-keys partnumber prefix restype start-after uploads versionid x-id table version limit before offset page part q
    ssl sslmode usessl trustservercertificate logintimeout requiressl allowpublickeyretrieval verifyservercertificate
    address address_list connect_data description host port portnumber protocol server servername service_name sid instance
    instancename catalog schema currentschema db warehouse role workgroup outputlocation
    applicationname applicationintent programname multisubnetfailover failover load_balance integratedsecurity
    connecttimeout connectiontimeout sockettimeout querytimeout tcpkeepalive autoreconnect fetchsize defaultrowfetchsize
    defaultfetchsize usecursorfetch rewritebatchedstatements readonly servertimezone timezone connectiontimezone
    characterencoding useunicode zerodatetimebehavior tinyint1isbit preparethreshold stringtype targetservertype
    mode db_close_delay create hostnameincertificate sendstringparametersasunicode
""")

_SECRET_PARTS = _words("""
    accesskey accountkey apikey authorization clientassertion connectionstring cookie credential crypto encryption
    keyfile keytab masterkey passphrase passwd password privatekey secret serviceaccount signature token webhook
""")
_SECRET_WORDS = frozenset({"auth", "bearer", "dsn", "jaas", "key", "keys", "kms", "pass", "proxy", "pwd", "sas", "sig", "user"})
_WORD = lazy_pattern(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")

# Options of object stores, without the prefix of the store.
_STORE_OPTIONS = _words("""
    region default_region endpoint endpoint_url endpoint_url_s3 allow_http allow_invalid_certificates bucket bucket_name
    virtual_hosted_style_request unsigned_payload skip_signature no_sign_request s3_express request_payer
    conditional_put copy_if_not_exists checksum_algorithm imdsv1_fallback metadata_endpoint disable_tagging
    s3_allow_unsafe_rename s3_locking_provider allow_unsafe_rename delta_dynamo_table_name account_name container_name
    storage_account_name storage_use_emulator use_emulator use_fabric_endpoint use_azure_cli disable_instance_discovery
    tenant_id storage_tenant_id authority_host connect_timeout timeout pool_idle_timeout pool_max_idle_per_host
    user_agent http1_only http2_only durable default_content_type max_retries retry_timeout other_locations
    credentials_renewed_by credentials_expire_at
""")

# Options of Spark's sources and of its Parquet writer, in lower case.
_SPARK_OPTIONS = _words("""
    mergeschema recursivefilelookup pathglobfilter modifiedbefore modifiedafter ignorecorruptfiles ignoremissingfiles
    basepath path paths compression encoding charset linesep locale mode columnnameofcorruptrecord singlevariantcolumn
    partitionoverwritemode maxrecordsperfile datetimerebasemode int96rebasemode wholetext dateformat timestampformat
    timestampntzformat timezone enabledatetimeparsingfallback
    sep delimiter quote escape chartoescapequoteescaping comment header inferschema preferdate enforceschema
    ignoreleadingwhitespace ignoretrailingwhitespace nullvalue nanvalue positiveinf negativeinf emptyvalue maxcolumns
    maxcharspercolumn unescapedquotehandling multiline samplingratio columnpruning quoteall escapequotes
    primitivesasstring prefersdecimal allowcomments allowunquotedfieldnames allowsinglequotes allownumericleadingzeros
    allowbackslashescapinganycharacter allowunquotedcontrolchars allownonnumericnumbers dropfieldifallnull
    ignorenullfields rowtag roottag attributeprefix valuetag excludeattribute ignorenamespace rowvalidationxsdpath
    ignoresurroundingspaces validatename avroschema avroschemaurl ignoreextension positionalfieldmatching
    recursivefieldmaxdepth stableidentifierprefixforuniontype
    url dbtable query driver partitioncolumn lowerbound upperbound numpartitions fetchsize batchsize querytimeout
    isolationlevel customschema pushdownpredicate pushdownaggregate pushdownlimit pushdownoffset pushdowntablesample
    prefertimestampntz preparequery hint
    versionasof timestampasof readchangefeed readchangedata startingversion endingversion startingtimestamp
    endingtimestamp snapshot-id as-of-timestamp start-snapshot-id end-snapshot-id branch tag split-size
    hoodie.datasource.query.type as.of.instant subscribe subscribepattern assign kafka.bootstrap.servers startingoffsets
    endingoffsets startingoffsetsbytimestamp endingoffsetsbytimestamp failondataloss minpartitions includeheaders
    kafka.security.protocol kafka.sasl.mechanism maxoffsetspertrigger maxfilespertrigger maxbytespertrigger
    rowspersecond
""")
_DELTA_PREFIXES = ("delta.constraints.", "delta.columnMapping.", "delta.rowTracking.", "delta.generationExpression")
# Parameters of Delta's operations in commitInfo, and fields of the JSON in them.
_DELTA_NAMES = _words("""
    applyPurge auto batchId catalogTable clusterBy clusteringColumns column columns comment condition description expr epochId
    featureName ifExists incremental isFull isManaged isolationLevel matchedPredicates mergePredicate minFileSize mode name
    newClusteringColumns newColumnPath newProtocol newSchema notMatchedBySourcePredicates notMatchedPredicates numFiles nullable
    oldClusteringColumns oldColumnPath oldSchema outputMode partitionBy partitionedBy predicate properties protocol queryId
    readerFeatures replaceOn schema schemaString sourceFormat source sourceVersion specifiedRetentionMillis
    defaultRetentionMillis retentionCheckEnabled statsOnLoad status tableProperties target timestamp triggerName truncateHistory
    type update userMetadata version viewName writerFeatures zOrderBy actionType metadata fields position elementType keyType
    valueType containsNull valueContainsNull minReaderVersion minWriterVersion collectStats convertedSource numSourceFiles
    isManagedTable existed sourcePath baseVersion
""")
_SPARK_PREFIXES = ("parquet.", "orc.", "spark.sql.")
_BOOLEANS = frozenset({"true", "false", "yes", "no", "on", "off", "none", "null", ""})
_SMALL_NUMBER = lazy_pattern(r"[+-]?\d{1,6}(\.\d{1,3})?\s?(ms|s|m|min|h|d|b|k|kb|mb|gb)?", re.IGNORECASE)


# -- texts --------------------------------------------------------------------------------------------------------------------


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """Mask credentials in a text: user info of URLs, parameters of URLs unless known to be harmless, and secrets.

    :param secrets: values to mask wherever they occur.
    """
    for secret in sorted({value for value in secrets if len(value) > 3}, key=len, reverse=True):
        text = text.replace(secret, MASK)
    if "@" in text:
        text = _ORACLE.sub(rf"\g<driver>{MASK}@", text)
        for slashed in (_BUCKET_USER, _SLASHED_USER):
            text = slashed.sub(rf"\g<scheme>://{MASK}@", text)
        text = _USER_INFO.sub(lambda match: f"{match['scheme']}://{_masked_user(match['scheme'], match['user'])}@", text)
    if text.count(":") > 1:
        text = _COLON.sub(rf"\g<scheme>://{MASK}", text)
    if "=" in text:
        text = _URL.sub(lambda url: _PARAMETER.sub(_masked_parameter, url[0]), text)
        text = _LOCATION_PARAMETER.sub(_masked_secret, text)  # a path may have such parameters, too: /data/t?sig=...
    return text


def masked_values(value: Any, secrets: Iterable[str] = ()) -> Any:
    """Return JSON with every string :func:`masked`, except names."""
    secrets = tuple(secrets)
    if isinstance(value, str):
        return masked(value, secrets)
    if isinstance(value, Mapping):
        return {name: masked_values(item, secrets) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked_values(item, secrets) for item in value]
    return value


def masked_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings for display: only what is known to be harmless, also inside JSON strings; the rest is masked.

    Harmless are Delta's own properties and parameters, and truth values and small numbers under a name that does not look secret.
    """
    return {name: _shown(str(name), value) for name, value in settings.items()}


def _shown(name: str, value: Any) -> Any:
    if value is None or value == "" or isinstance(value, bool):
        return value
    if not _is_shown(name) and (_may_be_secret(name) or not _is_small(value)):
        return MASK
    if isinstance(value, Mapping):
        return masked_settings(value)
    if isinstance(value, str) and value.startswith(("{", "[")):
        return _masked_json(value)
    if isinstance(value, list | tuple):
        return _masked_list(value)
    return masked_values(value)


def _masked_list(values: Iterable[Any]) -> list[Any]:
    return [masked_settings(item) if isinstance(item, Mapping) else masked_values(item) for item in values]


def _is_shown(name: str) -> bool:
    """Return whether a setting is one of Delta's, whose value says nothing secret."""
    if name.startswith(_DELTA_PREFIXES) or name in _DELTA_NAMES:
        return True
    return (name.startswith("delta.") or name.lower() in _SPARK_OPTIONS) and not _may_be_secret(name)


def _is_small(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and _is_plain(value))


def _masked_json(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return masked(text)
    shown = _masked_list(value) if isinstance(value, list) else masked_settings(value)
    return text if shown == value else json.dumps(shown, separators=(",", ":"))


def has_user_info(uri: str) -> bool:
    """Return whether a URI has a user or a password before its host (the container of an Azure URI is neither)."""
    if uri.count(":") > 1 and _COLON.match(uri):
        return True
    if "@" not in uri:
        return False
    if _BUCKET_USER.search(uri) or _SLASHED_USER.search(uri):
        return True
    return any(_masked_user(match["scheme"], match["user"]) != match["user"] for match in _USER_INFO.finditer(uri))


def secret_of_location(uri: str) -> str | None:
    """Return what makes a location secret: ``user or password``, or a parameter such as ``?sig=``; ``None`` for nothing.

    A name below a base path may have parameters, too.
    """
    if has_user_info(uri):
        return "user or password"
    parameters = _LOCATION_PARAMETER.finditer(uri) if "=" in uri else ()
    found = next((match for match in parameters if _is_secret_parameter(match["name"])), None)
    return f"{found['start'][0]}{found['name']}=" if found is not None else None


def has_secret(text: str) -> bool:
    """Return whether :func:`masked` would change a text."""
    return masked(text) != text


def user_info_of(url: str) -> tuple[str, ...]:
    """Return the secret parts of a URL: its user info, and the password in it as written and decoded."""
    found: list[str] = []
    slashed = [match for rule in (_BUCKET_USER, _SLASHED_USER) for match in rule.finditer(url)]
    for match in slashed or _USER_INFO.finditer(url):
        user = match["user"]
        if not slashed and _masked_user(match["scheme"], user) == user:
            continue
        _, _, password = user.partition(":")
        found += [user, password, unquote(password)] if password else [user, unquote(user)]
    return tuple(dict.fromkeys(value for value in found if value))


def _masked_user(scheme: str, user: str) -> str:
    if not user or user == MASK or (scheme.lower() in _CONTAINERS and ":" not in user and "@" not in user):
        return user
    return MASK


def _is_secret_parameter(name: str) -> bool:
    """Return whether a parameter of a URL that any scheme may have is part of a signature, or looks secret."""
    lowered = name.lower()
    return lowered.startswith(("x-amz-", "x-goog-", "aws", "googleaccess")) or _may_be_secret(name)


def _masked_secret(match: re.Match[str]) -> str:
    return f"{match['start']}{MASK}" if _is_secret_parameter(match["name"]) else match[0]


def _masked_parameter(match: re.Match[str]) -> str:
    if match["name"].lower() in _HARMLESS_PARAMETERS or match["value"] == MASK:
        return match[0]
    return f"{match['start']}{MASK}"


# -- options --------------------------------------------------------------------------------------------------------------------


def looks_secret(name: str) -> bool:
    """Return whether the name of a setting is obviously that of a secret."""
    flat = re.sub(r"[\s._-]", "", name.lower())
    return any(part in flat for part in _SECRET_PARTS)


def _may_be_secret(name: str) -> bool:
    return looks_secret(name) or any(word.lower() in _SECRET_WORDS for word in _WORD.findall(name))


def is_harmless_store_option(name: str, value: str) -> bool:
    """Return whether the value of an object store's option may be shown."""
    short = name.lower()
    for store in ("aws_", "azure_storage_", "azure_", "google_", "gcs_"):
        short = short.removeprefix(store)
    if short in _STORE_OPTIONS or name.lower() in _STORE_OPTIONS:
        return not has_secret(value) and "@" not in value  # a password with a slash makes an invalid URL
    return not _may_be_secret(name) and _is_plain(value)


def secret_values(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secret values among an object store's options, and the secret parts of its URLs."""
    found: list[str] = []
    for name, value in options.items():
        if not value:
            continue
        if parts := user_info_of(value):
            found += parts
        elif ("://" in value and has_secret(value)) or not is_harmless_store_option(name, value):
            found.append(value)
    return tuple(dict.fromkeys(found))


def refused_options(options: Mapping[str, Any]) -> list[str]:
    """Return the names of the options of a Spark source or writer that must not be written down.

    These are all options that are not known to be harmless, and those whose value is a URL with credentials.
    """
    return [name for name, value in options.items() if not _is_harmless_spark_option(str(name), value)]


def _is_harmless_spark_option(name: str, value: Any) -> bool:
    lowered = name.lower()
    if lowered not in _SPARK_OPTIONS and (_may_be_secret(name) or not lowered.startswith(_SPARK_PREFIXES)):
        return False
    return not has_secret(str(value))


def _is_plain(value: str) -> bool:
    return value.strip().lower() in _BOOLEANS or _SMALL_NUMBER.fullmatch(value.strip()) is not None
