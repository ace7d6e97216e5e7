"""The map of an imported table: what each column means, which conditions hold for all rows, and which rows are left out and why.

A map is a TOML file beside the extract of the table, so that every record can be made again. An unknown field is an error. Conditions,
columns and rules of the whole map hold for each of its tables, and those of a table for each of its variants: the nearest one counts.
"""

from re import Pattern
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tunemark.collector.importers.table_text import UNITS
from tunemark.schema.errors import did_you_mean
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.base import Count, Day, Frozen, Key, Text
from tunemark.schema.records.published import Conditions, Scalar, SourceDocument
from tunemark.schema.vocabulary import PublishedStatus

CONDITIONS = tuple(name for name in Conditions.model_fields if name not in {"framework", "settings", "from_repository", "assumed"})
ORIGIN = ("origin.commit", "origin.path")
"""Place of a single row, if not that of its table."""
PREFIXES = ("settings.", "framework.", "labels.")


class Column(Frozen):
    """The meaning of a column: a condition, a figure, parts of both, or nothing for a stated reason."""

    field: Text | None = None
    """A condition (`micro_batch`), or `settings.<name>`, `framework.<name>` or `labels.<name>`; `origin.path` and `origin.commit` of a row."""
    values: dict[str, Scalar | dict[str, Scalar]] | None = None
    """Cell -> value of the field, or -> several fields by name. In a file, a text names one of the map's shared `values`."""
    quantity: Text | None = None
    """The quantity of a figure."""
    unit: Text = "1"
    """Unit in which the column prints it."""
    shown: Text | None = None
    """Unit as printed in the header, added to the printed figure; the unit by default."""
    per: Literal["device", "unstated"] | None = None
    """`device`, if the figure is of one device and its quantity is of all devices; `unstated`, if it may be of one or of all."""
    scale: float = 1.0
    """A further factor, stated in `note`."""
    note: Text | None = None
    """A caveat, or what the figure counts."""
    readings: tuple[tuple[Text, float], ...] = ()
    """(meaning, factor) of each reading of an ambiguous figure."""
    outcomes: dict[str, PublishedStatus] = Field(default_factory=dict)
    """Cell of a figure -> status of its result, such as `OOM` -> oom."""
    split: Pattern[str] | None = None
    """A regular expression for whole cells; each named group is a column of its own."""
    ignore: Text | None = None
    """Why the column is left out."""

    @model_validator(mode="after")
    def _one_meaning(self) -> Self:
        meanings = [name for name in ("field", "quantity", "split", "ignore") if getattr(self, name) is not None]
        if len(meanings) != 1 and (meanings or self.values is None):
            found = ", ".join(meanings) or "none"
            raise ValueError(f"a column has one of field, quantity, split and ignore (or values with fields); found {found}")
        if self.field is not None:
            check_field(self.field)
        for name, known in (("quantity", QUANTITIES), ("unit", UNITS["columns"])):
            if (value := getattr(self, name)) is not None and value not in known:
                raise ValueError(f"{name} is {value!r}; {did_you_mean(value, known)}")
        if self.split is not None and not self.split.groupindex:
            raise ValueError(f"split is {self.split.pattern!r}; give each part of the cell a named group, such as (?P<batch>\\d+)")
        return self


def check_field(name: str) -> None:
    """Raise ValueError for a name that is not a condition, setting, package or label."""
    if name not in (*CONDITIONS, *ORIGIN) and not (name.startswith(PREFIXES) and name.partition(".")[2]):
        prefixes = ", ".join(f"{prefix}<name>" for prefix in PREFIXES)
        raise ValueError(f"field is {name!r}; {did_you_mean(name, CONDITIONS)}, or use {prefixes}")


class Match(Frozen):
    """Rows of a table: those whose cell of a column matches."""

    column: Text
    matches: Pattern[str]
    """A regular expression for the whole cell; empty for an empty cell."""

    def holds(self, cells: dict[str, str]) -> bool:
        """Return True for the cells of a matching row."""
        return self.column in cells and self.matches.fullmatch(cells[self.column]) is not None


class Skip(Match):
    """Rows that are left out."""

    reason: Text


class Outcome(Match):
    """Rows of failed runs."""

    status: PublishedStatus
    note: Text | None = None


class Amend(Match):
    """Conditions of some rows."""

    conditions: dict[str, Scalar]
    assumed: tuple[Text, ...] = ()
    from_repository: tuple[Text, ...] = ()
    note: Text | None = None


class Variant(Frozen):
    """One of several results in each row, such as one per number format."""

    conditions: dict[str, Scalar] = Field(default_factory=dict)
    columns: dict[str, Column] = Field(default_factory=dict)
    own: tuple[Text, ...] = ()
    """Columns of the table and of the variant, which the table must have; those of the map may be in other tables."""

    @model_validator(mode="after")
    def _fields(self) -> Self:
        for name in self.conditions:
            check_field(name)
        return self


class TableMap(Frozen):
    """One table. In a file it may have conditions and columns too, which hold for each of its variants."""

    key: Key
    """Name of the table, unique in the map; the heading of its extract."""
    path: Text | None = None
    """File in the repository, if not that of the source."""
    commit: Annotated[str | None, Field(pattern=r"^[0-9a-f]{7,40}$")] = None
    """Commit of the file, if not that of the source; its checkout is then a folder of that name."""
    under: Text | None = None
    """Nearest heading above the table, exactly, or the nearest ones joined by ` > `; None for CSV."""
    number: int = 1
    """Number of the table under that heading."""
    transposed: bool = False
    """True if results are columns: the first cell of each row is then a column name, and the header the first column, `result`."""
    claims: dict[str, tuple[Text, float]] = Field(default_factory=dict)
    """Figures that the text states for all rows: quantity -> (as printed, value)."""
    section: Text | None = None
    """Place shown with each record; the heading by default."""
    variants: tuple[Variant, ...]
    skip: tuple[Skip, ...] = ()
    outcome: tuple[Outcome, ...] = ()
    amend: tuple[Amend, ...] = ()
    note: Text | None = None


class DocumentFacts(SourceDocument):
    """The document of the tables: fields of its `source.json`, and the place of the file."""

    repository: Text
    """Host, owner and name, such as `github.com/owner/name`."""
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{7,40}$")]
    """The commit that was read."""
    path: Text
    """File in the repository. Its address at that commit is the default of `url`."""
    read_on: Day
    results: Count = 0
    """Counted by the import."""


class Map(Frozen):
    """The map of all tables of a document. Conditions, columns, rules and shared values of a file are stored with each table."""

    source: DocumentFacts
    assumed: tuple[Text, ...] = ()
    """Conditions that are implied, not stated."""
    from_repository: tuple[Text, ...] = ()
    """Conditions that only the repository states."""
    computed: dict[str, tuple[Text, ...]] = Field(default_factory=dict)
    """Condition -> conditions whose product it is, if all are known; `/name` divides. It is listed as assumed."""
    absent: tuple[str, ...] = ("", "-", "--", "---", "\u2013", "\u2014", "N/A", "n/a", "NA")
    """Cells without a figure."""
    tables: Annotated[tuple[TableMap, ...], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _store_with_each_table(cls, content: dict[str, Any]) -> dict[str, Any]:
        shared = {name: content.get(name, {}) for name in ("conditions", "columns", "values")}
        own = {name: value for name, value in content.items() if name not in {*shared, "skip", "outcome", "amend"}}
        try:
            return own | {"tables": [_complete(table, shared, content) for table in content.get("tables", ())]}
        except (AttributeError, TypeError) as error:
            raise ValueError("tables, variants, conditions, columns, each column and values must be tables of TOML") from error

    @model_validator(mode="after")
    def _distinct_keys(self) -> Self:
        keys = [table.key for table in self.tables]
        if len(set(keys)) != len(keys):
            raise ValueError(f"tables have the keys {', '.join(keys)}; each key is used once")
        return self


def _complete(table: dict[str, Any], shared: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """Return a table with the rules of the map, and the conditions, columns and values of the map in each of its variants."""
    variants = []
    for variant in table.get("variants", [{}]):
        merged = {name: shared[name] | table.get(name, {}) | variant.get(name, {}) for name in ("conditions", "columns")}
        for name, column in merged["columns"].items():
            if isinstance(values := column.get("values"), str):
                if values not in shared["values"]:
                    raise ValueError(f"values is {values!r}; {did_you_mean(values, shared['values'])}")
                merged["columns"][name] = column | {"values": shared["values"][values]}
        variants.append(variant | merged | {"own": [*table.get("columns", {}), *variant.get("columns", {})]})
    # The rules of a table come before those of the map, but its amendments after them: the nearest one counts.
    rules = {name: [*table.get(name, ()), *content.get(name, ())] for name in ("skip", "outcome")}
    rules["amend"] = [*content.get("amend", ()), *table.get("amend", ())]
    own = {name: value for name, value in table.items() if name not in {"conditions", "columns"}}
    return own | {name: value for name, value in rules.items() if value} | {"variants": variants}
