"""Resolve what a user asked for on this machine: paths are read here, and everything else is `tunemark.schema.plan`."""

from dataclasses import dataclass, replace
from pathlib import Path

from tunemark.harness.plan.options import Options
from tunemark.harness.worker.sample_files import check_file, describe_file
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.plan import resolve as schema_plan
from tunemark.schema.plan.capabilities import Machine
from tunemark.schema.plan.conflicts import missing_devices
from tunemark.schema.records.division import Override
from tunemark.schema.records.plan import LOCAL_WEIGHTS, Plan, Requested, RunOptions
from tunemark.schema.vocabulary import DataSource


@dataclass(frozen=True, slots=True)
class Resolved:
    """A request and its plan, with facts that the worker needs and a submission must not hold, such as paths of this machine."""

    requested: Requested
    plan: Plan
    overrides: tuple[Override, ...]
    weights_from: str | None
    """Hub id or directory of pretrained weights."""
    data_from: str | None
    """Hub id or path of the samples."""
    unsupported: str | None
    """Why this machine cannot run it, decided before any time is spent."""
    node_rank: int = 0
    """Number of this machine among several."""
    rendezvous: str | None = None
    """HOST:PORT of the first of several machines; None for one."""
    limit_memory_bytes: int | None = None
    """Host memory that each worker process may use; None for all of it."""

    def measured_with(self, **options: float) -> "Resolved":
        """Return it with other options of its measurement, which request and plan name alike: `seed` or `timeout_s`."""
        measurement = self.plan.measurement.model_copy(update=options)
        requested, plan = self.requested.model_copy(update=options), self.plan.model_copy(update={"measurement": measurement})
        return replace(self, requested=requested, plan=plan)


def resolve(name: str, facts: FactBase, machine: Machine, options: Options) -> Resolved:
    """Return the plan of a workload on a machine. Raises TunemarkError, with a suggestion, for an unknown name or value."""
    if options.rendezvous is not None and options.nodes == 1:
        raise TunemarkError("--set rendezvous", options.rendezvous, "is for several machines; give --set nodes=N, the same on each machine")
    if options.node_rank >= options.nodes:
        fix = f"machines are numbered from 0 to {options.nodes - 1}; give --set nodes=N, the same on each machine"
        raise TunemarkError("--set node_rank", options.node_rank, fix)
    requested = request(name, options)
    plan, overrides, unsupported = schema_plan.resolve(requested, facts, machine)
    directory = options.weights.partition(":")[2]
    data = options.data.partition(":")[2] or plan.data.name
    if plan.data.source is DataSource.FILE:
        try:
            check_file(data, plan.model.labels, plan.data.evaluation_rows, plan.data.template)
        except ValueError as error:
            raise TunemarkError("--data", f"file:{data}", str(error)) from error
    return Resolved(
        requested,
        plan,
        overrides,
        directory if plan.model.local else plan.model.hub_id,
        None if plan.data.source is DataSource.SYNTHETIC else data,
        unsupported,
        options.node_rank,
        options.rendezvous,
    )


def request(name: str, options: Options) -> Requested:
    """Return the request in the form that a record holds: files by name and content, directories of weights without a path."""
    given = {name: getattr(options, name) for name in RunOptions.model_fields}
    kind, _, place = options.data.partition(":")
    if kind == DataSource.FILE.value and place:
        file, given["data_sha256"] = describe_file(place)
        given["data"] = f"{kind}:{file}"
    elif kind == DataSource.HUB.value and Path(place).exists():
        # A local folder read through the hub library is named without its path.
        given["data"] = f"{kind}:{Path(place).name}"
    directory = options.weights.partition(":")[2]
    if directory.startswith(("/", ".", "~")) and not Path(directory).is_dir():
        fix = "no such directory; give one that holds config.json and the weights, or a hub id"
        raise TunemarkError("--weights", options.weights, fix)
    if directory and Path(directory).exists():
        given["weights"] = LOCAL_WEIGHTS
    return Requested(workload=name, **given)


def refuse_unsupported(resolved: Resolved) -> None:
    """Raise TunemarkError with exit code 4 when the machine cannot run the plan."""
    if resolved.unsupported:
        raise TunemarkError("workload", resolved.plan.workload, resolved.unsupported, exit_code=Exit.UNSUPPORTED)


def refuse_missing_devices(options: Options, machine: Machine) -> None:
    """Raise TunemarkError if `--devices` asks for more than this machine has: a typing error is no result."""
    missing = missing_devices(options.devices, options.nodes, machine) if options.devices else None
    if missing:
        raise TunemarkError("--devices", options.devices, missing, exit_code=Exit.UNSUPPORTED)
