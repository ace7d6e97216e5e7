"""Published tables as records: a Markdown or CSV table, and a map that states the meaning of each column."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tunemark.collector.audit.interval import duration
from tunemark.collector.commands.terminal import print_json, print_table, say
from tunemark.collector.gate.published_checks import condition_problems
from tunemark.collector.gate.read import DOCUMENT
from tunemark.collector.importers.import_io import Request, first_error, printable, read_text, write_changed
from tunemark.collector.importers.table_map import PREFIXES, UNITS, WRITTEN, Column, Map, Match, TableMap, Variant, read_map
from tunemark.collector.importers.table_text import PER_DEVICE, TextTable, extract, tables_in, transposed
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import project_root, write_atomically
from tunemark.schema.records.base import canonical_json
from tunemark.schema.records.published import Claim, Origin, PublishedResult, PublishedSet, Reading, Scalar, SourceDocument
from tunemark.schema.vocabulary import PublishedStatus

SETTINGS = {"map": "what each column means: a TOML file"}
EXTRACT = "tables.md"
"""File beside the map with the facts of the tables, without the text of the document."""
RESULTS = "results.json"
MOST_RESULTS = 999
NO_CARD = "@none"
"""Value of a condition that is unknown for some rows only; TOML has no null."""
NUMBER = re.compile(r"[~≈]?\s*\$?(?P<number>[0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)\s*(?P<unit>[A-Za-z%/]*)")


def table(request: Request) -> None:
    """Import the tables of a document with the map that says what each column means: one record per row.

    Figures are kept as printed, conditions as the map states them, and rows are left out only by a rule with a reason. An extract of
    the tables is written beside the map as `tables.md`, from which the same records can be made again. Nothing is written if anything
    cannot be read. Files are those with the tables, or the checkout of their repository.
    """
    root, settings = project_root(), request.known(SETTINGS)
    if "map" not in settings:
        raise TunemarkError("--map", "", "name the TOML file that says what each column means")
    map_file = Path(settings["map"])
    mapping = read_map(map_file)
    imported = import_tables(mapping, found_tables(mapping, request.files))
    check_cards(imported.results, FactBase.of_root(root))
    folder = (root / "data" / "published" if request.out is None else request.out) / mapping.source.id
    kept = map_file.with_name(EXTRACT)
    if all(path.resolve() != kept.resolve() for path in request.files):
        write_changed(kept, extract(imported.extracted).encode())
    folder.mkdir(parents=True, exist_ok=True)
    written = write_changed(folder / RESULTS, PublishedSet(source=mapping.source.id, results=tuple(imported.results)).lines())
    write_atomically(folder / DOCUMENT, document_of(mapping, len(imported.results), folder / DOCUMENT))
    for remark in imported.remarks:
        say(printable(remark))
    rows = [(key, *counts) for key, counts in imported.counts.items()]
    if request.as_json:
        names = ("rows", "left_out", "results")
        tables = {key: dict(zip(names, counts, strict=True)) for key, *counts in rows}
        print_json({"source": mapping.source.id, "results": len(imported.results), "tables": tables, "written": written})
    else:
        print_table(["table", "rows", "left out", "results"], rows)
        say(f"{len(imported.results)} results of source {mapping.source.id} in {folder / RESULTS}")


# Which tables --------------------------------------------------------------------------------------


def found_tables(mapping: Map, files: Sequence[Path]) -> dict[str, TextTable]:
    """Return the text of each table of a map, by key; raises TunemarkError for one that no file has."""
    texts: dict[Path, list[TextTable]] = {}
    tables: dict[str, TextTable] = {}
    for wanted in mapping.tables:
        relative = "/".join(part for part in (wanted.commit, wanted.path or mapping.source.path) if part)
        path = _file_of(relative, files)
        if path not in texts:
            texts[path] = tables_in(read_text(str(path)), path.name, wanted.levels)
        tables[wanted.key] = _table_of(wanted, texts[path], path)
    return tables


def _file_of(relative: str, files: Sequence[Path]) -> Path:
    for path in files:
        if path.is_dir() and (path / relative).is_file():
            return path / relative
        if path.name in {Path(relative).name, EXTRACT}:
            return path
    raise TunemarkError(
        "file", relative, f"is named by the map and not given; add it, or the checkout that holds it, to {len(files)} files"
    )


def _table_of(wanted: TableMap, tables: Sequence[TextTable], path: Path) -> TextTable:
    if path.name == EXTRACT:
        same = [candidate for candidate in tables if candidate.headings == (wanted.key,)]
    elif wanted.under is None:
        same = list(tables)
    else:
        path_of_headings = tuple(wanted.under.split(" > "))
        same = [candidate for candidate in tables if candidate.headings[-len(path_of_headings) :] == path_of_headings]
    number = 1 if path.name == EXTRACT else wanted.number
    if len(same) < number:
        known = did_you_mean(wanted.under or "", {candidate.headings[-1] for candidate in tables if candidate.headings})
        fix = f"table {wanted.key!r} is number {number} under this heading, which has {len(same)}; {known}"
        raise TunemarkError(str(path.name), wanted.under or wanted.key, fix)
    # An extract holds the table as it is read.
    return transposed(same[number - 1]) if wanted.transposed and path.name != EXTRACT else same[number - 1]


# Rows to records -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Imported:
    """The records of all tables of a map."""

    results: list[PublishedResult] = field(default_factory=list)
    extracted: list[tuple[str, TextTable, list[str]]] = field(default_factory=list)
    """(key, table, columns that the map gives a meaning)."""
    counts: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Key -> rows, rows left out, results."""
    remarks: list[str] = field(default_factory=list)
    """Rows left out with their reasons, and results without a figure in a row that has others."""


def import_tables(mapping: Map, tables: dict[str, TextTable]) -> Imported:
    """Return the records of the tables of a map, numbered in the order of tables, rows and variants.

    Raises TunemarkError (exit code 3) with file, line and column for the first cell that the map does not explain.
    """
    imported = Imported()
    for wanted in mapping.tables:
        text = tables[wanted.key]
        _check_columns(mapping, wanted, text)
        before, kept_rows = len(imported.results), list[tuple[int, tuple[str, ...]]]()
        for line, row in text.rows:
            cells = dict(zip(text.header, row, strict=True))
            place = f"{text.file}:{line}"
            skipped = _first_match((*wanted.skip, *mapping.skip), cells, place)
            if skipped is not None:
                imported.remarks.append(f"{place}: left out: {skipped.reason}")
                continue
            kept_rows.append((line, row))
            _add_row(imported, mapping, wanted, cells, place)
        kept = [name for name in text.header if not _ignored(mapping, wanted, name)]
        imported.extracted.append((wanted.key, replace(text, rows=tuple(kept_rows)), kept))
        imported.counts[wanted.key] = (len(text.rows), len(text.rows) - len(kept_rows), len(imported.results) - before)
    return imported


def _add_row(imported: Imported, mapping: Map, wanted: TableMap, cells: dict[str, str], place: str) -> None:
    added = 0
    for variant in wanted.variants:
        row = Row(mapping, wanted, variant, cells, place)
        row.read()
        if not row.claims and row.status in {PublishedStatus.OK, PublishedStatus.CLAIMED}:
            continue
        number = len(imported.results) + 1
        if number > MOST_RESULTS:
            raise TunemarkError(place, number, f"a source has numbers up to {MOST_RESULTS}; use a second source", exit_code=Exit.INVALID)
        imported.results.append(row.record(number))
        added += 1
    if not added:
        fix = "has no figure; add a skip rule with the reason, or an outcome"
        raise TunemarkError(place, " | ".join(cells.values()), fix, exit_code=Exit.INVALID)
    if added < len(wanted.variants):
        imported.remarks.append(f"{place}: {len(wanted.variants) - added} of {len(wanted.variants)} results have no figure")


def _check_columns(mapping: Map, wanted: TableMap, text: TextTable) -> None:
    """Raise TunemarkError for a column without a meaning, or a meaning of the table itself without a column."""
    known: set[str] = set()
    for variant in wanted.variants:
        known |= set(mapping.columns_of(wanted, variant))
    for name in text.header:
        if name not in known:
            fix = f"the map of table {wanted.key!r} gives this column no meaning; {did_you_mean(name, known)}"
            raise TunemarkError(f"{text.place}: column", name, fix, exit_code=Exit.INVALID)
    own: dict[str, Column] = dict(wanted.columns)
    for variant in wanted.variants:
        own |= variant.columns
    parts = {name for column in own.values() if column.split for name in re.compile(column.split).groupindex}
    for name, column in own.items():
        if name not in text.header and name not in parts and column.ignore is None:
            fix = f"table {wanted.key!r} has no such column; {did_you_mean(name, text.header)}"
            raise TunemarkError(f"{text.place}: column", name, fix, exit_code=Exit.INVALID)


def _ignored(mapping: Map, wanted: TableMap, name: str) -> bool:
    columns = (mapping.columns_of(wanted, variant).get(name) for variant in wanted.variants)
    return all(column is None or column.ignore is not None for column in columns)


def _first_match(rules: Sequence[Any], cells: dict[str, str], place: str) -> Any:  # noqa: ANN401 - a rule of the kind given
    return next((rule for rule in rules if _matches(rule, cells, place)), None)


def _matches(rule: Match, cells: dict[str, str], place: str) -> bool:
    if rule.column not in cells:
        return False
    try:
        return re.fullmatch(rule.matches, cells[rule.column]) is not None
    except re.error as error:
        raise TunemarkError(place, rule.matches, f"is not a regular expression: {error}", exit_code=Exit.INVALID) from error


@dataclass(slots=True)
class Row:
    """One result of one row while it is read."""

    mapping: Map
    wanted: TableMap
    variant: Variant
    cells: dict[str, str]
    place: str
    fields: dict[str, Scalar] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    from_repository: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    status: PublishedStatus = PublishedStatus.OK

    def read(self) -> None:
        """Read conditions first, since figures per device need the number of devices."""
        mapping, wanted = self.mapping, self.wanted
        self.assumed, self.from_repository = list(mapping.assumed), list(mapping.from_repository)
        self.fields = mapping.conditions | wanted.conditions | self.variant.conditions
        self.notes = [note for note in (wanted.note, self.variant.note) if note]
        columns = list(self._columns())
        for name, column, cell in columns:
            if column.quantity is None and column.split is None and column.ignore is None:
                self._condition(name, column, cell)
        for rule in (*mapping.amend, *wanted.amend):
            if _matches(rule, self.cells, self.place):
                self.fields |= rule.conditions
                self.assumed += rule.assumed
                self.from_repository += rule.from_repository
                self.notes += [rule.note] if rule.note else []
        self._compute()
        self._figures(columns)
        outcome = _first_match((*wanted.outcome, *mapping.outcome), self.cells, self.place)
        if outcome is not None:
            self.status = outcome.status
            self.notes += [outcome.note] if outcome.note else []

    def _figures(self, columns: Sequence[tuple[str, Column, str]]) -> None:
        for name, column, cell in columns:
            if column.quantity is None:
                continue
            if cell in column.outcomes:
                self.status = column.outcomes[cell]
                self.labels[_label(name)] = cell
            elif cell not in self.mapping.absent:
                self.claims[column.quantity] = self._claim(name, column, cell)
        if self.claims:
            self.claims |= {name: Claim(printed=printed, value=value) for name, (printed, value) in self.wanted.claims.items()}

    def _columns(self) -> Iterator[tuple[str, Column, str]]:
        columns = self.mapping.columns_of(self.wanted, self.variant)
        for name, cell in self.cells.items():
            column = columns.get(name)
            if column is None:
                continue
            yield name, column, cell
            if column.split is None:
                continue
            match = re.fullmatch(column.split, cell)
            if match is None and cell not in self.mapping.absent:
                raise self._error(name, cell, f"does not match {column.split}; correct the map")
            for part, text in (match.groupdict() if match else {}).items():
                if part in columns:
                    yield part, columns[part], text or ""

    def _error(self, name: str, cell: str, fix: str) -> TunemarkError:
        return TunemarkError(f"{self.place}: column {name!r}", cell, fix, exit_code=Exit.INVALID)

    def _condition(self, name: str, column: Column, cell: str) -> None:
        if column.values is not None:
            values = self.mapping.values[column.values] if isinstance(column.values, str) else column.values
            if cell not in values:
                raise self._error(name, cell, f"is not among the values of the map; {did_you_mean(cell, values)}")
            value = values[cell]
            if isinstance(value, dict):
                self.fields |= value
            elif column.field is not None:
                self.fields[column.field] = value
            if cell:
                self.labels[_label(column.field or name)] = cell
        elif column.field is not None and cell not in self.mapping.absent:
            if column.field.startswith("labels."):
                self.labels[column.field.partition(".")[2]] = cell
            else:
                self.fields[column.field] = _scalar(cell) if not column.field.startswith("framework.") else cell

    def _compute(self) -> None:
        for name, factors in self.mapping.computed.items():
            values = [self.fields.get(factor.removeprefix("/")) for factor in factors]
            if self.fields.get(name) is not None or not all(isinstance(value, int) and value > 0 for value in values):
                continue
            product = Fraction(1)
            for factor, value in zip(factors, values, strict=True):
                product *= Fraction(1, int(value or 1)) if factor.startswith("/") else int(value or 1)
            if product.denominator == 1:
                self.fields[name] = product.numerator
                self.assumed.append(name)

    def _claim(self, name: str, column: Column, cell: str) -> Claim:
        value, count = self._figure(name, column, cell) * column.scale, self.fields.get("accelerator_count")
        note, meanings = column.note, column.readings
        if column.per is not None and not isinstance(count, int):
            raise self._error(name, cell, "is a figure per device, and the number of devices is not known")
        if column.per == "device" and isinstance(count, int):
            value *= count
            note = f"{note}; {PER_DEVICE}" if note else PER_DEVICE
        if column.per == "unstated" and isinstance(count, int) and count > 1:
            meanings = (("of all devices", 1.0), ("of one device", float(count)))
        bare = not re.search(r"[A-Za-z%]", cell.replace("e", "").replace("E", ""))
        unit = column.shown if column.shown is not None else "" if column.unit in {"1", "in cell", "duration", "clock"} else column.unit
        printed = f"{cell} {unit}".strip() if bare else cell
        readings = tuple(Reading(meaning=meaning, value=value * factor) for meaning, factor in meanings)
        return Claim(value=_short(value), printed=printed, readings=readings, note=note)

    def _figure(self, name: str, column: Column, cell: str) -> float:
        if column.unit in {"duration", "clock"}:
            seconds = duration(f"0:{cell}" if column.unit == "clock" and cell.isdigit() else cell)
            if seconds is None:
                raise self._error(name, cell, "is not a duration such as `1h 2m` or `1:02:03`")
            return seconds
        match = NUMBER.fullmatch(cell)
        written = WRITTEN.get(match["unit"].upper()) if match else None
        if match is None or (column.unit == "in cell") != (written is not None and match["unit"] != column.unit):
            known = match is not None and match["unit"] in {"", column.unit, *([column.shown] if column.shown else [])}
            if match is None or column.unit == "in cell" or not known:
                raise self._error(
                    name, cell, f"is not a number in {column.unit!r}; correct the unit in the map, or add the cell to `absent`"
                )
        number = float(match["number"].replace(",", ""))
        return number * UNITS[written if column.unit == "in cell" and written else column.unit]

    def record(self, number: int) -> PublishedResult:
        """Return the record; raises TunemarkError (exit code 3) for a condition that records cannot hold."""
        source = self.mapping.source
        stated = {name: value for name, value in self.fields.items() if not name.startswith(PREFIXES) and value != NO_CARD}
        conditions: dict[str, Any] = {"model": None} | stated
        for prefix in ("settings", "framework"):
            named = {name: value for name, value in self.fields.items() if name.startswith(f"{prefix}.") and value is not None}
            conditions[prefix] = {name.partition(".")[2]: str(value) if prefix == "framework" else value for name, value in named.items()}
        present = {name for name, value in self.fields.items() if value is not None} | {"framework"}
        conditions["assumed"] = tuple(dict.fromkeys(name for name in self.assumed if name in present))
        conditions["from_repository"] = tuple(dict.fromkeys(name for name in self.from_repository if name in present))
        labels = {name.partition(".")[2]: str(value) for name, value in self.fields.items() if name.startswith("labels.")}
        path = self.wanted.path or source.path
        content = {
            "id": f"{source.id}-{number:03d}",
            "source": source.id,
            "section": self.wanted.section or self.wanted.under or self.wanted.key,
            "origin": Origin(kind="document", reference=f"{source.repository}@{(self.wanted.commit or source.commit)[:12]}: {path}"),
            "labels": labels | self.labels,
            "conditions": conditions,
            "claims": self.claims,
            "status": self.status,
            "note": " ".join(self.notes) or None,
        }
        try:
            return PublishedResult.model_validate(content)
        except ValidationError as error:
            fix = f"cannot be a record: {first_error(error)}"
            raise TunemarkError(self.place, " | ".join(self.cells.values()), fix, exit_code=Exit.INVALID) from error


def _label(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.rpartition(".")[2].lower()).strip("_") or "row"


def _scalar(cell: str) -> Scalar:
    if cell.lower() in {"true", "false"}:
        return cell.lower() == "true"
    bare = cell.replace(",", "")
    if re.fullmatch(r"[0-9]+", bare):
        return int(bare)
    return float(bare) if re.fullmatch(r"[0-9]*\.[0-9]+|[0-9.]+[eE][+-]?[0-9]+", bare) else cell


def _short(value: float) -> float:
    """Return a value without the noise of binary fractions: 15 significant digits hold every printed figure."""
    return float(f"{value:.15g}")


# Documents -----------------------------------------------------------------------------------------


def document_of(mapping: Map, results: int, existing: Path) -> bytes:
    """Return the `source.json` of a map; statements and tables of an existing one are kept."""
    source = mapping.source
    facts = source.model_dump(
        mode="json", include={"id", "title", "authors", "published_on", "committed_on", "read_on", "summary", "caveats"}
    )
    facts["url"] = source.url or f"https://{source.repository}/blob/{source.commit}/{source.path}"
    facts["origin_repository"] = f"{source.repository}@{source.commit}"
    kept: dict[str, Any] = {}
    if existing.is_file():
        try:
            kept = {name: value for name, value in json.loads(existing.read_bytes()).items() if name in {"tables", "statements"}}
        except ValueError as error:
            raise TunemarkError(str(existing), "", "is not the document of a source; correct it first", exit_code=Exit.INVALID) from error
    return canonical_json(SourceDocument.model_validate({**facts, **kept, "results": results}))


def check_cards(results: Sequence[PublishedResult], facts: FactBase) -> None:
    """Raise TunemarkError (exit code 3) for the first model or accelerator without a card."""
    for result in results:
        for problem in condition_problems(result.conditions, facts):
            raise TunemarkError(f"{result.id}: {problem.field}", problem.value, problem.fix, exit_code=Exit.INVALID)
