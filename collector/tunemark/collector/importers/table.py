"""Published tables as records: a Markdown or CSV table, and a map that states the meaning of each column.

A map also says which conditions hold for all rows, and which rows are left out and why. It is a TOML file beside the extract of the table,
so that every record can be made again. An unknown field is an error. Conditions, columns and rules of the whole map hold for each of its
tables, and those of a table for each of its variants: the nearest one counts.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod
from pathlib import Path
from re import Pattern
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tunemark.collector.commands.options import named_as
from tunemark.collector.gate.published_checks import condition_problems
from tunemark.collector.gate.read import DOCUMENT, read_valid
from tunemark.collector.importers.import_io import Request, printable, read_text, write_out
from tunemark.collector.importers.table_text import PER_DEVICE, UNITS, TextTable, extract, printed_value, tables_in, transposed
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts.fact_base import FactBase, read_facts, validated
from tunemark.schema.facts.names import words_of
from tunemark.schema.files import project_root
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.base import Count, Day, Frozen, Key, Text, canonical_json
from tunemark.schema.records.published import Claim, Conditions, Origin, PublishedResult, PublishedSet, Reading, Scalar, SourceDocument
from tunemark.schema.vocabulary import PublishedStatus
from tunemark.terminal import print_table, say

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
    """Commit of the file, if not that of the source."""
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
        variants.append(variant | merged)
    # The rules of a table come before those of the map, but its amendments after them: the nearest one counts.
    rules = {name: [*table.get(name, ()), *content.get(name, ())] for name in ("skip", "outcome")}
    rules["amend"] = [*content.get("amend", ()), *table.get("amend", ())]
    own = {name: value for name, value in table.items() if name not in {"conditions", "columns"}}
    return own | {name: value for name, value in rules.items() if value} | {"variants": variants}


SETTINGS = {"map": "what each column means: a TOML file"}
EXTRACT = "tables.md"
"""File beside the map with the facts of the tables, without the text of the document."""
RESULTS = "results.json"
NO_CARD = "@none"
"""Value of a condition that is unknown for some rows only; TOML has no null."""


def table(request: Request) -> None:
    """Import the tables of a document with the map that says what each column means: one record per row.

    Figures are kept as printed, conditions as the map states them, and rows are left out only by a rule with a reason. An extract of
    the tables is written beside the map as `tables.md`, from which the same records can be made again. Nothing is written if anything
    cannot be read. Files are those with the tables, by name, or `tables.md`.
    """
    root, settings = project_root(), request.known(SETTINGS)
    if "map" not in settings:
        raise TunemarkError("--map", "", "name the TOML file that says what each column means")
    map_file = Path(settings["map"])
    with named_as({"file": "--map"}):
        mapping = read_facts(map_file, Map)
    facts = FactBase.of_root(root)
    imported = import_tables(mapping, found_tables(mapping, request.files), facts)
    for result, problem in ((each, problem) for each in imported.results for problem in condition_problems(each.conditions, facts)):
        raise TunemarkError(f"{result.id}: {problem.field}", problem.value, problem.fix, exit_code=Exit.INVALID)
    folder = (root / "data" / "published" if request.out is None else request.out) / mapping.source.id
    kept = map_file.with_name(EXTRACT)
    if all(path.resolve() != kept.resolve() for path in request.files):
        write_out(kept, extract(imported.extracted).encode())
    write_out(folder / RESULTS, PublishedSet(source=mapping.source.id, results=tuple(imported.results)).lines())
    write_out(folder / DOCUMENT, document_of(mapping, len(imported.results), folder / DOCUMENT))
    for remark in imported.remarks:
        say(printable(remark))
    print_table(["table", "rows", "left out", "results"], imported.counts)
    say(f"{len(imported.results)} results of source {mapping.source.id} in {folder / RESULTS}")


def found_tables(mapping: Map, files: Sequence[Path]) -> dict[str, TextTable]:
    """Return the text of each table of a map, by key; raises TunemarkError for one that no file has."""
    texts = [table for path in files for table in tables_in(read_text(str(path)), path.name)]
    tables: dict[str, TextTable] = {}
    for wanted in mapping.tables:
        # An extract holds each table as it is read, under its key.
        kept = [each for each in texts if each.file == EXTRACT]
        under, number = ((wanted.key,), 1) if kept else (tuple((wanted.under or "").split(" > ")), wanted.number)
        of_file = kept or [each for each in texts if each.file == Path(wanted.path or mapping.source.path).name]
        same = [each for each in of_file if under == ("",) or each.headings[-len(under) :] == under]
        if len(same) < number:
            known = did_you_mean(under[-1], {each.headings[-1] for each in of_file if each.headings})
            fix = f"table {wanted.key!r} is number {number} under this heading of {wanted.path or mapping.source.path}, "
            fix += f"and the files have {len(same)}; {known}"
            raise TunemarkError("FILE", " > ".join(under) or wanted.key, fix)
        tables[wanted.key] = transposed(same[number - 1]) if wanted.transposed and not kept else same[number - 1]
    return tables


# Rows to records -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Imported:
    """The records of all tables of a map."""

    results: list[PublishedResult] = field(default_factory=list)
    extracted: list[tuple[str, TextTable, list[str]]] = field(default_factory=list)
    """(key, table, columns that the map gives a meaning)."""
    counts: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Key, rows, rows left out, and results of each table."""
    remarks: list[str] = field(default_factory=list)
    """Rows left out with their reasons, and results without a figure in a row that has others."""


def import_tables(mapping: Map, tables: dict[str, TextTable], facts: FactBase) -> Imported:
    """Return the records of the tables of a map, numbered in the order of tables, rows and variants.

    Raises TunemarkError (exit code 3) with file, line and column for the first cell that the map does not explain.
    """
    imported = Imported()
    for wanted in mapping.tables:
        text, before, kept = tables[wanted.key], len(imported.results), list[tuple[int, tuple[str, ...]]]()
        meanings = {name: column for variant in wanted.variants for name, column in variant.columns.items()}
        unknown = next((name for name in text.header if name not in meanings), None)
        if unknown is not None:
            fix = f"the map of table {wanted.key!r} gives this column no meaning; {did_you_mean(unknown, meanings)}"
            raise TunemarkError(f"{text.file}:{text.line}: column", unknown, fix, exit_code=Exit.INVALID)
        for line, row in text.rows:
            cells, place = dict(zip(text.header, row, strict=True)), f"{text.file}:{line}"
            skipped = next((rule for rule in wanted.skip if rule.holds(cells)), None)
            if skipped is not None:
                imported.remarks.append(f"{place}: left out: {skipped.reason}")
                continue
            kept.append((line, row))
            _add_row(imported, mapping, wanted, cells, place)
        used = [name for name in text.header if any(name in each.columns and not each.columns[name].ignore for each in wanted.variants)]
        imported.extracted.append((wanted.key, replace(text, rows=tuple(kept)), used))
        imported.counts.append((wanted.key, len(text.rows), len(text.rows) - len(kept), len(imported.results) - before))
    imported.results = [_with_model(result, facts) for result in imported.results]
    return imported


def _add_row(imported: Imported, mapping: Map, wanted: TableMap, cells: dict[str, str], place: str) -> None:
    """Add the results of the variants of a row. A variant without a figure is no result, unless a rule states how it ended."""
    rows = [Row(mapping, wanted, variant, cells, place) for variant in wanted.variants]
    for row in rows:
        row.read()
    results = [row for row in rows if row.claims or row.status not in {PublishedStatus.OK, PublishedStatus.CLAIMED}]
    if not results:
        fix = "has no figure; add a skip rule with the reason, or an outcome"
        raise TunemarkError(place, " | ".join(cells.values()), fix, exit_code=Exit.INVALID)
    if len(results) < len(rows):
        imported.remarks.append(f"{place}: {len(rows) - len(results)} of {len(rows)} results have no figure")
    for row in results:
        imported.results.append(row.record(len(imported.results) + 1))


@dataclass(slots=True)
class Row:
    """One result of one row while it is read."""

    mapping: Map
    wanted: TableMap
    variant: Variant
    cells: dict[str, str]
    place: str
    fields: dict[str, Scalar] = field(default_factory=dict)
    """Conditions, settings, versions and labels by the names that a column may have."""
    claims: dict[str, Claim] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    from_repository: list[str] = field(default_factory=list)
    notes: list[str | None] = field(default_factory=list)
    status: PublishedStatus = PublishedStatus.OK

    def read(self) -> None:
        """Read conditions first, since figures per device need the number of devices."""
        self.assumed, self.from_repository = [*self.mapping.assumed], [*self.mapping.from_repository]
        self.fields, self.notes = dict(self.variant.conditions), [self.wanted.note]
        columns = list(self._columns())
        for name, column, cell in columns:
            self._condition(name, column, cell)
        for rule in self.wanted.amend:
            if rule.holds(self.cells):
                self.fields |= rule.conditions
                self.assumed += rule.assumed
                self.from_repository += rule.from_repository
                self.notes.append(rule.note)
        self._compute()
        for name, column, cell in columns:
            if column.quantity is not None and cell in column.outcomes:
                self.status = column.outcomes[cell]
                self.fields[_label(name)] = cell
            elif column.quantity is not None and cell not in self.mapping.absent:
                self.claims[column.quantity] = self._claim(name, column, cell)
        if self.claims:
            self.claims |= {name: Claim(printed=printed, value=value) for name, (printed, value) in self.wanted.claims.items()}
        outcome = next((rule for rule in self.wanted.outcome if rule.holds(self.cells)), None)
        if outcome is not None:
            self.status = outcome.status
            self.notes.append(outcome.note)

    def _columns(self) -> Iterator[tuple[str, Column, str]]:
        """Yield the columns of the row that have a meaning, and the parts of those that are split."""
        meanings = self.variant.columns
        for name, cell in self.cells.items():
            if name not in meanings:
                continue
            yield name, meanings[name], cell
            split = meanings[name].split
            match = split.fullmatch(cell) if split else None
            if split and match is None and cell not in self.mapping.absent:
                raise self._error(name, cell, f"does not match {split.pattern}; correct the map")
            for part, text in (match.groupdict() if match else {}).items():
                if part in meanings:
                    yield part, meanings[part], text or ""

    def _error(self, name: str, cell: str, fix: str) -> TunemarkError:
        return TunemarkError(f"{self.place}: column {name!r}", cell, fix, exit_code=Exit.INVALID)

    def _condition(self, name: str, column: Column, cell: str) -> None:
        if column.quantity is not None or column.split is not None or column.ignore is not None:
            return
        if column.values is not None:
            if cell not in column.values:
                raise self._error(name, cell, f"is not among the values of the map; {did_you_mean(cell, column.values)}")
            value = column.values[cell]
            self.fields |= value if isinstance(value, dict) else {column.field or "": value}
            if cell:
                self.fields[_label(column.field or name)] = cell
        elif column.field is not None and cell not in self.mapping.absent:
            self.fields[column.field] = cell if column.field.startswith(("labels.", "framework.", "origin.")) else _scalar(cell)

    def _compute(self) -> None:
        for name, factors in self.mapping.computed.items():
            values = [self.fields.get(factor.removeprefix("/")) for factor in factors]
            if self.fields.get(name) is not None or not all(isinstance(value, int) and value > 0 for value in values):
                continue
            parts = (Fraction(int(value or 1)) for value in values)
            product = prod(1 / part if factor.startswith("/") else part for factor, part in zip(factors, parts, strict=True))
            if product.denominator == 1:
                self.fields[name] = product.numerator
                self.assumed.append(name)

    def _claim(self, name: str, column: Column, cell: str) -> Claim:
        unit = column.shown if column.shown is not None else "" if column.unit in {"1", "in cell", "duration", "clock"} else column.unit
        bare = not re.search(r"[A-Za-z%]", cell.replace("e", "").replace("E", ""))
        printed = f"{cell} {unit}".strip() if bare else cell
        value, count = printed_value(column.quantity or "", printed), self.fields.get("accelerator_count")
        note, meanings = column.note, column.readings
        if value is None or (bare and ":" not in cell and column.unit in {"in cell", "duration"}):
            fix = f"is no {column.quantity} in {column.unit!r}; correct the unit in the map, or add the cell to `absent`"
            raise self._error(name, cell, fix)
        if column.per is not None and not isinstance(count, int):
            raise self._error(name, cell, "is a figure per device, and the number of devices is not known")
        if column.per == "device" and isinstance(count, int):
            value *= count
            note = f"{note}; {PER_DEVICE}" if note else PER_DEVICE
        if column.per == "unstated" and isinstance(count, int) and count > 1:
            meanings = (("of all devices", 1.0), ("of one device", float(count)))
        # 15 significant digits hold every printed figure, without the noise of binary fractions.
        value = float(f"{value * column.scale:.15g}")
        readings = tuple(Reading(meaning=meaning, value=value * factor) for meaning, factor in meanings)
        return Claim(value=value, printed=printed, readings=readings, note=note)

    def record(self, number: int) -> PublishedResult:
        """Return the record; raises TunemarkError (exit code 3) for a condition that records cannot hold."""
        source = self.mapping.source
        named: dict[str, dict[str, Scalar]] = {prefix: {} for prefix in ("", "origin.", *PREFIXES)}
        for name, value in self.fields.items():
            prefix = next((prefix for prefix in named if prefix and name.startswith(prefix)), "")
            named[prefix][name.removeprefix(prefix)] = value
        present = {name for name, value in self.fields.items() if value is not None} | {"framework"}
        conditions: dict[str, Any] = {"model": None} | {name: value for name, value in named[""].items() if value != NO_CARD}
        for prefix, read in (("settings.", lambda value: value), ("framework.", str)):
            conditions[prefix[:-1]] = {name: read(value) for name, value in named[prefix].items() if value not in {None, NO_CARD}}
        for name, stated in (("assumed", self.assumed), ("from_repository", self.from_repository)):
            conditions[name] = tuple(dict.fromkeys(each for each in stated if each in present))
        file = {"commit": self.wanted.commit or source.commit, "path": self.wanted.path or source.path} | named["origin."]
        content = {
            "id": f"{source.id}-{number:03d}",
            "source": source.id,
            "section": self.wanted.section or self.wanted.under or self.wanted.key,
            "origin": Origin(kind="document", reference=f"{source.repository}@{str(file['commit'])[:12]}: {file['path']}"),
            "labels": {name: str(value) for name, value in named["labels."].items()},
            "conditions": conditions,
            "claims": self.claims,
            "status": self.status,
            "note": " ".join(filter(None, self.notes)) or None,
        }
        return validated(PublishedResult, content, self.place)


def _label(name: str) -> str:
    return "labels." + (re.sub(r"[^a-z0-9]+", "_", name.rpartition(".")[2].lower()).strip("_") or "row")


def _scalar(cell: str) -> Scalar:
    if cell.lower() in {"true", "false", "yes", "no", "on", "off"}:
        return cell.lower() in {"true", "yes", "on"}
    bare = cell.replace(",", "")
    if re.fullmatch(r"[0-9]+", bare):
        return int(bare)
    return float(bare) if re.fullmatch(r"[0-9]*\.[0-9]+|[0-9.]+[eE][+-]?[0-9]+", bare) else cell


# Documents -----------------------------------------------------------------------------------------


def document_of(mapping: Map, results: int, existing: Path) -> bytes:
    """Return the `source.json` of a map; statements and tables of an existing one are kept."""
    source = mapping.source
    facts = source.model_dump(mode="json", exclude={"repository", "commit", "path", "results", "tables", "statements"})
    facts["url"] = source.url or f"https://{source.repository}/blob/{source.commit}/{source.path}"
    facts["origin_repository"] = f"{source.repository}@{source.commit}"
    kept = read_valid(existing).model_dump(mode="json", include={"tables", "statements"}) if existing.is_file() else {}
    return canonical_json(SourceDocument.model_validate({**facts, **kept, "results": results}))


def _with_model(result: PublishedResult, facts: FactBase) -> PublishedResult:
    """Return a result with the model that its label names, if the map gives none and a card has this name."""
    label = result.labels.get("model", "")
    key = facts.model_keys.get(label.lower()) or facts.model_keys.get("".join(words_of(label)))
    if result.conditions.model is not None or key is None:
        return result
    return result.model_copy(update={"conditions": result.conditions.model_copy(update={"model": key})})
