"""Plans for other machines, and the templates that start a run on them."""

import json
import os
import shlex
import subprocess

import pytest
import yaml
from harness_making import ROOT, tunemark

SCRIPTS = ROOT / "harness/scripts"


def test_the_plan_for_other_machines_is_shown_as_one_for_this_machine_with_a_note_if_none_has_so_many():
    many = ("--accelerator", "nvidia-a100-40gb-sxm", "--devices", 32)
    done = tunemark("plan", "lora-8b", *many, "--set", "nodes=2", "--json")
    device = json.loads(done.stdout)["plan"]["device"]
    assert (device["backend"], device["count"], device["nodes"], device["accelerator"]) == ("cuda", 32, 2, "nvidia-a100-40gb-sxm")
    assert "no instance" not in done.stderr
    assert "use --set nodes=2 to split them" in tunemark("plan", "lora-8b", *many).stderr


@pytest.mark.parametrize(
    ("asked", "advice"), [(("full-8b",), "weights and training states alone are larger: "), (("lora-8b", "--seq", 65_536), "lower --seq, ")]
)
def test_a_plan_begins_with_its_verdict_and_the_advice_that_helps(asked, advice):
    first, second, *_ = tunemark("plan", *asked, "--accelerator", "nvidia-l4").stdout.splitlines()
    assert first.startswith(f"{asked[0]}: is too large, and `tunemark run` refuses it without --set force=true; {advice}choose --method")
    assert second.endswith("GiB on each device, and each device has 22.5 GiB by the memory model.")


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
