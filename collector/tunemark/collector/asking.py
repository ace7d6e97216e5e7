"""Questions to the database in SQL."""

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from tunemark.collector.database import open_database
from tunemark.schema.errors import TunemarkError


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of an answer, values with full precision."""

    columns: list[str]
    rows: list[tuple[Any, ...]]

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per row; columns of the same name are numbered."""
        names: list[str] = []
        for name in self.columns:
            names.append(
                name if name not in names else f"{name}_{1 + sum(other == name or other.startswith(f'{name}_') for other in names)}"
            )
        return [dict(zip(names, row, strict=True)) for row in self.rows]


def ask(sql: str, database: Path) -> Answer:
    """Return the answer to an SQL question; the connection can neither write nor read other files.

    Raises
    ------
    TunemarkError
        For SQL that is wrong or asks for what is not allowed, and when there is no database.

    """
    import duckdb  # noqa: PLC0415 - only `query` needs it

    with open_database(database) as connection:
        try:
            statements = len(connection.extract_statements(sql))
            if statements > 1:
                raise TunemarkError("sql", " ".join(sql.split()), f"is {statements} statements; give one SELECT")
            relation = connection.sql(sql)
            if relation is None:
                raise TunemarkError("sql", sql, "is not a question; give one SELECT")
            # Through Arrow, because fetching a time stamp with a time zone needs one more package.
            table = relation.to_arrow_table()
        except (duckdb.Error, RuntimeError) as error:
            raise TunemarkError("sql", " ".join(sql.split()), explained(error)) from error
    columns = [[_plain(value) for value in column.to_pylist()] for column in table.columns]
    return Answer(list(table.schema.names), list(zip(*columns, strict=True)))


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of DuckDB
    """Return decimals, which sums of whole numbers are, as the numbers that JSON has."""
    if not isinstance(value, Decimal):
        return value
    return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else float(value)


def explained(error: Exception) -> str:
    """Return a DuckDB error as one line with its hints, and below it the place in the statement with its caret."""
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    at = next((number for number, line in enumerate(lines) if line.startswith("LINE ")), len(lines))
    place = lines[at : at + 2]
    hints = [line.strip() for line in (*lines[:at], *lines[at + 2 :])]
    return "\n".join([" ".join(hints) or type(error).__name__, *place])
