"""Operations on a whole table, each with its plan, work and result."""
