"""Ranks within a comparability group: a range of ranks where 95% intervals overlap, none for what may not be ranked."""

from collections.abc import Sequence
from dataclasses import dataclass

from tunemark.schema.comparability import COMPARABILITY_KEYS
from tunemark.site.queries import Row


@dataclass(frozen=True, slots=True)
class Group:
    """Results that may be compared, or those that compare with nothing."""

    key: str | None
    """The comparability group; None when a condition is unknown."""
    rows: tuple[Row, ...]


def groups(rows: Sequence[Row]) -> list[Group]:
    """Return results by comparability group, the largest first, the incomparable last."""
    members: dict[str | None, list[Row]] = {}
    for row in rows:
        members.setdefault(row["comparability_group"], []).append(row)
    made = [Group(key, tuple(_fastest_first(found))) for key, found in members.items()]
    return sorted(made, key=lambda group: (group.key is None, -len(group.rows), group.key or ""))


def rank_ranges(group: Group) -> dict[str, str]:
    """Return the rank of each result that has one: `1`, or `1 to 2` where intervals overlap."""
    if group.key is None:
        return {}
    ranked = [row for row in group.rows if row["rankable"] and not row["failed"] and row["tokens_per_s"] is not None]
    return {row["result_id"]: _range(row, ranked) for row in ranked}


def _range(row: Row, ranked: Sequence[Row]) -> str:
    low, high = _ends(row)
    best = 1 + sum(_ends(other)[0] > high for other in ranked)
    worst = len(ranked) - sum(_ends(other)[1] < low for other in ranked)
    return str(best) if best == worst else f"{best} to {worst}"


def _ends(row: Row) -> tuple[float, float]:
    rate = row["tokens_per_s"]
    return (row["tokens_per_s_low"] or rate, row["tokens_per_s_high"] or rate)


def _fastest_first(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["failed"], not row["rankable"], -(row["tokens_per_s"] or 0), row["result_id"]))


def varying_keys(made: Sequence[Group]) -> list[str]:
    """Return the comparability keys in which groups differ from each other."""
    firsts = [group.rows[0] for group in made if group.key is not None]
    return [key for key in COMPARABILITY_KEYS if len({str(row[key]) for row in firsts}) > 1]
