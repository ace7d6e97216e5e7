"""The command line over the importers, and where the real logs are."""

import os
from pathlib import Path

import pytest
from factories import CHECKOUT
from factories import FACTS as KNOWN

from tunemark.schema.facts.fact_base import FactBase

DATA = Path(__file__).parent / "data"
FACTS = CHECKOUT.parent / "shared" / "facts"
ARCHIVES = [
    Path(name)
    for name in os.environ.get(
        "TUNEMARK_MLPERF_ARCHIVES",
        os.pathsep.join(str(FACTS / f"mlperf-training-{part}.tar.xz") for part in ("llama2-70b-lora", "supplement")),
    ).split(os.pathsep)
]


@pytest.fixture
def data() -> Path:
    """The folder of fixtures."""
    return DATA


@pytest.fixture
def project() -> Path:
    """The checkout."""
    return CHECKOUT


@pytest.fixture(scope="session")
def facts() -> FactBase:
    """The facts of the project."""
    return KNOWN


@pytest.fixture(scope="session")
def archives() -> list[Path]:
    """The archives of all MLPerf logs, scaling factors and power readings; they are not committed."""
    if not all(path.is_file() for path in ARCHIVES):
        pytest.skip("the MLPerf logs are not committed; name their archives in TUNEMARK_MLPERF_ARCHIVES, separated like PATH")
    return ARCHIVES
