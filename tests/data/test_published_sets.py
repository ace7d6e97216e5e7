"""Every imported set is made again from the stored extract of its table, record for record and cell for cell."""

from pathlib import Path

import pytest
from factories import FACTS

from tunemark.collector.importers.table import EXTRACT, RESULTS, Imported, found_tables, import_tables
from tunemark.collector.importers.table_map import Map, read_map
from tunemark.schema.records.published import PublishedSet

DATA = Path(__file__).parents[2] / "data"
MAPS = sorted((DATA / "tables").glob("*/map.toml"))


def imported(path: Path) -> tuple[Map, Imported]:
    """Return a map and what it makes of the stored extract."""
    mapping = read_map(path)
    return mapping, import_tables(mapping, found_tables(mapping, [path.with_name(EXTRACT)]), FACTS)


@pytest.mark.parametrize("path", MAPS, ids=lambda path: path.parent.name)
def test_the_extract_and_the_map_give_the_stored_records(path: Path) -> None:
    mapping, done = imported(path)
    stored = (DATA / "published" / mapping.source.id / RESULTS).read_bytes()
    assert mapping.source.id == path.parent.name
    assert PublishedSet(source=mapping.source.id, results=tuple(done.results)).lines() == stored


@pytest.mark.parametrize("path", MAPS, ids=lambda path: path.parent.name)
def test_every_figure_of_an_extract_is_printed_in_a_record(path: Path) -> None:
    mapping, done = imported(path)
    printed = {claim.printed.split(" ")[0] for result in done.results for claim in result.claims.values()}
    printed |= {text for result in done.results for text in result.labels.values()}
    missing = []
    for wanted, (_, table, _) in zip(mapping.tables, done.extracted, strict=True):
        for variant in wanted.variants:
            for name, column in variant.columns.items():
                if column.quantity is None or name not in table.header:
                    continue
                cells = (cells[table.header.index(name)] for _, cells in table.rows)
                missing += [
                    cell for cell in cells if cell not in mapping.absent and cell.split(" ")[0] not in printed and cell not in printed
                ]
    assert missing == []
