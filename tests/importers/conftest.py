"""The command line over the importers, and where the real logs are."""

import os
import sys
from pathlib import Path

import pytest
from factories import CHECKOUT, Said, Tunemark

from tunemark import cli
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
    return FactBase(CHECKOUT / "data")


@pytest.fixture(scope="session")
def archives() -> list[Path]:
    """The archives of all MLPerf logs, scaling factors and power readings; they are not committed."""
    if not all(path.is_file() for path in ARCHIVES):
        pytest.skip("the MLPerf logs are not committed; name their archives in TUNEMARK_MLPERF_ARCHIVES, separated like PATH")
    return ARCHIVES


@pytest.fixture
def tunemark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tunemark:
    """The command line, through its front door, in this process."""

    def call(*arguments: object) -> Said:
        monkeypatch.setenv("TUNEMARK_ROOT", os.environ.get("TUNEMARK_ROOT", str(CHECKOUT)))
        monkeypatch.setattr(sys, "argv", ["tunemark", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        code = ended.value.code
        return Said(code if isinstance(code, int) else int(code is not None), out, err)

    return call
