"""How to read a number, how to contribute one, and the fields of a record: all from the code that judges them."""

from collections.abc import Iterator

from pydantic import BaseModel

from tunemark.schema.comparability import COMPARABILITY_KEYS
from tunemark.schema.privacy import PATTERNS
from tunemark.schema.quantities import QUANTITIES, Quantity
from tunemark.schema.records.json_schema import field_reference
from tunemark.schema.records.published import PublishedResult
from tunemark.schema.records.submission import Environment, Submission
from tunemark.schema.vocabulary import Doubt, Status
from tunemark.site import tables, wording
from tunemark.site.page import Page
from tunemark.site.queries import Catalogue
from tunemark.site.render import code_spans
from tunemark.site.tables import Cell, Column, Line, Table

CRUMBS = (("Guide", "guide/index"),)
BETTER = {"lower": "lower", "higher": "higher", None: "neither"}


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the guide."""
    del catalogue
    reading = {
        "quantities": _quantities(),
        "trust": wording.TRUST,
        "keys": [(wording.words(key), meaning) for key, meaning in COMPARABILITY_KEYS.items()],
        "statuses": [wording.words(status.value) for status in Status],
        "doubts": [wording.words(doubt.value) for doubt in Doubt],
    }
    contributing = {"recorded": _fields("What is recorded about the machine", Environment), "never": sorted(PATTERNS)}
    reference = {
        "submission": _fields("Fields of a submission", Submission),
        "published": _fields("Fields of a published result", PublishedResult),
    }
    yield Page("guide/index", "How to read a number", "reading.md.j2", reading)
    yield Page("guide/contribute", "How to contribute", "contribute.md.j2", contributing, CRUMBS)
    yield Page("guide/fields", "Field reference", "fields.md.j2", reference, CRUMBS)


def _quantities() -> Table:
    columns = [Column("Quantity"), Column("Unit"), Column("Better"), Column("Meaning")]
    return tables.table("Quantities", columns, (_quantity(row) for row in QUANTITIES.values()), interactive=True)


def _quantity(row: Quantity) -> Line:
    unit = "count, share or ratio" if row.unit == "1" else row.unit
    return Line(
        (
            tables.text(row.label, small=row.key),
            tables.text(unit),
            tables.text(BETTER[row.better]),
            Cell(code_spans(row.meaning), sort=row.meaning.lower()),
        )
    )


def _fields(name: str, model: type[BaseModel]) -> Table:
    columns = [Column("Field"), Column("Type"), Column("Meaning")]
    lines = (
        Line((tables.text(path), tables.text(kind.replace("`", "")), Cell(code_spans(meaning), sort=meaning.lower())))
        for path, kind, meaning in field_reference(model)
    )
    return tables.table(name, columns, lines, interactive=True)
