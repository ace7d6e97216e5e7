"""Plans for other machines, and the scripts, container files and notebooks that start a run on them: pinned, with commands that exist."""

import json
import os
import re
import shlex
import subprocess

import pytest
import yaml
from harness_making import FACTS, ROOT, tunemark

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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_container_file_starts_from_a_pinned_image_and_ends_as_the_runner(path):
    found = instructions(path)
    assert {name for name, _ in found} <= INSTRUCTIONS
    assert found[0][0] == "FROM"
    assert re.fullmatch(r"python:3\.1[12]-slim-bookworm", found[0][1])
    assert json.loads(dict(found)["ENTRYPOINT"]) == ["tunemark"]
    check(json.loads(dict(found)["CMD"]))
    assert f"docker build -f harness/containers/{path.name} " in path.read_text()
    commands = re.findall(rf"^#   docker run .*tunemark:{path.stem} (.+)$", path.read_text(), re.MULTILINE)
    assert commands
    for words in commands:
        check(shlex.split(words))


@pytest.mark.parametrize("path", [path for path in FILES if path.stem != "neuron"], ids=lambda path: path.stem)
def test_a_container_installs_what_make_setup_run_installs(path):
    makefile = (ROOT / "Makefile").read_text()
    run = " ".join(arguments for name, arguments in instructions(path) if name == "RUN")
    assert re.search(r"^BUILD := (.+)$", makefile, re.MULTILINE)[1] in run
    assert "--no-deps --require-hashes -r requirements-run.lock" in run
    torch = re.search(r"^TORCH \?= (.+)$", makefile, re.MULTILINE)[1]
    assert torch in path.read_text()


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
    lines = [line.strip() for cell in content["cells"] for line in cell["source"]]
    assert (line if PUBLISHED else line.replace("%", "!").replace("'", '"')) in lines
    commands = [line.removeprefix("!tunemark ") for line in lines if line.startswith("!tunemark ")]
    assert len(commands) >= 5
    for words in commands:
        check(shlex.split(words))


SCRIPTS = ROOT / "harness/scripts"


def test_the_plan_for_other_machines_is_shown_as_one_for_this_machine():
    many = ("--accelerator", "nvidia-a100-40gb-sxm", "--devices", 32)
    done = tunemark("plan", "lora-8b", *many, "--set", "nodes=2", "--json")
    device = json.loads(done.stdout)["plan"]["device"]
    assert (device["backend"], device["count"], device["nodes"], device["accelerator"]) == ("cuda", 32, 2, "nvidia-a100-40gb-sxm")


@pytest.mark.parametrize(
    ("asked", "advice"), [(("full-8b",), "weights and training states alone are larger: "), (("lora-8b", "--seq", 65_536), "lower --seq, ")]
)
def test_a_plan_begins_with_its_verdict_and_the_advice_that_helps(asked, advice):
    first, second, *_ = tunemark("plan", *asked, "--accelerator", "nvidia-l4").stdout.splitlines()
    assert first.startswith(f"{asked[0]}: is too large, and `tunemark run` refuses it without --set force=true; {advice}choose --method")
    assert second.endswith("GiB on each device, and each device has 22.1 GiB by the memory model.")


def test_the_batch_script_gives_each_value_whole_to_the_run_of_its_node(tmp_path):
    stand_ins = {
        "srun": 'while [[ $1 == -* ]]; do shift; done; exec "$@"',
        "scontrol": "printf 'node-a\\nnode-b\\n'",
        "tunemark": f'python3 -c \'import json, sys; json.dump(sys.argv[1:], open("{tmp_path}/said.json", "w"))\' "$@"',
    }
    for name, body in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_NODELIST": "node-[a-b]", "SLURM_NODEID": "1", "SLURM_NNODES": "2"}
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TUNEMARK": str(tmp_path / "tunemark"), **slurm}
    given = ["lora-8b", "--weights", "pretrained:/a folder/it's $HOME"]
    subprocess.run(["bash", SCRIPTS / "slurm.sh", *given], check=True, env=env)
    ends = shlex.split("--set nodes=2 --set node_rank=1 --set rendezvous=node-a:29500")
    assert json.loads((tmp_path / "said.json").read_text()) == ["run", *given, *ends]


def test_the_skypilot_task_is_yaml_with_scripts_that_bash_reads():
    task = yaml.safe_load((SCRIPTS / "skypilot.yaml").read_text())
    assert {"name", "workdir", "num_nodes", "resources", "envs", "setup", "run"} == set(task)
    for part in ("setup", "run"):
        assert subprocess.run(["bash", "-n"], input=task[part], text=True, check=False).returncode == 0
