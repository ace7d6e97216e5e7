"""The shape of the house: what may stand where, and what must never be imported or committed."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import structure
import yaml

ROOT = Path(__file__).parents[1]
ROOMS = ("schema", "harness", "collector", "site")
HEAVY = {"torch", "transformers", "peft", "accelerate", "datasets", "deepspeed", "optimum", "bitsandbytes"}


def sources(room):
    return sorted((ROOT / room / "tunemark").rglob("*.py"))


def top_level_imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("room", ["schema", "collector", "site"])
def test_only_the_harness_names_a_training_library(room):
    guilty = {str(path): names for path in sources(room) if (names := HEAVY & set(top_level_imports(path)))}
    assert not guilty


@pytest.mark.parametrize("budget", structure.BUDGETS, ids=lambda budget: budget.name)
def test_no_part_of_the_repository_outgrows_its_budget(budget):
    assert 0 < budget.lines(ROOT) <= budget.limit


def test_imports_form_no_circle_and_no_long_chain():
    assert structure.measure(ROOT)["longest import chain"] <= 13


def test_benchmarks_import_what_exists():
    imported = [
        (node.module, alias.name)
        for path in (ROOT / "benchmarks").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tunemark")
        for alias in node.names
    ]
    assert len(imported) > 100
    missing = [each for each in imported if not hasattr(importlib.import_module(each[0]), each[1])]
    assert not [".".join(each) for each in missing if not importlib.util.find_spec(".".join(each))]


def test_the_places_to_change_that_the_documentation_names_exist():
    page = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    section = page.split("### Where would you change ...?")[1].split("\n#")[0]
    rows = [row for row in section.splitlines() if row.startswith("| ")][1:]
    assert len(rows) == 17
    places = [[name for name in re.findall("`([^`]+)`", row) if "/" in name] for row in rows]
    assert all(len(names) >= 2 for names in places), "each row names a place and a test"
    assert not [name for names in places for name in names if not (ROOT / name).exists()]


def test_one_room_has_the_api_and_every_room_is_a_source_root():
    assert list(ROOT.glob("*/tunemark/__init__.py")) == [ROOT / "schema" / "tunemark" / "__init__.py"]
    import tunemark

    assert {Path(folder).parts[-2] for folder in tunemark.__path__} >= set(ROOMS)


def test_importing_tunemark_loads_no_library():
    code = "import sys, tunemark; print(sorted({'numpy', 'pydantic', 'torch', 'typer'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


WITHOUT_TORCH = (
    ["--help"],
    ["audit", "--verdict", "impossible"],
    ["estimate", "-m", "llama-3.1-8b", "--tokens", "10M", "-a", "L4"],
    ["recommend", "-m", "llama-3.1-8b", "--tokens", "10M"],
    ["prices", "nvidia-l4"],
    ["validate", "submissions"],
    ["collect", "--help"],
    ["query", "--help"],
    ["site", "build", "--help"],
    ["plan", "smoke-lora"],
)
RUN_EACH = """
import json, sys
import tunemark.cli as cli
for command in json.loads(sys.argv[1]):
    try:
        cli.app(command, standalone_mode=False)
    finally:
        print("\\nimported:", [*{"torch", "transformers", "mkdocs", "altair"} & set(sys.modules)], *command)
"""


def test_a_command_outside_training_and_the_site_imports_the_libraries_of_neither():
    """All run in one process, which has imported a library after the first that does."""
    command = [sys.executable, "-c", RUN_EACH, json.dumps(WITHOUT_TORCH)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    found = [line for line in done.stdout.splitlines() if line.startswith("imported:")]
    assert found == [f"imported: [] {' '.join(words)}" for words in WITHOUT_TORCH]


def test_the_lock_pins_hashes_and_holds_no_url_and_no_path():
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert not re.search(
        r"://|file:|^\s*-|@ |/(?:opt|home|root|work|usr)/", re.sub(r"^\s+--hash=.*$", "", lock, flags=re.MULTILINE), re.MULTILINE
    )
    packages = [line for line in lock.splitlines() if "==" in line]
    assert len(packages) > 80
    assert lock.count("--hash=sha256:") >= len(packages)
    # What only torch needs comes with torch: its build decides.
    assert not [line for line in packages if line.startswith(("torch==", "nvidia-cu", "nvidia-nccl", "triton"))]


def test_every_citation_of_a_definition_names_a_heading_of_the_definitions_page():
    page = (ROOT / "site/tunemark/site/pages/definitions.md.j2").read_text(encoding="utf-8")
    headings = {re.sub(r"[^a-z0-9]+", "-", heading.lower()) for heading in re.findall(r"^## (.+)$", page, re.MULTILINE)}
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*") if path.suffix in {".py", ".j2", ".sql"}]
    cited = {
        (path.name, anchor) for path in files for anchor in re.findall(r"definitions#([a-z][a-z-]*)", path.read_text(encoding="utf-8"))
    }
    assert cited
    assert not {(name, anchor) for name, anchor in cited if anchor not in headings}
    assert not [path for path in files if "definitions.md" in path.read_text(encoding="utf-8").replace("definitions.md.j2", "")]


MODULE_LINES, VENDOR_LINES, LONGER_VENDORS = 600, 200, {"cuda.py": 237, "neuron.py": 205}
"""Most lines of a module and of a vendor's file, and the lengths reached by two: one has five generations of GPUs, the other no events to time steps."""


def test_modules_stay_short_enough_to_read_top_to_bottom():
    def most(path):
        of_vendor = path.parent.name == "vendors" and path.name not in {"protocol.py", "vendor_tools.py"}
        return LONGER_VENDORS.get(path.name, VENDOR_LINES) if of_vendor else MODULE_LINES

    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for room in ROOMS for path in sources(room)}
    assert not {str(path.relative_to(ROOT)): count for path, count in lines.items() if count > most(path)}


def test_licences_are_stated_for_code_and_for_data_and_all_files_name_one_version():
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert "CC-BY-4.0" in (ROOT / "LICENSE-DATA").read_text()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["license"] == "Apache-2.0"
    subprocess.run([ROOT / ".ci/release", "version", f"v{citation['version']}"], check=True)
