"""What a collection keeps of the database of the last one: all of it if no input has changed, else the predictions with the same inputs.

Kept rows are those that a full collection would write again.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from tunemark.collector.audit.rule import Finding
from tunemark.collector.gate.cross_file_checks import committed_files
from tunemark.collector.gate.read import SUBMISSIONS
from tunemark.collector.store.database import open_database
from tunemark.schema import errors
from tunemark.schema.errors import TunemarkError
from tunemark.schema.files import data_folder
from tunemark.schema.vocabulary import AuditVerdict

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from tunemark.collector.predict.calibration_rows import Calibration

CODE = Path(__file__).parents[2]
"""The package of the collector."""
SCHEMA = Path(errors.__file__).parent
"""The package of the schema, wherever it is installed."""
PREDICTIONS = ("throughput_model", "throughput_errors", "option_rates", "memory_errors", "rule_errors")
"""Tables that follow from the calibration rows and the facts, and take most of the time of a collection."""


@dataclass(frozen=True, slots=True)
class Previous:
    """The database of the last collection, with the hashes of its inputs; empty if there is none."""

    database: Path | None = None
    facts_sha256: str = ""
    predictions_sha256: str = ""

    @classmethod
    def of(cls, database: Path) -> "Previous":
        """Return a database with the hashes of its inputs; an empty one if it is missing, damaged, or of an older version."""
        import duckdb  # noqa: PLC0415 - not needed to import this module

        try:
            with open_database(database) as connection:
                found = connection.execute("select facts_sha256, predictions_sha256 from collection").fetchone()
        except (TunemarkError, duckdb.Error):
            return cls()
        return cls(database, *found) if found and all(found) else cls()

    def tables(self, names: Iterable[str]) -> "dict[str, pa.Table] | None":
        """Return the rows of tables; None if the database is gone."""
        if self.database is None:
            return None
        with open_database(self.database) as connection:
            return {name: connection.sql(f"select * from {name}").to_arrow_table() for name in names}  # noqa: S608 - our own tables


def inputs_sha256(root: Path, facts_digest: str) -> str:
    """Return the hash of all inputs of a collection: that of the facts, the submissions, and which files git tracks."""
    digest = hashlib.sha256(facts_digest.encode())
    _add(digest, root / SUBMISSIONS)
    digest.update("\0".join(sorted(committed_files(root))).encode(errors="surrogateescape"))
    return digest.hexdigest()


def facts_sha256(root: Path) -> str:
    """Return the hash of the files of data, and of the code."""
    digest = hashlib.sha256()
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
