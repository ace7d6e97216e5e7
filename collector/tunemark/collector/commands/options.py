"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

from tunemark.schema.files import project_root

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Database = Annotated[
    Path | None, typer.Option("--db", help="The DuckDB file; `build/tunemark.duckdb` of the checkout when left out.", show_default=False)
]


def database_of(path: Path | None) -> Path:
    """Return the database that is named, or that of the checkout."""
    return project_root() / "build" / "tunemark.duckdb" if path is None else path
