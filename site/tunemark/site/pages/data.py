"""The page of all downloads and the API with their fields, and the SQL page."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from tunemark.site import downloads, tables
from tunemark.site.api import schema_id
from tunemark.site.downloads import DUCKDB_FILE, MAIN, RELATIONS, Field, Relation
from tunemark.site.duckdb_wasm import FOLDER as DUCKDB_FOLDER
from tunemark.site.metadata import CROISSANT, DATA_PAGE, LLMS
from tunemark.site.page import BADGES, FEED, Page, api_path
from tunemark.site.queries import Catalogue
from tunemark.site.render import code_spans
from tunemark.site.tables import Cell, Column, Table, text

SQL_PAGE = "data/sql"
EXAMPLE = "003-001"
"""The result in examples; if the database does not contain it, the first result is used."""


@dataclass(frozen=True, slots=True)
class Query:
    """An example on the SQL page."""

    title: str
    sql: str


QUERIES = (
    Query(
        "The cheapest results of a model per million tokens",
        """select accelerator_name, accelerator_count, method, tokens_per_s, usd_per_1m_tokens, trust, result_id
from results
where model = 'llama-3.1-8b' and not failed and not impossible and usd_per_1m_tokens is not null
order by usd_per_1m_tokens
limit 20""",
    ),
    Query(
        "Results by source and trust",
        """select source, source_title, trust, count(*) as results, count(*) filter (where failed) as failed
from results
group by all
order by results desc""",
    ),
    Query(
        "Utilisation by accelerator",
        """select accelerator_name, count(mfu) as results, round(median(mfu), 3) as median_mfu, round(max(mfu), 3) as best_mfu
from results
where not failed and not impossible
group by accelerator_name
having count(mfu) > 0
order by median_mfu desc""",
    ),
    Query(
        "The cheapest newest on-demand price per accelerator and hour",
        """with newest as (
  from prices
  qualify row_number() over (partition by provider, instance, region, kind order by effective_on desc, price) = 1
)
select a.name, min(p.usd_per_hour / p.accelerator_count) as usd_per_accelerator_hour, count(*) as offers
from newest p
join accelerators a using (accelerator)
where p.kind = 'on_demand' and a.unit <> 'cpu'
group by a.name
order by usd_per_accelerator_hour""",
    ),
    Query(
        "Peak memory by model and method",
        """select model_name, method, count(*) as results, round(min(peak_memory_bytes) / 1024 ** 3, 1) as lowest_gib,
  round(max(peak_memory_bytes) / 1024 ** 3, 1) as highest_gib
from results
where peak_memory_bytes is not null and not failed
group by all
order by model_name, method""",
    ),
    Query(
        "Audit rules with the most findings",
        """select f.rule, r.title, f.verdict, count(*) as findings
from findings f
join audit_rules r using (rule)
group by all
order by findings desc""",
    ),
    Query(
        "Tables and columns",
        """select table_name, column_name, data_type, comment
from duckdb_columns()
where database_name = 'tunemark'
order by table_name, column_index""",
    ),
)


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the page of the data, and the SQL page if the site has one."""
    ids = [row["result_id"] for row in catalogue.results]
    context = {
        "url": catalogue.site.url,
        "sql": SQL_PAGE if catalogue.site.sql_bytes is not None else None,
        "duckdb": DUCKDB_FILE,
        "feed": FEED,
        "croissant": CROISSANT,
        "llms": LLMS,
        "badges": BADGES,
        "example": EXAMPLE if EXAMPLE in ids or not ids else ids[0],
        "files": _files(catalogue),
        "fields": [(relation, _fields(catalogue, relation)) for relation in MAIN],
        "api": _endpoints(),
    }
    yield Page(DATA_PAGE, "Data and API", "data.md.j2", context, wide=False)
    if catalogue.site.sql_bytes is not None:
        sql = {
            "queries": [asdict(query) for query in QUERIES],
            "folder": f"../{DUCKDB_FOLDER}",
            "database": f"../{DUCKDB_FILE}",
            "megabytes": [round(size / 1e6) for size in catalogue.site.sql_bytes],
        }
        yield Page(SQL_PAGE, "Query the data with SQL", "sql.md.j2", sql, (("Data and API", DATA_PAGE),))


def _files(catalogue: Catalogue) -> Table:
    def link(label: str, path: str | None) -> Cell:
        return text(label if path else None, href=path)

    columns: list[Column[Relation]] = [
        Column("Table", lambda relation: text(relation.name, small=relation.contents)),
        Column(
            "Rows",
            lambda relation: tables.number(downloads.count(catalogue.database, relation), "{:,}".format),
            numeric=True,
        ),
        Column("Parquet", lambda relation: link("Parquet", relation.path("parquet"))),
        Column("CSV", lambda relation: link("CSV", relation.path("csv") if relation.main else None)),
        Column("JSON", lambda relation: link("JSON", api_path(relation.name) if relation.main else None)),
    ]
    return tables.table("Files", columns, RELATIONS, stacked=True)


def _fields(catalogue: Catalogue, relation: Relation) -> Table:
    columns: list[Column[Field]] = [
        Column("Field", lambda field: text(field.name)),
        Column("Type", lambda field: text(field.kind, small="" if field.required else "or null")),
        Column("Meaning", lambda field: Cell(code_spans(field.meaning))),
    ]
    name = f"Fields of {relation.name}"
    first = relation is MAIN[0]
    return tables.table(name, columns, downloads.fields(catalogue.database, relation), interactive=first, searchable=first, stacked=True)


def _endpoints() -> Table:
    lists = [(f"{relation.name}.json", relation.name, relation.contents) for relation in MAIN]
    files = [
        ("index.json", "index", "The list of all files of the API and all downloads."),
        *lists,
        ("results/<result_id>.json", "result", "A result with printed figures, findings, facts and links to its files."),
    ]
    columns: list[Column[tuple[str, str, str]]] = [
        Column("File in api/v1/", lambda row: text(row[0], href=None if "<" in row[0] else f"api/v1/{row[0]}", small=row[2])),
        Column(
            "JSON Schema", lambda row: text(f"{row[1]}.schema.json", href=f"schema/api/v1/{row[1]}.schema.json", small=schema_id(row[1]))
        ),
    ]
    return tables.table("Files of the API", columns, files, stacked=True)
