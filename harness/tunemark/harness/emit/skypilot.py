"""A task for SkyPilot: `sky launch` it from the root of a checkout, which is copied to the machines."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tunemark.harness.emit.job import PORT, Job
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.vocabulary import Backend

NAMES_FILE = Path(__file__).with_name("skypilot.toml")
LOCAL = ("file:", "pretrained:/", "pretrained:.", "pretrained:~")
"""Beginnings of values that name something on the machine that plans."""
PROGRAM = ".venv/bin/tunemark"
HEAD = """\
# {workload} on {where}, from a checkout of Tunemark:
#   sky launch -c tunemark -i 10 FILE                             # stops the machines ten minutes after the run
#   rsync -a tunemark:sky_workdir/submissions/ submissions/       # while they are up: brings the submission here
#   sky down tunemark                                             # a stopped machine's disk still costs
"""
NEURON_IMAGE = "skypilot:neuron-ubuntu-2204"
"""SkyPilot's name of AWS' Deep Learning AMI Neuron (Ubuntu 22.04), its default for these devices: drivers, runtime and tools."""
NEURON_SETUP = """\
# Drivers, runtime and tools are the image's. Its environments have Python 3.10 and Tunemark needs 3.11, so compiler and torch
# come from AWS' index, in the versions that optimum-neuron pins. Written from their documents, not yet tried on such a machine.
python3 -m pip install --quiet uv
python3 -m uv venv --quiet --python 3.11 .venv
python3 -m uv pip install --quiet --python .venv/bin/python --extra-index-url https://pip.repos.neuron.amazonaws.com \\
  'optimum-neuron[neuronx,training]==0.4.5' 'datasets>=4.0' 'psutil>=7' 'pydantic>=2.11' 'rich>=14' 'typer>=0.16'
# Without dependencies: the compiler pins an older numpy than Tunemark asks for elsewhere.
python3 -m uv pip install --quiet --python .venv/bin/python --no-deps --editable .
"""


def skypilot(job: Job) -> str:
    """Return the task as YAML; raises TunemarkError for data or weights that only this machine has, and a device without a name there."""
    for value in job.arguments:
        if value.startswith(LOCAL):
            option = "--data" if value.startswith("file:") else "--weights"
            raise TunemarkError(option, value, "is on this machine only; name one of the hub, or synthetic data and random weights")
    head = HEAD.format(workload=job.plan.workload, where=job.target.text)
    return head + "".join(f"{line}\n" for line in _lines(task(job)))


def task(job: Job) -> dict[str, Any]:
    """Return the task as SkyPilot's schema has it."""
    return {
        "name": job.name,
        "workdir": ".",
        "num_nodes": job.target.nodes,
        "resources": _resources(job),
        "setup": _setup(job),
        "run": _script(job),
    }


def _setup(job: Job) -> str:
    if job.target.backend is Backend.NEURON:
        return NEURON_SETUP
    extras = f".venv/bin/pip install --quiet --editable '.[{','.join(job.extras)}]'\n" if job.extras else ""
    return f"make setup\n{extras}"


def _resources(job: Job) -> dict[str, Any]:
    target = job.target
    image = {"image_id": NEURON_IMAGE} if target.backend is Backend.NEURON else {}
    if target.instance is not None:
        return {"infra": target.provider, "instance_type": target.instance, **image}
    names: dict[str, str] = tomllib.loads(NAMES_FILE.read_text(encoding="utf-8"))
    if target.card.key not in names:
        fix = f"SkyPilot's catalogue has no name for it that is known here; name an --instance, or {did_you_mean(target.card.key, names)}"
        raise TunemarkError("--accelerator", target.card.key, fix)
    return {"accelerators": f"{names[target.card.key]}:{target.accelerators}", **image}


def _script(job: Job) -> str:
    lines = ["set -euo pipefail"]
    if job.target.nodes > 1:
        lines.append('HEAD_NODE="$(echo "$SKYPILOT_NODE_IPS" | sed -n 1p)"')
    lines.append(job.command(PROGRAM, '"$SKYPILOT_NODE_RANK"', f'"$HEAD_NODE:{PORT}"'))
    return "\n".join(lines) + "\n"


def _lines(content: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of YAML: mappings, blocks of text, and values as JSON has them, which YAML reads as they are."""
    for key, value in content.items():
        if isinstance(value, dict):
            yield f"{key}:"
            yield from (f"  {line}" for line in _lines(value))
        elif isinstance(value, str) and "\n" in value:
            yield f"{key}: |"
            yield from (f"  {line}" for line in value.splitlines())
        else:
            yield f"{key}: {json.dumps(value)}"
