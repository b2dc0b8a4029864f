-- Yesterday's rows; and what the table has of them.
SET spark.sql.ansi.enabled = true;
CREATE OR REPLACE TEMPORARY VIEW known AS SELECT max(id) AS last FROM {{ table }};
SELECT /*+ COALESCE(1) */ id + last + 1 AS id, DATE'{{ ds }}' AS day, 'a;b' AS note
FROM range(:rows), known
ORDER BY id;
