"""What all tests share: no example fails for the time that it took, and none for a variable that an earlier one left."""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).parents[1]
settings.register_profile("any machine", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("any machine")
# Hundreds of processes import the same modules, and pytest rewrites the same assertions: compiled files are kept, even where the caller keeps none.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.fixture(autouse=True)
def environment_restored() -> Iterator[None]:
    """Undo what a test did to the environment: libraries set variables when they are imported, which is in any test."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="session", autouse=True)
def _what_stays_is_read_once() -> Iterator[None]:
    """Commands by the hundred run in this process, and each asks git for the state of the source, reads all cards and hashes all results.

    A card of the same content is the same object, which nobody can change.
    """
    from tunemark.collector.predict import estimate
    from tunemark.harness.run import record
    from tunemark.schema.facts import fact_base

    read, hashed, cards = fact_base.read_facts, estimate.inputs_sha256, {}
    hashed_once = cache(lambda: hashed(ROOT))

    def read_once(path, kind):
        place = (path.read_bytes() if path.is_file() else path, kind)
        if place not in cards:
            cards[place] = read(path, kind)
        return cards[place]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(record, "_git", cache(record._git))
        patched.setattr(fact_base, "read_facts", read_once)
        patched.setattr(estimate, "inputs_sha256", lambda root: hashed_once() if root == ROOT else hashed(root))
        yield


@pytest.fixture
def tunemark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The command line, through its front door, in this process."""
    from factories import Said

    from tunemark import cli

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["tunemark", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        code = ended.value.code
        return Said(code if isinstance(code, int) else int(code is not None), out, err)

    return call


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Return a function that fills a folder of this name on the first call of any worker, and returns it."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def once(name: str, fill: Callable[[Path], object]) -> Path:
        folder, partial = root / name, root / f"{name}.partial"
        with FileLock(root / f"{name}.lock"):
            if not folder.exists():
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                fill(partial)
                partial.rename(folder)
        return folder

    return once


@pytest.fixture(scope="session")
def few_documents(make_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """Return a checkout with a few documents and one round of MLPerf: all of them take seconds to audit."""
    from factories import link_facts

    def fill(checkout: Path) -> None:
        link_facts(checkout / "data")
        for source in (*(f"published/{number}" for number in ("000", "001", "002", "003", "004", "017", "021")), "converted/mlperf/v4.0"):
            shutil.copytree(ROOT / "data" / source, checkout / "data" / source)

    return make_once("few_documents", fill)


@pytest.fixture
def beside_few_documents(monkeypatch: pytest.MonkeyPatch, few_documents: Path) -> None:
    """Commands compare with the results of a few documents."""
    monkeypatch.setenv("TUNEMARK_ROOT", str(few_documents))


@pytest.fixture(scope="session")
def whole_database(make_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """Return the path of the database of the committed data."""
    from tunemark.collector.store.loading import collect

    return make_once("whole_database", lambda folder: collect(ROOT, folder / "tunemark.duckdb")) / "tunemark.duckdb"


@pytest.fixture(scope="session")
def whole_site(whole_database: Path, make_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """Return the folder that holds `docs` and `site` of the committed data, built strictly."""
    from tunemark.site.build import build_site

    return make_once("whole_site", lambda out: build_site(whole_database, out, ROOT / "mkdocs.yml", strict=True, progress=lambda _: None))


def pytest_xdist_auto_num_workers() -> int:
    """Return one process more than there are cores: some always wait for a browser, a time limit or the database of another one."""
    return 1 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files with slow tests first, so that no process is left with one at the end, then those that wait for a browser between others."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    ranks: dict[Path, int] = {}
    files: Counter[bool] = Counter()
    for item in items:
        if item.path not in ranks:
            waits = item.path.parent.name == "site"
            ranks[item.path] = files[waits]
            files[waits] += 1
    items.sort(key=lambda item: (item.path not in slow, ranks[item.path]))
