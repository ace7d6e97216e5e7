"""`tunemark plan --emit`: a SLURM batch script or a SkyPilot task that runs a workload on other machines.

The target machines come from the price book and the accelerator cards, never from the local machine. The plan is resolved for
them first, so a script is written only if they can run the workload.
"""

import math
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from tunemark.harness.plan.machine import detect
from tunemark.harness.plan.memory_check import memory_note
from tunemark.harness.plan.options import Options
from tunemark.harness.plan.resolve import Resolved, refuse_unsupported, resolve
from tunemark.harness.vendors.protocol import Vendor, all_vendors
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard, PriceRow
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import GIB
from tunemark.schema.plan.machine import Machine
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import PACKAGES, VENDOR_PACKAGES, Backend, Method, Strategy

PANEL = "For other machines"
PORT = 29_500
DAY_S = 86_400
MARGIN_S = 900
"""Time for queueing between nodes, imports and the first download."""
OTHER_TORCH = {Backend.ROCM: "ROCm", Backend.XPU: "XPU"}
"""Backends whose build of torch is not on the default package index."""
PLACEMENT_OPTIONS = {"backend", "devices", "strategy", "nodes", "node_rank", "rendezvous"}
"""Options that the script sets from its target and the node it runs on."""
NAMES_FILE = Path(__file__).with_name("skypilot.toml")
FORCED = {"compute": "precision.compute", "data.padding": "data.padding", "data.document_borders": "data.document_borders"}
"""Settings of a card that devices may force to another value -> reason in the plan."""
LOCAL = ("file:", "pretrained:/", "pretrained:.", "pretrained:~")
"""Prefixes of values that refer to a file on the local machine."""


class Format(StrEnum):
    """Systems for which a script can be written."""

    SLURM = "slurm"
    SKYPILOT = "skypilot"


Emit = Annotated[
    Format | None,
    typer.Option("--emit", rich_help_panel=PANEL, help="Print a script that runs the workload on other machines, with a plan for them."),
]
Accelerator = Annotated[
    str | None,
    typer.Option("--accelerator", rich_help_panel=PANEL, help="Accelerator card of the target machines, such as nvidia-h100-80gb-sxm."),
]
Instance = Annotated[
    str | None, typer.Option("--instance", rich_help_panel=PANEL, help="Instance type of the target machines, such as p4d.24xlarge.")
]


def script(kind: Format, workload: str, options: Options, facts: FactBase, accelerator: str | None, instance: str | None) -> str:
    """Return the script that runs a workload with these options on other machines. Raises TunemarkError if they cannot run it."""
    target = find_target(facts, accelerator, instance, options.devices, options.nodes)
    options = replace(options, devices=target.per_node * target.nodes, nodes=target.nodes)
    resolved = resolve(workload, facts, target.machine(), options)
    refuse_unsupported(resolved)
    notes = (*script_notes(resolved, options, facts, target.machine()), *target_notes(target, facts))
    arguments = [*run_arguments(workload, options), "--devices", str(options.devices)]
    if resolved.plan.device.strategy is not Strategy.SINGLE:
        arguments += ["--strategy", resolved.plan.device.strategy.value]
    job = Job(resolved.plan, target, tuple(arguments))
    for note in notes:
        sys.stderr.write(f"note: {note}\n")
    text = slurm(job) if kind is Format.SLURM else skypilot(job)
    first, rest = text.split("\n", 1) if text.startswith("#!") else ("", text)
    return "\n".join(filter(None, [first, *(f"# Note: {note}" for note in notes), rest]))


def script_notes(resolved: Resolved, options: Options, facts: FactBase, machine: Machine) -> Iterator[str]:
    """Yield what a reader of the script must know: settings that the devices force, and a step that does not fit into their memory."""
    plan = resolved.plan
    for override in resolved.overrides:
        reason = plan.reasons.get(FORCED.get(override.field, ""))
        if reason is not None and not options.sets(override.field):
            yield f"{override.field} is {override.run} instead of the card's {override.card}: {reason}"
    note = memory_note(plan, facts.model(plan.model.key), machine)
    if note is not None:
        yield note


def target_notes(target: "Target", facts: FactBase) -> Iterator[str]:
    """Yield what a reader must know about the machines: more accelerators than any instance has, and another build of torch."""
    known = [row.accelerator_count for row in facts.prices if row.accelerator == target.card.key]
    if known and target.accelerators > max(known):
        nodes = math.ceil(target.accelerators * target.nodes / max(known))
        yield f"no instance in data/prices has {target.accelerators} x {target.card.name} (at most {max(known):g}); use --nodes {nodes} to split them"
    build = OTHER_TORCH.get(target.vendor.backend)
    if build is not None:
        yield f"`make setup-run` installs torch from the default index, which has no {build} build; install that build into .venv first (see pytorch.org)"


# The target machines and the job


@dataclass(frozen=True, slots=True)
class Target:
    """Machines of a batch system or cloud."""

    card: AcceleratorCard
    vendor: Vendor
    per_node: int
    """Devices used in each machine; on Neuron each core is one."""
    nodes: int
    row: PriceRow | None = None
    """The instance type, if one was given."""

    @property
    def accelerators(self) -> int:
        """Return the accelerators of each machine."""
        return math.ceil(self.per_node / _devices_in(self.card, self.vendor))

    @property
    def on_neuron(self) -> bool:
        """Return True for Neuron devices, whose software stack is set up differently."""
        return self.vendor.backend is Backend.NEURON

    def machine(self) -> Machine:
        """Return one of these machines for planning, with all packages: the script installs them."""
        memory = None if self.card.memory_gib is None else int(self.card.memory_gib * GIB) // _devices_in(self.card, self.vendor)
        host_gib = self.row.memory_gib if self.row else None
        return replace(
            detect(),
            backend=self.vendor.backend,
            family=self.vendor.family,
            backend_reason=f"{self.card.name} was requested",
            devices=(DeviceFacts(name=self.card.name, memory_bytes=memory),) * self.per_node,
            memory_bytes=None if host_gib is None else int(host_gib * GIB),
            packages=dict.fromkeys((*PACKAGES, *VENDOR_PACKAGES) if self.on_neuron else PACKAGES, "to be installed"),
        )


def find_target(facts: FactBase, accelerator: str | None, instance: str | None, devices: int | None, nodes: int) -> Target:
    """Return the machines of an accelerator or instance; without `devices`, one device per machine, or all devices of the instances.

    Raises TunemarkError for names that are not in data/, and for more devices than the instances hold.
    """
    if devices is not None and devices % nodes:
        raise TunemarkError("--devices", devices, f"is for all {nodes} nodes together; give a multiple of {nodes}")
    if instance is None:
        if accelerator is None:
            raise TunemarkError("--accelerator", "", "the script needs a target machine; give --accelerator or --instance")
        card = facts.accelerator(accelerator)
        return Target(card, _vendor(card), (devices or nodes) // nodes, nodes)
    rows = [row for row in facts.prices if row.instance.lower() == instance.lower()]
    if not rows:
        fix = did_you_mean(instance, {row.instance for row in facts.prices})
        raise TunemarkError("--instance", instance, f"not in data/prices/prices.csv; {fix}")
    row = max(rows, key=lambda row: (row.vcpus is not None, row.effective_on))
    card = facts.accelerators[row.accelerator]
    if accelerator is not None and facts.accelerator(accelerator).key != card.key:
        raise TunemarkError("--accelerator", accelerator, f"{row.instance} has {card.key}; give only one of the two")
    held = int(row.accelerator_count * _devices_in(card, _vendor(card)))
    per_node = held if devices is None else devices // nodes
    if per_node > held:
        raise TunemarkError("--devices", devices, f"{nodes} x {row.instance} have {held * nodes} devices; give {held * nodes} or less")
    return Target(card, _vendor(card), per_node, nodes, row)


def _devices_in(card: AcceleratorCard, vendor: Vendor) -> int:
    """Return the number of devices in one accelerator: each NeuronCore is a device, and so is a whole GPU."""
    return card.cores_per_unit or 1 if vendor.backend is Backend.NEURON else 1


def _vendor(card: AcceleratorCard) -> Vendor:
    known = {vendor.card_vendor: vendor for vendor in all_vendors() if vendor.card_vendor}
    if card.unit == "cpu":
        raise TunemarkError("--accelerator", card.key, "is a CPU, and scripts are for accelerators; on the CPU, use `tunemark run`")
    if card.vendor not in known:
        raise TunemarkError("--accelerator", card.key, f"scripts are for accelerators of {', '.join(sorted(known))}, not of {card.vendor}")
    return known[card.vendor]


@dataclass(frozen=True, slots=True)
class Job:
    """The command that a script runs on each node."""

    plan: Plan
    target: Target
    arguments: tuple[str, ...]
    """Arguments of `tunemark`, without those that differ from node to node."""

    @property
    def machines(self) -> str:
        """Return a description of the machines."""
        target = self.target
        return f"{target.nodes} x {target.row.instance if target.row else 'machine'} with {target.accelerators} x {target.card.name}"

    def command(self, program: str, rank: str, head: str) -> str:
        """Return the command of a node, one option per line; `rank` and `head` are words of the shell that it runs in."""
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


def run_arguments(workload: str, options: Options) -> list[str]:
    """Return `run WORKLOAD` and the given options, without the placement options."""
    hints = get_type_hints(Options, include_extras=True)
    arguments = ["run", workload]
    for field in fields(Options):
        value = getattr(options, field.name)
        if field.name in PLACEMENT_OPTIONS or value == field.default:
            continue
        (option,) = hints[field.name].__metadata__
        # In an annotation, typer stores an option's name as its default.
        on, _, off = str(option.default).partition("/")
        if isinstance(value, bool):
            arguments.append(on if value else off)
        else:
            for item in value if isinstance(value, tuple) else [value]:
                arguments += [on, str(item)]
    return arguments


# SLURM

SLURM = """\
#!/bin/bash
# {workload} on {where}. Made by `tunemark plan {workload} --emit slurm`.
# Partition and account depend on the cluster: pass them to sbatch, as in `sbatch --partition=gpu FILE`.
# Nodes without internet access: `HF_HUB_OFFLINE=1 sbatch FILE` reads weights and data from local folders only.
# {time_reason}
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
{devices}#SBATCH --exclusive
#SBATCH --time={hours:02d}:{minutes:02d}:00
#SBATCH --output=%x-%j.log

set -euo pipefail
{environment}cd "$SLURM_SUBMIT_DIR"
export TUNEMARK="${{TUNEMARK:-.venv/bin/tunemark}}"
{head_node}
# Each node runs this once, on all of its CPUs: some clusters would give the one task a single core. The first writes the submission.
srun --cpus-per-task="${{SLURM_CPUS_ON_NODE:-1}}" --kill-on-bad-exit=1 bash -c {command}
"""
SLURM_NEURON = """\
# .venv must contain the Neuron stack and Tunemark (see `On a Neuron machine` in the README). TUNEMARK=PROGRAM selects another program.
# Not yet tested on such a machine.
"""
SLURM_HEAD_NODE = """\
HEAD_NODE="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)"
export HEAD_NODE
"""
DEFAULT_TIME = "Time: one day as a guess, since no --timeout was given. Use `sbatch --time=HH:MM:SS FILE`, or plan with --timeout SECONDS."


def slurm(job: Job) -> str:
    """Return a batch script, to be submitted from the root of a checkout on a file system that all nodes share."""
    target, limit_s = job.target, job.plan.measurement.timeout_s
    hours, minutes = divmod(math.ceil((DAY_S if limit_s is None else limit_s + MARGIN_S) / 60), 60)
    on_node = job.command('"$TUNEMARK"', '"$SLURM_NODEID"', f'"$HEAD_NODE:{PORT}"')
    return SLURM.format(
        workload=job.plan.workload,
        where=job.machines,
        time_reason=DEFAULT_TIME if limit_s is None else "Time: --timeout plus a margin for imports and downloads.",
        name=f"tunemark-{job.plan.workload}",
        nodes=target.nodes,
        # Clusters with Neuron devices allocate whole machines and do not count devices.
        devices="" if target.on_neuron else f"#SBATCH --gres=gpu:{target.accelerators}\n",
        hours=hours,
        minutes=minutes,
        environment=SLURM_NEURON if target.on_neuron else "",
        head_node=SLURM_HEAD_NODE if target.nodes > 1 else "",
        command=shlex.quote(f"exec {on_node}"),
    )


# SkyPilot

SKYPILOT_HEAD = """\
# {workload} on {where}, from a checkout of Tunemark:
#   sky launch -c tunemark -i 10 FILE                             # stops the machines ten minutes after the run
#   rsync -a tunemark:sky_workdir/submissions/ submissions/       # while they are up: copies the submission here
#   sky down tunemark                                             # a stopped machine's disk still costs
"""
NEURON_IMAGE = "skypilot:neuron-ubuntu-2204"
"""SkyPilot's name of AWS's Deep Learning AMI Neuron (Ubuntu 22.04), its default for these devices: drivers, runtime and tools."""
NEURON_SETUP = """\
# The image has drivers, runtime and tools. Its environments have Python 3.10 and Tunemark needs 3.11, so compiler and torch
# come from AWS's index, in the versions that optimum-neuron pins. Written from their documentation, not yet tested on such a machine.
python3 -m pip install --quiet uv
python3 -m uv venv --quiet --python 3.11 .venv
python3 -m uv pip install --quiet --python .venv/bin/python --extra-index-url https://pip.repos.neuron.amazonaws.com \\
  'optimum-neuron[neuronx,training]==0.4.5' 'datasets>=4.0' 'psutil>=7' 'pydantic>=2.11' 'rich>=14' 'typer>=0.16'
# Without dependencies: the compiler pins an older numpy than Tunemark requires elsewhere.
python3 -m uv pip install --quiet --python .venv/bin/python --no-deps --editable .
"""


def skypilot(job: Job) -> str:
    """Return a task as YAML, to be launched from the root of a checkout, which is copied to the machines.

    Raises TunemarkError for data or weights that only this machine has, and for a device that SkyPilot does not know.
    """
    import yaml  # noqa: PLC0415 - only SkyPilot's tasks need it

    for value in job.arguments:
        if value.startswith(LOCAL):
            option = "--data" if value.startswith("file:") else "--weights"
            raise TunemarkError(option, value, "is only on this machine; use one from the hub, or synthetic data and random weights")

    class Dumper(yaml.SafeDumper):
        """Writes text of several lines as a block."""

    def write_text(dumper: Any, text: str) -> Any:  # noqa: ANN401 - yaml's objects
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, write_text)
    target, plan = job.target, job.plan
    # Tunemark's optional dependencies that the run needs.
    optional = {
        "nvidia": target.card.vendor == "NVIDIA",
        "qlora": plan.method is Method.QLORA or plan.optimizer.name.endswith("8bit"),
        "distributed": plan.device.strategy in {Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3},
    }
    extras = ",".join(name for name, needed in optional.items() if needed)
    install = f".venv/bin/pip install --quiet --editable '.[{extras}]'\n" if extras else ""
    head_node = 'HEAD_NODE="$(echo "$SKYPILOT_NODE_IPS" | sed -n 1p)"\n' if target.nodes > 1 else ""
    command = job.command(".venv/bin/tunemark", '"$SKYPILOT_NODE_RANK"', f'"$HEAD_NODE:{PORT}"')
    task = {
        "name": f"tunemark-{plan.workload}",
        "workdir": ".",
        "num_nodes": target.nodes,
        "resources": _resources(target) | ({"image_id": NEURON_IMAGE} if target.on_neuron else {}),
        "setup": NEURON_SETUP if target.on_neuron else f"make setup-run\n{install}",
        "run": f"set -euo pipefail\n{head_node}{command}\n",
    }
    head = SKYPILOT_HEAD.format(workload=plan.workload, where=job.machines)
    return head + str(yaml.dump(task, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=math.inf))


def _resources(target: Target) -> dict[str, Any]:
    if target.row is not None:
        return {"infra": target.row.provider, "instance_type": target.row.instance}
    names: dict[str, str] = tomllib.loads(NAMES_FILE.read_text(encoding="utf-8"))
    if target.card.key not in names:
        fix = f"SkyPilot's catalogue has no known name for it; name an --instance, or {did_you_mean(target.card.key, names)}"
        raise TunemarkError("--accelerator", target.card.key, fix)
    return {"accelerators": f"{names[target.card.key]}:{target.accelerators}"}
