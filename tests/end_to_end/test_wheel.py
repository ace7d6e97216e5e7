"""The distributions: built, installed into a new environment, and used in an empty folder.

The new environment holds only the wheel. Its dependencies, among them torch, are those of the environment that runs the tests:
a `.pth` file adds that folder to the path, which does not read the `.pth` file of the editable installation in it.
"""

import html
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tunemark.collector.commands.database import run_query
from tunemark.schema.option_rates import Evidence

ROOT = Path(__file__).parents[2]
EMOTIONS = ROOT / "tests/harness/data/emotions"
MOST_BYTES = 3_000_000
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution as an installer would."""
    folder = tmp_path_factory.mktemp("distributions")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run([*build, "-t", "sdist"], check=True, capture_output=True, cwd=ROOT)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    source = next(path for path in folder.iterdir() if path.is_dir())
    subprocess.run([*build, "-t", "wheel"], check=True, capture_output=True, cwd=source)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    find = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(find, check=True, capture_output=True, text=True).stdout.strip())
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    return folder


@pytest.fixture
def call(environment: Path, tmp_path: Path):
    """Run a program of the environment in an empty folder."""
    clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "TUNEMARK_ROOT"}}
    clean |= {"GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org", "OMP_NUM_THREADS": "1"}

    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(environment / "bin" / program), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=clean)

    return run


def test_the_wheel_has_the_facts_and_stays_small(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    facts = [path for folder in ("accelerators", "models", "workloads") for path in (ROOT / "data" / folder).rglob("*.toml")]
    assert {f"tunemark/schema/{path.relative_to(ROOT).as_posix()}" for path in facts} <= set(names)
    assert "tunemark/py.typed" in names
    assert not [name for name in names if "/tables/" in name or name.startswith("submissions") or name.endswith(".pyc")]
    assert wheel.stat().st_size < MOST_BYTES


def test_the_wheel_knows_the_commit_that_it_was_built_from(wheel: Path) -> None:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    with zipfile.ZipFile(wheel) as archive:
        assert json.loads(archive.read("tunemark/harness/built_from.json"))["commit"] == commit


def test_the_wheel_answers_with_the_evidence_of_the_data(call, wheel: Path, whole_database: Path) -> None:
    """`recommend` needs no database: the wheel has the rows that `collect` stores."""
    with zipfile.ZipFile(wheel) as archive:
        shipped = Evidence.of_tables(json.loads(archive.read("tunemark/schema/data/evidence.json")))
    stored = Evidence.of_database(lambda query: run_query(query, whole_database).records())
    known = tuple(replace(row, trust="measured") if row.trust == "reproduced" else row for row in stored.results)
    assert shipped == replace(stored, results=known)
    assert json.loads(call("tunemark", "recommend", "-m", "llama-3.1-8b", "--tokens", "10M", "--json").stdout)["ranked"]


def test_a_result_is_measured_checked_and_shown_for_submission_in_an_empty_folder(call, environment: Path, tmp_path: Path) -> None:
    packages = sorted(path for path in environment.rglob("*.json") if "tunemark" in path.parts)
    assert str(environment) in call("python", "-c", "import tunemark.schema; print(tunemark.schema.__file__)").stdout
    doctor = call("tunemark", "doctor", "--json")
    assert doctor.returncode == 0, doctor.stderr
    assert "smoke-lora" in doctor.stdout
    run = call("tunemark", "run", "smoke-lora", "--steps", "12", "--json")
    assert run.returncode == 0, run.stderr
    file = Path(json.loads(run.stdout)["file"])
    assert json.loads(file.read_bytes())["harness"]["commit"] is not None
    assert file.is_relative_to(tmp_path / "submissions" / "smoke-lora")
    checked = call("tunemark", "validate", str(file))
    assert (checked.returncode, checked.stdout) == (0, "1 record, 0 invalid\n"), checked.stderr
    shown = call("tunemark", "submit", str(file), "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(file.read_bytes())["environment"]["os"] in shown.stdout
    # Nothing was written next to the package.
    assert packages == sorted(path for path in environment.rglob("*.json") if "tunemark" in path.parts)


NOT_HERE = {
    "a sentence names it without its arguments": r"(tunemark estimate|recommend|tunemark run|owned|sweep \S+|--stack \S+|--optimizer \S+)$|WORKLOAD|FILE",
    "it repeats runs for minutes or hours": r"frontier|tune |ab ",
    "its files, account or tracker are the reader's": r"import |--to |--report-to|pretrained:",
    "test_whole_way runs it": r"site |collect|query",
    "it changes the shell": r"--install-completion",
    "it needs a Neuron device": r"tensor_parallel",
    "the harness refuses rows that are longer than the positions of the model, which its source states": r"gpt2-\w+-full --set data",
}
"""Commands of README and pages that are not run, by the reason. Those that train on an accelerator are planned for the one with the most memory."""


def files_of_a_reader(folder: Path) -> None:
    """Write the files that the README names: a model's configuration, options of a run, and a workload card."""
    (folder / "MODEL").mkdir()
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
    config = {"model_type": "llama", "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": False} | sizes
    (folder / "MODEL/config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "mine.yml").write_text("workload: smoke-lora\nseq: 128\n", encoding="utf-8")
    card = (ROOT / "data/workloads/smoke-lora.toml").read_text(encoding="utf-8")
    (folder / "card.toml").write_text(card.replace('key = "smoke-lora"', 'key = "card"'), encoding="utf-8")


def documented_commands(site: Path) -> list[str]:
    """Return the commands of the README and of all pages that an empty environment can run, one of those that differ only in numbers."""
    pages = (page.read_text(encoding="utf-8") for page in sorted(site.rglob("*.html")))
    code = (
        html.unescape(re.sub(r"<[^>]*>", "", text)) for page in pages for text in re.findall(r"<code[^>]*>(.*?)</code>", page, re.DOTALL)
    )
    lines = "\n".join([(ROOT / "README.md").read_text(encoding="utf-8"), *code]).replace("\\\n", " ").splitlines()
    found = (re.sub(r"\s+#.*", "", line).removeprefix("$ ").removeprefix(".venv/bin/") for line in lines)
    here = [line for line in found if re.match("tunemark [a-z]", line) and not re.search("|".join(NOT_HERE.values()), line)]
    planned = (re.sub(r"tunemark run (?!smoke-|mine|\./)(.*)", r"tunemark plan \1 --accelerator nvidia-b300", line) for line in here)
    kinds: dict[str, str] = {}
    for line in planned:
        kinds.setdefault(re.sub(r"[\w.-]*\d[\w.-]*", "0", line), line)
    return list(kinds.values())


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_every_documented_command_runs_and_its_results_are_valid_and_without_a_finding(call, tmp_path: Path, whole_site: Path) -> None:
    """Runs are shortened to 32 steps, of which 20 and more are steady. The files are those of the reader: texts of six emotions, the first submission."""
    commands, failed = documented_commands(whole_site / "site"), list[str]()
    assert len(commands) > 80
    files_of_a_reader(tmp_path)
    for line in commands:
        first = next(iter(sorted((tmp_path / "submissions").glob("smoke-lora/*.json"))), Path("none"))
        words = shlex.split(line.replace("FOLDER", str(EMOTIONS)).replace("SUBMISSION", str(first)).replace(" data/", f" {ROOT}/data/"))
        more = ["--steps", "32"] if words[1] in {"run", "sweep"} else []
        done = call(*words, *more)
        # A short result has no new facts to send, which `submit` says with the code of a usage error.
        if done.returncode and not (words[1] == "submit" and "no new result" in done.stderr):
            failed.append(f"{line}\n{done.stdout}\n{done.stderr}")
    assert not failed, "\n".join(failed)
    checked = call("tunemark", "validate", "submissions")
    assert checked.returncode == 0, checked.stderr
    files = sorted(map(str, (tmp_path / "submissions").rglob("*.json")))
    assert "Findings: 0 " in call("tunemark", "audit", *files).stderr
