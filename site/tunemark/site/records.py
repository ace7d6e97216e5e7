"""The database as a build reads it, and the files of results: the record as long as it is what was collected, and the raw steps."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

from tunemark.schema.files import project_root
from tunemark.schema.records.published import PublishedResult
from tunemark.site.database import Database
from tunemark.site.page import DEFAULT_URL, ENDING, Row, result_path
from tunemark.site.render import file_name

RECORDS, SINGLE = "data/records", PublishedResult.model_fields["format"].default
FILES = """
    select result_id, file, sha256 from results
    where file like '%.json' and not starts_with(file, '/') and not list_contains(string_split(file, '/'), '..') order by file, result_id
"""
STEPS = """
    select step, label, completed_at_s, step_time_s, slot_tokens, real_tokens, supervised_tokens, documents, rows, loss
    from steps where result_id = '{}' order by step
"""


@dataclass(frozen=True)
class Catalogue:
    """The database with the public address of the site, which ends with a slash. Links within the site are relative and do not use it."""

    database: Database
    url: str = DEFAULT_URL

    @cached_property
    def results(self) -> list[Row]:
        """All results."""
        return self.database.rows("from listed_results order by result_id")

    @cached_property
    def files(self) -> dict[str, dict[str, str]]:
        """The paths in the site of the page, the record and the steps of each result, where there are any."""
        made = {row["result_id"]: {"page": f"{result_path(row['result_id'])}{ENDING}"} for row in self.results}
        for row in self.database.rows("select distinct result_id from steps"):
            made.setdefault(row["result_id"], {})["steps"] = f"{RECORDS}/{row['result_id']}.steps.csv"
        for path, rows in self._collected:
            for row in rows if path else ():
                made.setdefault(row["result_id"], {})["record"] = f"{RECORDS}/{row['result_id']}.json"
        return made

    @cached_property
    def _collected(self) -> list[tuple[Path | None, list[Row]]]:
        """The results of each file of the checkout; no path if it is not the file that was collected."""
        root = project_root().resolve()
        return [
            (_unchanged(root / file, rows := list(found)), rows)
            for file, found in groupby(self.database.rows(FILES), lambda row: str(row["file"]))
        ]

    def write_files(self, folder: Path) -> None:
        """Write the record of each result, and the steps of each measured one, below the folder of a site."""
        (folder / RECORDS).mkdir(parents=True, exist_ok=True)
        for path, rows in self._collected:
            for name, content in _records(path, rows) if path else ():
                (folder / RECORDS / f"{file_name(name)}.json").write_bytes(content)
        for name, paths in self.files.items():
            if "steps" in paths:
                self.database.rows(f"copy ({STEPS.format(file_name(name))}) to '{folder / paths['steps']}' (format csv, header)")


def _unchanged(path: Path, rows: list[Row]) -> Path | None:
    return path if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == rows[0]["sha256"] else None


def _records(path: Path, rows: list[Row]) -> Iterator[tuple[str, bytes]]:
    """Yield the record of each result of a file: the file, or its line of a file with several results."""
    content = path.read_bytes()
    whole = json.loads(content)
    if not isinstance(whole.get("results"), list):
        yield from ((row["result_id"], content) for row in rows)
        return
    for record in whole["results"]:
        yield record["id"], json.dumps({"format": SINGLE} | record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
