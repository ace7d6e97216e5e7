"""All queries to the database. It is opened read-only; its views are documented in the collector's views.sql."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self, TypeVar

import duckdb

from tunemark.schema.comparability import configuration
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.site.page import SiteOptions
from tunemark.site.tables import Row

Key = TypeVar("Key", bound=Hashable)

RESULTS = "select * exclude (started_at), epoch_us(started_at) as started_us from results order by result_id"
STEPS = "select step, label, step_time_s, loss from steps where result_id = ? order by step"
CURVES = "select run, samples, seconds, eval_loss from run_curves where result_id = ? order by run, evaluation"
ACCELERATORS = "select * from accelerators order by vendor, name, accelerator"
MODELS = "select * from models order by family, coalesce(parameters, 0), name, model"
WORKLOADS = "select * from workloads order by tier, workload"
SOURCES = "select * from sources order by source"
PRICES = """
    select p.* replace (cast(p.effective_on as varchar) as effective_on), c.price is not null as newest
    from prices p left join current_prices c using (price)
    order by p.accelerator, p.provider, p.accelerator_count, p.instance, p.kind, p.region, p.effective_on desc, p.price
"""
BASIS_KIND = "on_demand"
"""Kind of price of the default basis."""
STATEMENTS = "select * from statements order by source, statement_id"
TABLES = "select * from document_tables order by source, position, table_id"
CELLS = "select * from document_cells order by source, table_id, row_number, column_number"
AXES = "select * from workload_axes order by workload, position"
SUPPORT = "select * from support order by position, backend"
GATE_SCORES = "select * from gate_scores order by position"
CONFIGURATIONS = "select * from configurations order by configuration"
STUDIES = "select * exclude (started_at), epoch_us(started_at) as started_us from studies order by started_at desc, study_id"
EVIDENCE = ("step_events", "effective", "gates", "ranks", "device_use", "flops", "memory_lines")
"""Tables of observations of measured results other than steps."""
OF_A_RESULT = {
    "costs": "result_id, usd_per_hour, provider, instance, kind, region, price",
    "first_offers": "result_id, kind",
    "basis_costs": "result_id",
    "claims": "record_id, quantity",
    "readings": "record_id, quantity, value, meaning",
    "labels": "record_id, label",
    "phases": "result_id, position",
    "runs": "result_id, run",
    "result_facts": "result_id, topic, name",
    "warnings": "result_id, kind, message",
    "step_events": "result_id, step, kind",
    "effective": "result_id, position",
    "gates": "result_id, gate",
    "ranks": "result_id, rank",
    "device_use": "result_id, node, device",
    "flops": "result_id, position",
    "memory_lines": "result_id, position",
}
"""Tables and views whose rows belong to one result each, with the order of their rows. The first column is the id of the result."""
COLUMNS = {"costs": "* replace (cast(effective_on as varchar) as effective_on)", "basis_costs": "result_id"}
"""Columns that are read of a table, where they are not all."""
FIRST_OFFERS = "(from costs semi join first_offers using (result_id, kind, price)) as costs"
PACKAGES = """
    with seen as (
        select name, value from result_facts where topic = 'packages' and value <> ''
        union all
        select library, version from releases where released_on <= (select as_of from collection)
    )
    select name, list(distinct value) as versions from seen group by name
"""
PREDICTIONS = {
    "throughput_accuracy": "left_out, stack = 'all' desc, stack",
    "throughput_errors": "left_out, left_out_group, result_id",
    "throughput_model": "kind, level",
    "throughput_refused": "reason, result_id",
    "memory_errors": "result_id, quantity",
    "rule_errors": "kind, rule, result_id, quantity",
}
"""Tables and views of prediction errors, with the order of their rows."""
FINDINGS = """
    select f.*, r.title, r.family, r.why from findings f join audit_rules r using (rule)
    order by finding
"""
AUDIT_RULES = "select * from audit_rules order by family, rule"
SETTING = ("model", "method", "accelerator", "accelerator_count")
"""Columns in which comparable published results agree."""
MARKED = ("impossible", "suspicious")
"""Verdicts that printed figures are marked with, worst first."""
PROBLEMS = "select * from load_problems order by file, field, value"


class Database:
    """The collector's database, open for reading."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raise TunemarkError if it is missing or was not written by the collector."""
        if not path.is_file():
            raise TunemarkError("database", str(path), "run `tunemark collect` first")
        try:
            self._connection = duckdb.connect(str(path), read_only=True)
        except duckdb.Error as error:
            raise TunemarkError("database", str(path), f"cannot be opened ({_first_line(error)}); run `tunemark collect` again") from error

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._connection.close()

    def rows(self, query: str, *parameters: object) -> list[Row]:
        """Return the rows of a query. Raise TunemarkError if the database has another layout."""
        try:
            cursor = self._connection.execute(query, list(parameters))
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]
        except duckdb.CatalogException as error:
            raise TunemarkError(
                "database", _first_line(error), "it was written by another version; run `tunemark collect` again", exit_code=Exit.INVALID
            ) from error

    def steps(self, result_id: str) -> list[Row]:
        """Return the raw steps of one measured result."""
        return self.rows(STEPS, result_id)

    def curves(self, result_id: str) -> list[Row]:
        """Return the evaluations of all runs of one converted result."""
        return self.rows(CURVES, result_id)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


@dataclass(frozen=True)
class Catalogue:
    """All data that pages show, read once. Raw steps and evaluations are read when they are drawn."""

    database: Database
    results: list[Row]
    accelerators: list[Row]
    models: list[Row]
    workloads: list[Row]
    sources: list[Row]
    prices: list[Row]
    problems: list[Row]
    statements: list[Row]
    tables: list[Row]
    cells: dict[tuple[str, str], list[Row]]
    costs: Mapping[str, list[Row]]
    first_offers: dict[str, dict[str, Row]]
    """The first offer of each kind of price by kind and result."""
    basis_costs: dict[str, Row]
    """The cost of each result on the default basis."""
    claims: Mapping[str, list[Row]]
    readings: Mapping[str, list[Row]]
    labels: Mapping[str, list[Row]]
    phases: Mapping[str, list[Row]]
    runs: Mapping[str, list[Row]]
    facts: Mapping[str, list[Row]]
    package_versions: dict[str, list[str]]
    """The versions of each package in any result, and those that were released by the day of the collection."""
    warnings: Mapping[str, list[Row]]
    axes: dict[str, list[Row]]
    support: list[Row]
    gate_scores: list[Row]
    """Outcome of the examination of the checks."""
    studies: list[Row]
    configurations: dict[str, Row]
    """Pooled repeats by configuration."""
    evidence: dict[str, Mapping[str, list[Row]]]
    """Rows of each table of `EVIDENCE` by result."""
    predictions: dict[str, list[Row]]
    """Rows of each table of `PREDICTIONS`."""
    findings: list[Row]
    """Audit findings, with the title and the reason of each rule."""
    audit_rules: list[Row]
    site: SiteOptions

    @classmethod
    def read(cls, database: Database, site: SiteOptions | None = None) -> Self:
        """Read the whole catalogue."""
        rows = database.rows

        def own(table: str, source: str | None = None) -> dict[str, list[Row]]:
            order = OF_A_RESULT[table]
            owner = order.partition(",")[0]
            return _by(rows(f"select {COLUMNS.get(table, '*')} from {source or table} order by {order}"), owner)  # noqa: S608 - our own names

        on_basis = own("basis_costs")
        first_offers: dict[str, dict[str, Row]] = {}
        for result, offers in own("costs", FIRST_OFFERS).items():
            for offer in offers:
                first_offers.setdefault(offer["kind"], {})[result] = offer
        return cls(
            database=database,
            results=rows(RESULTS),
            accelerators=rows(ACCELERATORS),
            models=rows(MODELS),
            workloads=rows(WORKLOADS),
            sources=rows(SOURCES),
            prices=rows(PRICES),
            problems=rows(PROBLEMS),
            statements=rows(STATEMENTS),
            tables=rows(TABLES),
            cells=grouped(rows(CELLS), lambda row: (row["source"], row["table_id"])),
            costs=own("costs"),
            first_offers=first_offers,
            basis_costs={result: cost for result, cost in first_offers.get(BASIS_KIND, {}).items() if result in on_basis},
            claims=own("claims"),
            readings=own("readings"),
            labels=own("labels"),
            phases=own("phases"),
            runs=own("runs"),
            facts=own("result_facts"),
            package_versions={row["name"]: row["versions"] for row in rows(PACKAGES)},
            warnings=own("warnings"),
            axes=_by(rows(AXES), "workload"),
            support=rows(SUPPORT),
            gate_scores=rows(GATE_SCORES),
            studies=rows(STUDIES),
            configurations={row["configuration"]: row for row in rows(CONFIGURATIONS)},
            evidence={table: own(table) for table in EVIDENCE},
            predictions={
                table: rows(f"select * from {table} order by {order}")  # noqa: S608 - our own names
                for table, order in PREDICTIONS.items()
            },
            findings=rows(FINDINGS),
            audit_rules=rows(AUDIT_RULES),
            site=site or SiteOptions(),
        )

    def seen(self, table: str, result_id: str) -> list[Row]:
        """Return the rows of one result in a table of `EVIDENCE`."""
        return self.evidence[table].get(result_id, [])

    @cached_property
    def result_ids(self) -> frozenset[str]:
        """The ids of all results."""
        return frozenset(self.result_sources)

    @cached_property
    def result_sources(self) -> dict[str, str]:
        """The source of each result."""
        return {row["result_id"]: row["source"] for row in self.results}

    @cached_property
    def statement_sources(self) -> dict[str, str]:
        """The document of each statement."""
        return {row["statement_id"]: row["source"] for row in self.statements}

    @cached_property
    def findings_about(self) -> dict[str, list[Row]]:
        """Findings by record; a finding about several records is listed under each."""
        about: dict[str, list[Row]] = {}
        for row in self.findings:
            for record in row["record_ids"]:
                about.setdefault(record, []).append(row)
        return about

    @cached_property
    def marked_cells(self) -> dict[tuple[str, str], str]:
        """The worst verdict on each figure by record and quantity, of findings about that record alone or that it is impossible."""
        marked: dict[tuple[str, str], str] = {}
        for verdict in MARKED:
            for row in self.findings:
                if row["verdict"] == verdict and (verdict == MARKED[0] or row["quantities"]):
                    about = row["record_ids"] if verdict == MARKED[0] else row["record_ids"][:1]
                    for record in about:
                        for name in row["quantities"] or row["conditions"]:
                            marked.setdefault((record, name), verdict)
        return marked

    @cached_property
    def findings_by_source(self) -> dict[str, list[Row]]:
        """Findings by the source of their first record."""
        sources = self.result_sources | self.statement_sources
        return _by((row | {"source": sources[row["record_ids"][0]]} for row in self.findings), "source")

    @cached_property
    def source_rows(self) -> dict[str, Row]:
        """The source documents by id."""
        return {row["source"]: row for row in self.sources}

    @cached_property
    def model_parameters(self) -> dict[str, int]:
        """The number of parameters of each model that states it."""
        return {row["model"]: row["parameters"] for row in self.models if row["parameters"]}

    @cached_property
    def group_sizes(self) -> Counter[str | None]:
        """The number of results of each comparability group."""
        return Counter(row["comparability_group"] for row in self.results)

    @cached_property
    def finished_by_group(self) -> dict[str | None, list[Row]]:
        """Finished and possible results by comparability group."""
        return grouped((row for row in self.results if not row["failed"] and not row["impossible"]), lambda row: row["comparability_group"])

    @cached_property
    def finished_by_setting(self) -> dict[tuple[object, ...], list[Row]]:
        """Finished and possible results by model, method, accelerator and device count."""
        rows = (row for row in self.results if not row["failed"] and not row["impossible"])
        return grouped(rows, lambda row: tuple(row[name] for name in SETTING))

    @cached_property
    def runs_by_configuration(self) -> dict[str | None, list[Row]]:
        """Finished measured results by configuration, with any version of the software, oldest first."""
        finished = (row for row in self.results_where(source="measured") if not row["failed"])
        rows = sorted(finished, key=lambda row: (row["started_us"] or 0, row["result_id"]))
        return grouped(rows, lambda row: configuration(row, any_software=True))

    @cached_property
    def published_by_work(self) -> dict[tuple[object, ...], list[Row]]:
        """Published and converted results by model and method."""
        return grouped((row for row in self.results if row["source"] != "measured"), lambda row: (row["model"], row["method"]))

    @cached_property
    def packages(self) -> dict[str, dict[str, str]]:
        """The versions of the packages of each result."""
        packages: dict[str, dict[str, str]] = {}
        for result, facts in self.facts.items():
            versions = {fact["name"]: fact["value"] for fact in facts if fact["topic"] == "packages" and fact["value"]}
            if versions:
                packages[result] = versions
        return packages

    def with_task(self, task: str) -> frozenset[str]:
        """Return the results that record this task."""
        return frozenset(
            result
            for result, facts in self.facts.items()
            if any(fact["name"] == "task" and fact["topic"] == "settings" and fact["value"] == task for fact in facts)
        )

    def results_where(self, **conditions: object) -> list[Row]:
        """Return the results whose columns have these values."""
        names = tuple(conditions)
        if names not in self._results_by:
            self._results_by[names] = grouped(self.results, lambda row: tuple(row[name] for name in names))
        return list(self._results_by[names].get(tuple(conditions.values()), ()))

    @cached_property
    def _results_by(self) -> dict[tuple[str, ...], dict[tuple[object, ...], list[Row]]]:
        """Results by the values of some columns, for each combination of columns that was asked for."""
        return {}


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Return rows by key, in their order."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _by(rows: Iterable[Row], column: str) -> dict[str, list[Row]]:
    return grouped(rows, lambda row: row[column])
