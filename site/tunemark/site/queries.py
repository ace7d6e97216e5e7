"""What the commands, files and citations of results are made from: rows of the database, read once."""

from dataclasses import dataclass
from functools import cached_property

from tunemark.site.database import Database, grouped
from tunemark.site.page import DEFAULT_URL
from tunemark.site.tables import Row


@dataclass(frozen=True)
class Catalogue:
    """Results with their recorded facts, workloads and sources."""

    database: Database
    url: str = DEFAULT_URL
    """Public address of the site, ending with a slash. Links within the site are relative and do not use it."""

    @cached_property
    def results(self) -> list[Row]:
        """All results."""
        return self.database.rows("from listed_results order by result_id")

    @cached_property
    def facts(self) -> dict[str, list[Row]]:
        """Recorded facts by result."""
        return grouped(self.database.rows("from result_facts order by result_id, topic, name"), lambda row: str(row["result_id"]))

    @cached_property
    def workloads(self) -> list[Row]:
        """The workload cards."""
        return self.database.rows("from workloads order by tier, workload")

    @cached_property
    def axes(self) -> dict[str, list[Row]]:
        """The settings that the source of a workload varied."""
        return grouped(self.database.rows("from workload_axes order by workload, position"), lambda row: str(row["workload"]))

    @cached_property
    def source_rows(self) -> dict[str, Row]:
        """The source documents by id."""
        return {row["source"]: row for row in self.database.rows("from sources")}

    @cached_property
    def model_parameters(self) -> dict[str, int]:
        """The number of parameters of each model that states it."""
        return {row["model"]: row["parameters"] for row in self.database.rows("from models where parameters > 0")}
