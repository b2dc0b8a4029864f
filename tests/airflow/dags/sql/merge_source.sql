SELECT id, day, concat('{{ ds }}', note) AS note FROM {{ table }} WHERE id < 2
