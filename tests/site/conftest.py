"""One small database and one built site for all tests of this room."""

from pathlib import Path

import pytest
from fixture_database import ROOT, make_database

from tunemark.site.build import build_site
from tunemark.site.queries import Catalogue, Database


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the fixture database."""
    return make_database(tmp_path_factory.mktemp("database") / "tunemark.duckdb")


@pytest.fixture(scope="session")
def built(database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that holds `docs` and `site`, built strictly."""
    out = tmp_path_factory.mktemp("built")
    build_site(database, out, ROOT / "mkdocs.yml", strict=True, progress=lambda _: None)
    return out


@pytest.fixture
def catalogue(database: Path) -> Catalogue:
    """Return the catalogue of the fixture database, open."""
    return Catalogue.read(Database(database))
