"""Chosen options as a command line again: each that is not at its default, under the name that the command line gives it."""

import json
import math
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from tunemark.harness.commands.options import RunOptions
from tunemark.harness.plan.capabilities import FORMATS
from tunemark.harness.plan.machine import OF_VENDORS, PACKAGES, Machine, detect
from tunemark.harness.plan.resolve import refuse_unsupported, resolve
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard, PriceRow
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import GIB
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend, Method, Strategy

PLACEMENT_OPTIONS = {"backend", "devices", "strategy", "nodes", "node_rank", "rendezvous"}
"""Options that the script itself gives, from its target and from the node that it runs on."""


def run_arguments(workload: str, chosen: RunOptions) -> list[str]:
    """Return `run WORKLOAD` and the options that were given, but those of the place."""
    hints = get_type_hints(RunOptions, include_extras=True)
    arguments = ["run", workload]
    for field in fields(RunOptions):
        value = getattr(chosen, field.name)
        if field.name not in PLACEMENT_OPTIONS and value not in (field.default, []):
            (option,) = hints[field.name].__metadata__
            # Between Annotated and typer, an option's name is what would elsewhere be its default.
            arguments += _option(str(option.default), value)
    return arguments


def _option(name: str, value: Any) -> Iterator[str]:  # noqa: ANN401 - of any option
    on, _, off = name.partition("/")
    if isinstance(value, bool):
        yield on if value else off
        return
    for one in value if isinstance(value, list | tuple) else [value]:
        yield from (name, str(getattr(one, "value", one)))


# MOVE: was tunemark.harness.commands.emit: The machines that a script is for: from the price book and the accelerator cards, never from the machine that plans.

BACKENDS = {"NVIDIA": Backend.CUDA, "AMD": Backend.ROCM, "AWS": Backend.NEURON, "Intel": Backend.XPU}
"""Device family of a vendor's accelerators that batch systems and clouds have."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked of a batch system or cloud."""

    card: AcceleratorCard
    per_node: int
    """Devices used in a machine; on Neuron each core is one."""
    nodes: int
    instance: str | None = None
    provider: str | None = None
    vcpus: int | None = None
    memory_gib: float | None = None

    @property
    def text(self) -> str:
        """Return the machines in words."""
        return f"{self.nodes} x {self.instance or 'machine'} with {self.accelerators} x {self.card.name}"

    @property
    def devices(self) -> int:
        """Return the devices of all machines."""
        return self.per_node * self.nodes

    @property
    def accelerators(self) -> int:
        """Return the accelerators that a machine is asked for."""
        return math.ceil(self.per_node / devices_in(self.card))

    @property
    def backend(self) -> Backend:
        """Return the device family."""
        return BACKENDS[self.card.vendor]

    def machine(self) -> Machine:
        """Return one of these machines as planning sees it, with all packages: the script installs them."""
        memory = None if self.card.memory_gib is None else int(self.card.memory_gib * GIB)
        device = DeviceFacts(name=self.card.name, memory_bytes=memory)
        return replace(
            detect(),
            backend=self.backend,
            backend_reason=f"{self.card.name} was asked for",
            devices=(device,) * self.per_node,
            compute_dtypes=FORMATS[self.backend],
            target=None,
            packages=dict.fromkeys((*PACKAGES, *OF_VENDORS) if self.backend is Backend.NEURON else PACKAGES, "to be installed"),
        )


def find_target(facts: FactBase, accelerator: str | None, instance: str | None, devices: int | None, nodes: int) -> Target:
    """Return the machines of an accelerator or instance; without `devices`, one in each machine, or all of the instances.

    Raises
    ------
    TunemarkError
        For names that are not in data/, and for more devices than the instances hold.

    """
    if devices is not None and devices % nodes:
        raise TunemarkError("--devices", devices, f"is for all {nodes} nodes together; give a multiple of {nodes}")
    if instance is None:
        if accelerator is None:
            raise TunemarkError("--accelerator", "", "a script is for another machine: name its --accelerator or its --instance")
        return Target(_supported(facts.accelerator(accelerator)), (devices or nodes) // nodes, nodes)
    row = instance_row(facts, instance)
    card = _supported(facts.accelerators[row.accelerator])
    if accelerator is not None and facts.accelerator(accelerator).key != card.key:
        raise TunemarkError("--accelerator", accelerator, f"{row.instance} has {card.key}; leave one of the two out")
    held = int(row.accelerator_count * devices_in(card))
    per_node = held if devices is None else devices // nodes
    if per_node > held:
        raise TunemarkError("--devices", devices, f"{nodes} x {row.instance} have {held * nodes} devices; give {held * nodes} or less")
    return Target(card, per_node, nodes, row.instance, row.provider, row.vcpus, row.memory_gib)


def devices_in(card: AcceleratorCard) -> int:
    """Return how many devices one accelerator is: a process trains on each NeuronCore, and on a whole GPU."""
    return card.cores_per_unit or 1 if BACKENDS.get(card.vendor) is Backend.NEURON else 1


def instance_row(facts: FactBase, name: str) -> PriceRow:
    """Return a row of the price book about an instance; raises TunemarkError with a suggestion for an unknown one."""
    rows = [row for row in facts.prices if row.instance.lower() == name.lower()]
    if not rows:
        raise TunemarkError(
            "--instance", name, f"not in data/prices/prices.csv; {did_you_mean(name, {row.instance for row in facts.prices})}"
        )
    return max(rows, key=lambda row: (row.vcpus is not None, row.effective_on))


def _supported(card: AcceleratorCard) -> AcceleratorCard:
    if card.vendor not in BACKENDS:
        known = ", ".join(sorted(BACKENDS))
        raise TunemarkError("--accelerator", card.key, f"scripts are for accelerators of {known}, not of {card.vendor}")
    return card


# MOVE: was tunemark.harness.commands.emit: A run on other machines: validated by planning it for them, and then written in the words of a batch system or cloud.

PORT = 29_500
DAY_S = 86_400
MARGIN_S = 900
"""For queueing between nodes, imports and the first download."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a script runs."""

    plan: Plan
    target: Target
    arguments: tuple[str, ...]
    """Of `tunemark`, without those that differ from node to node."""

    @property
    def name(self) -> str:
        """Return its name in a queue."""
        return f"tunemark-{self.plan.workload}"

    @property
    def hours_minutes(self) -> tuple[int, int]:
        """Return the time to ask for: the worker's own limit and a margin; a day where it has none."""
        limit = self.plan.measurement.timeout_s
        minutes = math.ceil((DAY_S if limit is None else limit + MARGIN_S) / 60)
        return divmod(minutes, 60)

    @property
    def time_reason(self) -> str:
        """Return where the time comes from, and how to ask for another."""
        if self.plan.measurement.timeout_s is not None:
            return "Time: that of --timeout, and a margin for imports and downloads."
        return "Time: a day, since no --timeout was given. It is a guess: `sbatch --time=HH:MM:SS FILE`, or plan with --timeout SECONDS."

    @property
    def extras(self) -> tuple[str, ...]:
        """Return the optional parts of Tunemark that it needs beside `make setup`; Neuron machines are set up otherwise."""
        plan = self.plan
        qlora = plan.method is Method.QLORA or plan.optimizer.name.endswith("8bit")
        wanted = {
            "nvidia": self.target.card.vendor == "NVIDIA",
            "qlora": qlora,
            "distributed": plan.device.strategy in {Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3},
        }
        if self.target.backend is Backend.NEURON:
            return ()
        return tuple(name for name, needed in wanted.items() if needed)

    def command(self, program: str, rank: str, head: str) -> str:
        """Return the command of a node, one option a line; `rank` and `head` are words of the shell that it runs in."""
        words = [shlex.quote(word) for word in self.arguments]
        if self.target.nodes > 1:
            words += ["--nodes", str(self.target.nodes), "--node-rank", rank, "--rendezvous", head]
        lines = [f"{program} {words[0]} {words[1]}"]
        for word in words[2:]:
            if word.startswith("--"):
                lines.append(f"  {word}")
            else:
                lines[-1] += f" {word}"
        return " \\\n".join(lines)


def make_job(workload: str, chosen: RunOptions, facts: FactBase, accelerator: str | None, instance: str | None) -> Job:
    """Return the job of what was asked.

    Raises
    ------
    TunemarkError
        For what cannot be planned for the target: an unknown name or value, or what its devices cannot do.

    """
    target = find_target(facts, accelerator, instance, chosen.devices, chosen.nodes)
    resolved = resolve(workload, facts, target.machine(), replace(chosen.options(), devices=target.devices, nodes=target.nodes))
    refuse_unsupported(resolved)
    arguments = run_arguments(workload, chosen)
    arguments += ["--devices", str(target.devices)]
    if resolved.plan.device.strategy is not Strategy.SINGLE:
        arguments += ["--strategy", resolved.plan.device.strategy.value]
    return Job(resolved.plan, target, tuple(arguments))


# MOVE: was tunemark.harness.commands.emit: A batch script for SLURM: `sbatch` it from the root of a checkout on a file system that all nodes share.

NEURON_ENVIRONMENT = (
    "# .venv is one with the Neuron stack beside Tunemark: README, `On a Neuron machine`. Name another with TUNEMARK=PROGRAM.",
    "# Not yet tried on such a machine.",
)
SLURM_PROGRAM = '"$TUNEMARK"'


def slurm(job: Job) -> str:
    """Return the script."""
    hours, minutes = job.hours_minutes
    target = job.target
    head = [
        "#!/bin/bash",
        f"# {job.plan.workload} on {job.target.text}. Made by `tunemark plan {job.plan.workload} --emit slurm`.",
        "# Partition and account are the cluster's own: give them to sbatch, as in `sbatch --partition=gpu FILE`.",
        f"# {job.time_reason}",
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --nodes={target.nodes}",
        "#SBATCH --ntasks-per-node=1",
        # Clusters with Neuron devices give whole machines and do not count them.
        *([] if target.backend is Backend.NEURON else [f"#SBATCH --gres=gpu:{target.accelerators}"]),
        "#SBATCH --exclusive",
        f"#SBATCH --time={hours:02d}:{minutes:02d}:00",
        "#SBATCH --output=%x-%j.log",
    ]
    return "\n".join([*head, "", *_body(job)]) + "\n"


def _body(job: Job) -> list[str]:
    on_node = job.command(SLURM_PROGRAM, '"$SLURM_NODEID"', f'"$HEAD_NODE:{PORT}"')
    several = ['HEAD_NODE="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)"', "export HEAD_NODE"]
    return [
        "set -euo pipefail",
        *(NEURON_ENVIRONMENT if job.target.backend is Backend.NEURON else ()),
        'cd "$SLURM_SUBMIT_DIR"',
        'export TUNEMARK="${TUNEMARK:-.venv/bin/tunemark}"',
        *(several if job.target.nodes > 1 else []),
        "",
        "# Each node runs this once; the first writes the submission.",
        f"srun --kill-on-bad-exit=1 bash -c {shlex.quote(f'exec {on_node}')}",
    ]


# MOVE: was tunemark.harness.commands.emit: A task for SkyPilot: `sky launch` it from the root of a checkout, which is copied to the machines.

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
        "run": _run_commands(job),
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


def _run_commands(job: Job) -> str:
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


# MOVE: was tunemark.harness.commands.emit: What `tunemark plan` takes to write a script instead of showing the plan.

PANEL = "For other machines"


class Format(StrEnum):
    """For which system."""

    SLURM = "slurm"
    SKYPILOT = "skypilot"


Emit = Annotated[
    Format | None, typer.Option("--emit", rich_help_panel=PANEL, help="Print a script that runs this on other machines, and plan for them.")
]
Accelerator = Annotated[
    str | None, typer.Option("--accelerator", rich_help_panel=PANEL, help="Card of their accelerator, such as nvidia-h100-80gb-sxm.")
]
Instance = Annotated[str | None, typer.Option("--instance", rich_help_panel=PANEL, help="Their instance type, such as p4d.24xlarge.")]


def script(kind: Format, workload: str, chosen: RunOptions, facts: FactBase, accelerator: str | None, instance: str | None) -> str:
    """Return the script that runs a workload with these options on other machines."""
    job = make_job(workload, chosen, facts, accelerator, instance)
    return slurm(job) if kind is Format.SLURM else skypilot(job)
