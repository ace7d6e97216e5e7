"""Scripts for other machines: accepted by SkyPilot's own schema and by bash, with each value as it was given."""

import json
import os
import re
import shlex
import subprocess
import tomllib

import jsonschema
import pytest
import yaml
from harness_making import ROOT, tunemark

from tunemark.harness.commands.emit import NAMES_FILE, NEURON_SETUP, PLACEMENT_OPTIONS, Format, find_target, run_arguments, script
from tunemark.harness.plan.options import Options
from tunemark.schema.errors import Exit, TunemarkError

SCHEMA = json.loads((ROOT / "tests/harness/data/skypilot_task_schema.json").read_text())


def emit(facts, kind, *, workload="smoke-lora", accelerator=None, instance=None, **chosen):
    return script(Format(kind), workload, Options(**chosen), facts, accelerator, instance)


def run_slurm(text, folder, **environment):
    """Run a batch script as SLURM would on its first node, with stand-ins that say what they were given."""
    said = folder / "said.json"
    stand_ins = {
        "srun": 'while [[ $1 == -* ]]; do shift; done; exec "$@"',
        "scontrol": "printf 'node-a\\nnode-b\\n'",
        "tunemark": f'python3 -c \'import json, sys; json.dump(sys.argv[1:], open("{said}", "w"))\' "$@"; echo "$HF_HUB_OFFLINE" > {folder}/offline',
    }
    for name, body in stand_ins.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    (folder / "job.sh").write_text(text)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "TUNEMARK": str(folder / "tunemark"), "SLURM_SUBMIT_DIR": str(folder)}
    subprocess.run(["bash", str(folder / "job.sh")], check=True, env={**env, **environment})
    return json.loads(said.read_text())


def sky_task(text):
    """Return the task of a YAML text, after SkyPilot's own schemas have accepted it."""
    task = yaml.safe_load(text)
    jsonschema.validate(task, SCHEMA["task"])
    jsonschema.validate(task["resources"], SCHEMA["resources"])
    infra = task["resources"].get("infra", "aws")
    assert re.match(SCHEMA["resources"]["properties"]["infra"]["pattern"], infra)
    return task


def test_each_option_that_was_given_is_on_the_command_line_again():
    chosen = Options(overrides=("lora.rank=4", "compute=bf16"), probe=False, max_steps=9, until_ci=0.02, launcher="accelerate")
    given = run_arguments("smoke-lora", chosen)
    assert given == shlex.split(
        "run smoke-lora --set lora.rank=4 --set compute=bf16 --steps 9 --until-ci 0.02 --no-probe --launcher accelerate"
    )
    assert run_arguments("smoke-lora", Options()) == ["run", "smoke-lora"]
    assert set(Options.__dataclass_fields__) > PLACEMENT_OPTIONS


def test_a_slurm_script_gives_each_value_whole_to_the_run(facts, tmp_path):
    text = emit(facts, "slurm", instance="p4d.24xlarge", nodes=2, weights=f"pretrained:{tmp_path}", overrides=("data.name=random-tokens",))
    given = run_slurm(text, tmp_path, SLURM_JOB_NODELIST="node-[a-b]", SLURM_NODEID="1")
    assert given[:2] == ["run", "smoke-lora"]
    assert given[given.index("--weights") + 1] == f"pretrained:{tmp_path}"
    ends = shlex.split("--devices 16 --strategy ddp --nodes 2 --node-rank 1 --rendezvous node-a:29500")
    assert given[-len(ends) :] == ends


def test_no_value_is_read_by_a_shell(facts, tmp_path):
    awkward = tmp_path / 'it\'s "odd" $HOME `id` \\ ü'
    awkward.mkdir()
    text = emit(facts, "slurm", accelerator="nvidia-l4", weights=f"pretrained:{awkward}")
    given = run_slurm(text, tmp_path)
    assert f"pretrained:{awkward}" in given
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_a_slurm_script_asks_for_nodes_devices_and_time(facts):
    text = emit(facts, "slurm", instance="p4d.24xlarge", nodes=2, timeout_s=5400.0)
    for line in ("--nodes=2", "--ntasks-per-node=1", "--gres=gpu:8", "--time=01:45:00", "--job-name=tunemark-smoke-lora"):
        assert f"#SBATCH {line}\n" in text


def test_without_a_limit_a_script_asks_for_a_day_and_says_how_to_ask_for_another(facts):
    text = emit(facts, "slurm", accelerator="nvidia-l4", max_steps=1_000_000)
    assert "#SBATCH --time=24:00:00\n" in text
    assert "sbatch --time=HH:MM:SS" in text
    assert "# Time: --timeout plus a margin" in emit(facts, "slurm", accelerator="nvidia-l4", timeout_s=5400.0)


def test_one_machine_needs_no_rendezvous(facts):
    for kind in Format:
        text = emit(facts, kind, accelerator="nvidia-l4")
        assert "rendezvous" not in text
        assert "HEAD_NODE" not in text


@pytest.mark.parametrize("instance", ["p4d.24xlarge", "g5.xlarge", "a3-highgpu-8g", "Standard_ND96isr_H100_v5"])
def test_a_skypilot_task_of_an_instance_passes_its_schema(facts, instance):
    task = sky_task(emit(facts, "skypilot", instance=instance, nodes=2))
    assert task["resources"]["instance_type"] == instance
    assert task["num_nodes"] == 2
    assert '--node-rank "$SKYPILOT_NODE_RANK"' in task["run"]
    assert "SKYPILOT_NODE_IPS" in task["run"]
    assert subprocess.run(["bash", "-n"], input=task["setup"] + task["run"], text=True, check=False).returncode == 0


def test_a_skypilot_task_of_an_accelerator_uses_skypilots_name_of_it(facts):
    task = sky_task(emit(facts, "skypilot", accelerator="A100 80GB", devices=8, strategy="fsdp2"))
    assert task["resources"] == {"accelerators": "A100-80GB:8"}
    assert "--strategy fsdp2" in task["run"]


def test_the_schema_refuses_what_skypilot_would(facts):
    task = sky_task(emit(facts, "skypilot", accelerator="nvidia-l4"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**task, "nodes": 2}, SCHEMA["task"])


def test_setup_installs_what_the_plan_needs(facts):
    def setup(**more):
        return sky_task(emit(facts, "skypilot", accelerator="nvidia-l4", **more))["setup"]

    assert "'.[nvidia]'" in setup()
    assert "distributed" in setup(devices=2, strategy="zero2")
    assert "qlora" in setup(overrides=("optimizer.name=adamw_8bit",))


def test_each_name_for_skypilot_is_one_that_its_catalogue_is_read_by(facts):
    names = tomllib.loads(NAMES_FILE.read_text())
    read = tomllib.loads((ROOT / "collector/tunemark/collector/importers/skypilot.toml").read_text())["names"]
    for card, name in names.items():
        assert card in facts.accelerators
        assert card in read[name]


def test_this_machine_need_not_have_the_devices(facts):
    assert find_target(facts, "nvidia-h100-80gb-sxm", None, 64, 8).per_node == 8
    assert "--devices 64" in emit(facts, "slurm", accelerator="nvidia-h100-80gb-sxm", devices=64, nodes=8)


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({}, "give --accelerator or --instance"),
        ({"instance": "g5.13xlarge"}, "did you mean 'g5.12xlarge'"),
        ({"accelerator": "nvidia-l44"}, "did you mean"),
        ({"instance": "p4d.24xlarge", "accelerator": "nvidia-l4"}, "give only one of the two"),
        ({"instance": "p4d.24xlarge", "devices": 16}, "give 8 or less"),
        ({"accelerator": "nvidia-l4", "devices": 3, "nodes": 2}, "multiple of 2"),
        ({"accelerator": "google-tpu-v5e"}, "not of Google"),
        ({"accelerator": "nvidia-t4", "overrides": ["compute=bf16"]}, "bf16 on a Volta or Turing GPU"),
        ({"accelerator": "nvidia-l4", "strategy": "ddp"}, "ddp needs at least two devices"),
    ],
)
def test_what_cannot_be_planned_there_is_refused(facts, chosen, said):
    with pytest.raises(TunemarkError, match=r".+: .+") as caught:
        emit(facts, "slurm", **chosen)
    assert said in str(caught.value)


@pytest.mark.parametrize("chosen", [{"weights": "pretrained:."}, {"data": f"file:{ROOT}/tests/harness/data/emotions"}])
def test_what_only_this_machine_has_is_refused_for_the_cloud(facts, chosen):
    with pytest.raises(TunemarkError, match="only on this machine"):
        emit(facts, "skypilot", accelerator="nvidia-l4", **chosen)


def test_the_command_prints_the_script_and_nothing_else():
    done = tunemark("plan", "smoke-lora", "--emit", "skypilot", "--accelerator", "nvidia-l4")
    assert (done.returncode, done.stderr) == (0, "")
    assert sky_task(done.stdout)["name"] == "tunemark-smoke-lora"


def test_an_accelerator_without_a_script_is_refused():
    done = tunemark("plan", "lora-8b", "--accelerator", "nvidia-l4")
    assert done.returncode == Exit.USAGE
    assert "add --emit" in done.stderr


TRAINIUM = [
    {"workload": "bert-emotion", "instance": "trn1.2xlarge", "devices": 1},
    {"workload": "smoke-lora", "instance": "trn1.2xlarge", "devices": 2, "strategy": "zero1"},
    {
        "workload": "qwen3-8b-lora-simple-recipes",
        "instance": "trn1.32xlarge",
        "strategy": "zero1",
        "offload": "none",
        "overrides": ["devices.tensor_parallel=8", "data.document_borders=false"],
    },
]


@pytest.mark.parametrize("chosen", TRAINIUM)
def test_a_neuron_task_starts_from_its_image_and_installs_the_stack_that_optimum_neuron_pins(facts, chosen):
    task = sky_task(emit(facts, "skypilot", **chosen))
    assert task["resources"]["image_id"] == "skypilot:neuron-ubuntu-2204"
    assert "'optimum-neuron[neuronx,training]==0.4.5'" in task["setup"]
    assert "pip.repos.neuron.amazonaws.com" in task["setup"]
    assert "not yet tested" in task["setup"]
    assert "make setup" not in task["setup"]
    assert "deepspeed" not in task["setup"]
    assert subprocess.run(["bash", "-n"], input=task["setup"] + task["run"], text=True, check=False).returncode == 0


@pytest.mark.parametrize("chosen", TRAINIUM)
def test_a_neuron_batch_script_says_which_environment_it_needs(facts, tmp_path, chosen):
    text = emit(facts, "slurm", **chosen)
    assert "On a Neuron machine" in text
    assert "--gres" not in text
    given = run_slurm(text, tmp_path)
    assert given[:2] == ["run", chosen["workload"]]


def test_what_neuron_cannot_do_is_refused_in_scripts_for_it_too(facts):
    with pytest.raises(TunemarkError, match="use --strategy ddp"):
        emit(facts, "slurm", workload="bert-emotion", instance="trn1.2xlarge", devices=2, strategy="zero1")
    with pytest.raises(TunemarkError, match="optimum-neuron trains llama"):
        emit(facts, "skypilot", workload="gpt2-small-full", instance="trn1.2xlarge", devices=1)


def test_the_stack_that_a_neuron_task_installs_has_all_that_the_harness_imports():
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    of_the_front = [one for one in asked if one.startswith(("pydantic", "rich", "typer", "psutil", "datasets"))]
    assert all(f"'{one}'" in NEURON_SETUP for one in of_the_front)


def test_a_card_in_bf16_runs_in_fp16_on_a_t4_and_the_script_says_so(facts, capsys):
    text = emit(facts, "slurm", workload="bert-emotion", accelerator="nvidia-t4")
    (note,) = [line for line in text.splitlines() if line.startswith("# Note: ")]
    assert "compute is fp16 instead of the card's bf16: the fastest format of a Volta or Turing GPU" in note
    assert note.removeprefix("# Note: ") in capsys.readouterr().err
    assert text.startswith("#!/bin/bash\n")


def test_bf16_that_is_asked_for_is_refused_on_a_t4(facts):
    with pytest.raises(TunemarkError, match="bf16 on a Volta or Turing GPU"):
        emit(facts, "slurm", workload="bert-emotion", accelerator="nvidia-t4", overrides=("compute=bf16",))


def test_the_trainium_run_of_document_000_is_one_command(facts):
    job = emit(facts, "slurm", workload="qwen3-8b-lora-simple-recipes", instance="trn1.32xlarge")
    assert "--devices 32" in job
    assert "--strategy zero1" in job
    assert "# Note: " not in job


@pytest.mark.parametrize("kind", ["slurm", "skypilot"])
def test_a_step_that_does_not_fit_is_noted_in_the_script(facts, kind, capsys):
    text = emit(facts, kind, workload="full-8b", accelerator="nvidia-l4")
    assert "# Note: by the memory model, a step needs about 7" in text
    assert "each device has 24.0 GiB" in capsys.readouterr().err
    assert "# Note: " not in emit(facts, kind, workload="lora-1b", accelerator="nvidia-h100-80gb-sxm")


def test_offloaded_states_are_compared_with_the_memory_of_the_instance_and_not_of_this_machine(facts):
    assert find_target(facts, None, "p4d.24xlarge", None, 1).machine().memory_bytes == 1152 * 2**30
    assert find_target(facts, "nvidia-l4", None, 1, 1).machine().memory_bytes is None


def test_a_core_has_its_part_of_the_memory_of_its_chip(facts):
    target = find_target(facts, None, "trn1.2xlarge", None, 1)
    assert [device.memory_bytes for device in target.machine().devices] == [16 * 2**30] * 2


def test_more_accelerators_than_any_instance_has_are_noted_with_the_number_of_nodes(facts, capsys):
    script(Format.SLURM, "lora-8b", Options(devices=16), facts, "nvidia-h100-80gb-sxm", None)
    assert "no instance in data/prices has 16 x H100 SXM5 80GB (at most 8); use --nodes 2 to split them" in capsys.readouterr().err
    script(Format.SLURM, "lora-8b", Options(devices=16, nodes=2), facts, "nvidia-h100-80gb-sxm", None)
    assert "no instance" not in capsys.readouterr().err


def test_devices_that_need_another_build_of_torch_are_noted(facts):
    text = script(Format.SKYPILOT, "lora-8b", Options(devices=8), facts, "amd-mi300x", None)
    assert "# Note: `make setup-run` installs torch from the default index, which has no ROCm build" in text


def test_a_slurm_task_has_all_cpus_of_its_node(facts, tmp_path):
    text = emit(facts, "slurm", instance="p4d.24xlarge", nodes=2)
    assert 'srun --cpus-per-task="${SLURM_CPUS_ON_NODE:-1}"' in text
    assert run_slurm(text, tmp_path, SLURM_JOB_NODELIST="node-[a-b]", SLURM_NODEID="0", SLURM_CPUS_ON_NODE="96")[0] == "run"


def test_a_slurm_script_passes_the_setting_for_nodes_without_internet_access(facts, tmp_path):
    text = emit(facts, "slurm", accelerator="nvidia-l4")
    assert "`HF_HUB_OFFLINE=1 sbatch FILE`" in text
    run_slurm(text, tmp_path, HF_HUB_OFFLINE="1")
    assert (tmp_path / "offline").read_text() == "1\n"
