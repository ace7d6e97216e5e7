"""What a collection keeps of the last one: all of it if no input has changed, else the verdicts and predictions with the same inputs.

Kept rows are those that a full collection would write again. Beside the database is a file of the submissions that were loaded, without
their rows in tables, which are in the database. It is read only if it belongs to the database, and the facts and the code are the same.
"""

import hashlib
import json
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any

from tunemark.collector.audit.rule import Finding
from tunemark.collector.gate.cross_file_checks import committed_files
from tunemark.collector.gate.read import SUBMISSIONS
from tunemark.collector.store.database import open_database
from tunemark.schema import errors
from tunemark.schema.errors import TunemarkError
from tunemark.schema.files import data_folder, write_atomically
from tunemark.schema.vocabulary import AuditVerdict

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tunemark.collector.gate.cross_file_checks import Candidate
    from tunemark.collector.predict.calibration_rows import Calibration

CODE = Path(__file__).parents[2]
"""The package of the collector."""
SCHEMA = Path(errors.__file__).parent
"""The package of the schema, wherever it is installed."""
PREDICTIONS = ("throughput_model", "throughput_errors", "option_rates", "memory_errors", "rule_errors")
"""Tables that follow from the calibration rows and the facts, and take most of the time of a collection."""
LIBRARIES = ("duckdb", "numpy", "pyarrow", "pydantic")
"""Libraries on whose versions the contents of a database depend."""
SECOND_RUN = "second_run"
"""Kind of the warnings of results that need a second run, which follow from other results too."""
Loaded = tuple[str, str]
"""File and hash of the bytes of a submission."""


@dataclass(frozen=True, slots=True)
class Previous:
    """The database of the last collection, with the hashes of its inputs; empty if there is none."""

    database: Path | None = None
    inputs_sha256: str = ""
    facts_sha256: str = ""
    predictions_sha256: str = ""

    @classmethod
    def of(cls, database: Path) -> "Previous":
        """Return a database with the hashes of its inputs; an empty one if it is missing, damaged, or of an older version."""
        import duckdb  # noqa: PLC0415 - not needed to import this module

        try:
            with open_database(database) as connection:
                found = connection.execute("select inputs_sha256, facts_sha256, predictions_sha256 from collection").fetchone()
        except (TunemarkError, duckdb.Error):
            return cls()
        return cls(database, *found) if found and all(found) else cls()

    def tables(self, names: Iterable[str]) -> "dict[str, pa.Table] | None":
        """Return the rows of tables; None if the database is gone."""
        if self.database is None:
            return None
        with open_database(self.database) as connection:
            return {name: connection.sql(f"select * from {name}").to_arrow_table() for name in names}  # noqa: S608 - our own tables

    def submissions(self) -> "dict[Loaded, Any]":
        """Return the submissions that the last collection loaded, without their tables; none if their file is of another database."""
        if self.database is None:
            return {}
        try:
            # Our own file, beside our own database. Whoever can write it can also write the code that is imported from here.
            inputs, loaded = pickle.loads(_loaded_file(self.database).read_bytes())  # noqa: S301
        except Exception:  # noqa: BLE001 - a damaged pickle can raise anything; the submissions are judged again
            return {}
        return loaded if inputs == self.inputs_sha256 else {}

    def rows_of(self, tables: Iterable[str], result_ids: Sequence[str]) -> "dict[str, pa.Table]":
        """Return the rows of some results, without the warnings that follow from other results too; none without a database."""
        if self.database is None or not result_ids:
            return {}
        left_out = {"warnings": f" and kind <> '{SECOND_RUN}'"}
        with open_database(self.database) as connection:
            return {
                name: connection.sql(
                    f"select * from {name} where result_id in (select unnest(?)){left_out.get(name, '')}",  # noqa: S608 - our own tables
                    params=[list(result_ids)],
                ).to_arrow_table()
                for name in tables
            }


def keep_submissions(database: Path, inputs: str, loaded: "Mapping[Loaded, Candidate]") -> None:
    """Write the submissions of a new database, so that the next collection need not judge them again; without space it judges them."""
    with suppress(OSError):
        write_atomically(_loaded_file(database), pickle.dumps((inputs, dict(loaded))))


def _loaded_file(database: Path) -> Path:
    return database.with_name(f".{database.name}.loaded")


def inputs_sha256(root: Path, facts_digest: str) -> str:
    """Return the hash of all inputs of a collection: that of the facts, the submissions, and which files git tracks."""
    digest = hashlib.sha256(facts_digest.encode())
    _add(digest, root / SUBMISSIONS)
    digest.update("\0".join(sorted(committed_files(root))).encode(errors="surrogateescape"))
    return digest.hexdigest()


def facts_sha256(root: Path) -> str:
    """Return the hash of the files of data, of the code, and of the versions of the libraries."""
    digest = hashlib.sha256(repr((python_version(), *map(version, LIBRARIES))).encode())
    for folder in (data_folder(root), CODE, SCHEMA):
        _add(digest, folder)
    return digest.hexdigest()


def predictions_sha256(
    facts_digest: str, day: date, calibration: "Calibration", trust: Mapping[str, str], findings: Iterable[Finding]
) -> str:
    """Return the hash of all that predictions depend on. A calibration row follows from its result, which its id names."""
    rows = [[row.id, row.same, row.device_seconds_per_token, row.basis, trust.get(row.id)] for row in calibration.rows]
    suspicious = [[finding.records, finding.quantities] for finding in findings if finding.verdict is AuditVerdict.SUSPICIOUS]
    return hashlib.sha256(json.dumps([facts_digest, day.isoformat(), rows, suspicious]).encode()).hexdigest()


def _add(digest: "hashlib._Hash", folder: Path) -> None:
    """Add the names and contents of the files of a folder to a hash."""
    if folder.is_dir():
        for path in sorted(_files(folder)):
            digest.update(f"{path.relative_to(folder)}\0".encode(errors="surrogateescape"))
            digest.update(hashlib.sha256(path.read_bytes()).digest())


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that could be inputs, without caches."""
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            yield path


def counts_if_unchanged(database: Path, digest: str, as_of: date, tables: Iterable[str]) -> tuple[dict[str, int], dict[str, int]] | None:
    """Return the rows by table and the results by source of a database with these inputs; None if it is missing or has other inputs.

    A database that left out a file, or noted something about one, counts as changed, so that this is reported again.
    """
    try:
        with open_database(database) as connection:
            same = _row(connection, "select inputs_sha256 = ? and as_of = ? and complete from collection", [digest, as_of])
            if not same:
                return None
            rows = {name: _row(connection, f"select count(*) from {name}") for name in tables}  # noqa: S608 - our own tables
            sources = connection.execute("select source from result_rows").fetchall()
    except (TunemarkError, LookupError):
        return None
    return rows, dict(Counter(source for (source,) in sources))


def _row(connection: "duckdb.DuckDBPyConnection", sql: str, values: list[object] | None = None) -> int:
    """Return the single value of a query. Raises LookupError if there is none, such as in a database of an older version."""
    import duckdb  # noqa: PLC0415 - not needed to import this module

    try:
        row = connection.execute(sql, values or []).fetchone()
    except duckdb.Error as error:
        raise LookupError(str(error)) from error
    if row is None:
        raise LookupError(sql)
    return int(row[0])
