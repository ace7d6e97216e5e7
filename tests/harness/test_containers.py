"""Container files and the notebook: built from what the project has, pinned, and with commands that exist."""

import json
import re
import shlex

import pytest
from harness_making import FACTS, ROOT

from tunemark.cli import imported_command
from tunemark.schema import PUBLISHED, as_installed

FILES = sorted((ROOT / "harness" / "containers").glob("*.Containerfile"))
NOTEBOOKS = sorted((ROOT / "harness" / "notebooks").glob("*.ipynb"))
INSTRUCTIONS = {"FROM", "RUN", "COPY", "ADD", "ENV", "ARG", "WORKDIR", "ENTRYPOINT", "CMD"}


def instructions(path):
    """Return the instructions of a container file: name and arguments, with continued lines joined."""
    text = re.sub(r"\\\n", " ", "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#")))
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def check(words):
    """Raise an error if the command line does not know the arguments of `tunemark`."""
    name, *rest = words
    command = imported_command(name)
    context = command.make_context(name, rest)
    workload = context.params.get("workload")
    assert workload is None or FACTS.workload(workload)


def commands_in_comments(path):
    lines = [line for line in path.read_text().splitlines() if line.startswith("#   docker run")]
    return [shlex.split(line.partition(f"tunemark:{path.stem} ")[2]) for line in lines]


def commands_in_notebook(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    lines = [line.strip() for cell in cells for line in cell["source"]]
    return [shlex.split(line.removeprefix("!tunemark ")) for line in lines if line.startswith("!tunemark ")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_container_file_starts_from_a_pinned_image_and_ends_as_the_runner(path):
    found = instructions(path)
    assert {name for name, _ in found} <= INSTRUCTIONS
    assert found[0][0] == "FROM"
    assert re.fullmatch(r"python:3\.1[12]-slim-bookworm", found[0][1])
    assert json.loads(dict(found)["ENTRYPOINT"]) == ["tunemark"]
    check(json.loads(dict(found)["CMD"]))
    assert f"docker build -f harness/containers/{path.name} " in path.read_text()


@pytest.mark.parametrize("path", [path for path in FILES if path.stem != "neuron"], ids=lambda path: path.stem)
def test_a_container_installs_what_make_setup_run_installs(path):
    makefile = (ROOT / "Makefile").read_text()
    run = " ".join(arguments for name, arguments in instructions(path) if name == "RUN")
    assert re.search(r"^BUILD := (.+)$", makefile, re.MULTILINE)[1] in run
    assert "--no-deps --require-hashes -r requirements-run.lock" in run
    torch = re.search(r"^TORCH \?= (.+)$", makefile, re.MULTILINE)[1]
    assert torch in path.read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_commands_beside_a_container_file_exist(path):
    found = commands_in_comments(path)
    assert found
    for words in found:
        check(words)


def test_the_readme_installs_as_it_works_today():
    """Before Tunemark is on the index, no line asks the index for it."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / "README.md").read_text().splitlines()]
    published = ("pip install tunemark", "pip install 'tunemark[run]'")
    assert {as_installed(line) for line in published} <= set(lines)
    assert PUBLISHED or not [line for line in lines if re.match(r"(\.venv/bin/)?pip install .*\btunemark\b", line)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_well_formed_without_outputs_and_its_commands_exist(path):
    content = json.loads(path.read_text())
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    assert all(not cell["outputs"] for cell in content["cells"] if cell["cell_type"] == "code")
    line = as_installed("%pip install --quiet 'tunemark[nvidia,qlora]'", "$(ls tunemark-*.whl)")
    assert (line if PUBLISHED else line.replace("%", "!").replace("'", '"')) in [
        line for cell in content["cells"] for line in cell["source"]
    ]
    found = commands_in_notebook(path)
    assert len(found) >= 5
    for words in found:
        check(words)
