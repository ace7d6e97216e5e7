"""Files that the next build can reuse while their rows stay the same: the files of a result, pages that list some results, and data.

The files stay in the site; a list beside it has the key of each result and the marks of its files. The key is a hash of all rows
that the files depend on, of the code, and of the options. The mark of a file is its size and the time of its last change: reading
10,000 pages would take longer than all else that an unchanged result costs. A file that is missing or was changed is made again, and
so is every file if the list is missing, damaged or of another version.
"""

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from platform import python_version
from typing import Self

from tunemark import schema
from tunemark.schema.files import write_atomically
from tunemark.site import recommend_data, reproduce
from tunemark.site.downloads import RELATIONS
from tunemark.site.page import Page, Reads, api_path, badge_file, result_path
from tunemark.site.queries import OF_A_RESULT, Catalogue
from tunemark.site.render import ENDING, compact_json

FILE = ".results.json"
FORMAT = 6
LIBRARIES = ("altair", "duckdb", "jinja2", "markdown", "markupsafe", "pydantic", "vl-convert-python")
GROUPS = ("comparability_group", "configuration", "study_id")
"""Columns whose results appear on each other's pages."""
SETTING = "concat_ws('|', model, method, accelerator, accelerator_count)"
ROWS = """
    select {owner} as result_id, sum(hash(t)::hugeint)::varchar as rows from {table} t
    where {owner} is not null group by all
"""
RESULTS = f"select result_id, {', '.join(GROUPS)}, {SETTING} as setting, hash(r)::varchar as row from results r"  # noqa: S608 - our own names
DATA = {relation.name: (relation.sql,) for relation in RELATIONS} | {recommend_data.FOLDER: recommend_data.READS}
"""Groups of data files with the queries that they depend on: the Parquet and CSV files of each relation, and those of recommendations."""
ALL_ROWS = "select concat_ws('-', count(*), sum(hash(t)::hugeint)) as rows from ({query}) t"
SHARED = ("accelerators", "models", "workloads", "workload_axes", "sources", "statements", "audit_rules")
"""Small tables that any page can show."""


# Keys ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Keys:
    """Hashes of what files show."""

    shared: str
    """Of what all pages share."""
    rows: dict[str, str]
    """Of the rows of each result alone."""
    results: dict[str, str]
    """Of everything that the files of a result show."""
    data: dict[str, str]
    """Of the rows of each group of data files."""
    pages: dict[str, str] = field(default_factory=dict)
    """Of everything that the other pages show, by path. Pages are added when they are made."""

    def add(self, page: Page, reads: Reads) -> None:
        """Add the key of a page that is not that of a result."""
        self.pages[page.path] = _hash(self.shared, page.title, [self.rows.get(result) for result in reads.results], reads.values)


def keys_of(catalogue: Catalogue) -> Keys:
    """Return the keys. That of a result covers its own rows, those of results on its page, and what all pages share."""
    rows, own = catalogue.database.rows, dict[str, list[object]]()
    for table in (*OF_A_RESULT, "steps", "run_curves"):
        owner = OF_A_RESULT.get(table, "result_id").partition(",")[0]
        for row in rows(ROWS.format(owner=owner, table=table)):
            own.setdefault(row["result_id"], []).append((table, row["rows"]))
    for finding in catalogue.findings:
        others = [(name, catalogue.result_sources.get(name), catalogue.statement_sources.get(name)) for name in finding["record_ids"]]
        for name in finding["record_ids"]:
            own.setdefault(name, []).append((sorted(finding.items()), others))
    results = rows(RESULTS)
    packages = sorted((name, sorted(versions)) for name, versions in catalogue.package_versions.items())
    small = [rows(f"select sum(hash(t)::hugeint)::varchar from {name} t") for name in SHARED]  # noqa: S608 - our own names
    shared = _hash(_code(), asdict(catalogue.site), packages, small)
    rows_of = {row["result_id"]: _hash(row["row"], own.get(row["result_id"])) for row in results}
    groups = Counter[tuple[str, str]]()
    for row in results:
        for name in (*GROUPS, "setting"):
            groups[name, row[name]] += int(rows_of[row["result_id"]], 16)
    files = {row["result_id"]: reproduce.downloads(row) for row in catalogue.results}
    keys = {
        row["result_id"]: _hash(
            shared,
            rows_of[row["result_id"]],
            files[row["result_id"]],
            *(groups[name, row[name]] for name in (*GROUPS, "setting") if row[name]),
        )
        for row in results
    }
    data = {name: _hash(_code(), [rows(ALL_ROWS.format(query=query)) for query in queries]) for name, queries in DATA.items()}
    return Keys(shared, rows_of, keys, data)


@cache
def _code() -> str:
    """Return a hash of all code and templates that make the pages, with the versions of the libraries that they use."""
    folders = (Path(__file__).parent, *map(Path, schema.__path__))
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in {".py", ".j2", ".js", ".svg"})
    return _hash(python_version(), *map(version, LIBRARIES), *(hashlib.sha256(path.read_bytes()).hexdigest() for path in files))


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


# Files ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one result, or of another page."""

    key: str
    marks: dict[str, str]
    """Mark of each file by its path in the site."""
    charts: tuple[str, ...] = ()
    """Names of the kept charts on its page."""


@dataclass(slots=True)
class KeptResults:
    """The files of a previous build that are still valid."""

    site: Path
    """The previous site."""
    shell: str = ""
    """Hash of the layout into which the pages were stamped."""
    files: dict[str, Files] = field(default_factory=dict)
    """By result."""
    pages: dict[str, Files] = field(default_factory=dict)
    """Other pages by path."""
    data: dict[str, Files] = field(default_factory=dict)
    """Groups of data files by name."""
    charts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Charts of the pages that were rendered, by path."""

    @classmethod
    def read(cls, out: Path, keys: Keys) -> Self:
        """Return the results and data whose key is the same, and whose files are as they were written. Other pages are not checked yet."""
        site = out / "site"
        try:
            content = json.loads((out / FILE).read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                return cls(site)
            files, data, pages = ({name: Files(*each) for name, each in content[kind].items()} for kind in ("results", "data", "pages"))
            return cls(site, content["shell"], _valid(files, keys.results, site), pages, _valid(data, keys.data, site))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return cls(site)

    def keep_pages(self, keys: Mapping[str, str]) -> None:
        """Forget the other pages that have another key, or that are not as they were written."""
        self.pages = _valid(self.pages, keys, self.site)

    def link(self, path: str, site: Path) -> None:
        """Add a file of the previous site to a new one: as a second name, or as a copy where the file system has no second names."""
        # Paths as texts: a build links 30,000 files.
        source, target = f"{self.site}/{path}", f"{site}/{path}"
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)

    def has_layout(self, site: Path) -> bool:
        """Return True if MkDocs laid the pages of a new site out as before. Keep the new layout."""
        before, self.shell = self.shell, _hash(*(_sha256(shell) for shell in sorted(site.rglob(f"shell*{ENDING}"))))
        return self.shell == before

    def note(self, path: str, site: Path, charts: tuple[str, ...] | None) -> None:
        """Note the charts of a page that was rendered; link the page if they are None."""
        if charts is None:
            self.link(f"{path}{ENDING}", site)
        else:
            self.charts[path] = charts

    def write(self, out: Path, keys: Keys) -> None:
        """List the files of the site that was built."""
        for page, charts in self.charts.items():
            result = PurePosixPath(page).name
            if page in keys.pages:
                self.pages[page] = _written(out / "site", keys.pages[page], [f"{page}{ENDING}"], charts)
            elif page == result_path(result):
                paths = [*paths_of(result), badge_file(result), *reproduce.record_files(result)]
                self.files[result] = _written(out / "site", keys.results[result], paths, charts)
        for name in keys.data.keys() - self.data.keys():
            self.data[name] = _written(out / "site", keys.data[name], _data_paths(name, out / "site"), ())
        content = {
            "format": FORMAT,
            "shell": self.shell,
            **{
                kind: {name: (each.key, each.marks, each.charts) for name, each in sorted(files.items())}
                for kind, files in (("data", self.data), ("results", self.files), ("pages", self.pages))
            },
        }
        write_atomically(out / FILE, compact_json(content).encode())


def paths_of(result: str) -> tuple[str, str]:
    """Return the paths in the site of the page of a result and of its file of the API."""
    return f"{result_path(result)}{ENDING}", api_path(result_path(result))


def _data_paths(name: str, site: Path) -> list[str]:
    """Return the paths of the files that a group of data files can have."""
    if name == recommend_data.FOLDER:
        return [path.relative_to(site).as_posix() for path in sorted((site / name).glob("*.json"))]
    return [relation.path(ending) for relation in RELATIONS if relation.name == name for ending in ("parquet", "csv")]


def _written(site: Path, key: str, paths: Iterable[str], charts: tuple[str, ...]) -> Files:
    """Return the files that a result or a page has, of those that it can have."""
    return Files(key, {path: mark_of(site / path) for path in paths if (site / path).is_file()}, charts)


def _valid(files: Mapping[str, Files], keys: Mapping[str, str], site: Path) -> dict[str, Files]:
    """Return the files that have the same key, and are in the site as they were written."""
    return {name: each for name, each in files.items() if keys.get(name) == each.key and _are_in(site, each)}


def _are_in(site: Path, files: Files) -> bool:
    try:
        return all(mark_of(f"{site}/{path}") == mark for path, mark in files.marks.items())
    except OSError:
        return False


def mark_of(path: Path | str) -> str:
    """Return the size and the time of the last change of a file."""
    found = os.stat(path)  # noqa: PTH116 - takes a text, of which a Path need not be made
    return f"{found.st_size}-{found.st_mtime_ns}"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
