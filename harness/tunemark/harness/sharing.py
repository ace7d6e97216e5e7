"""How many devices a plan uses, and how they share its model and its batch."""

from tunemark.harness.choices import Options, Reasons
from tunemark.harness.machine import Machine
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.records.plan import Batch, DeviceChoice, Offload
from tunemark.schema.vocabulary import Backend, Strategy

HOST_BACKENDS = (Backend.CPU, Backend.FAKE)
"""Device families of which every process of a machine uses the same one."""
PROCESSES_A_CORE = 4
"""More on each core measure nothing but waiting, and take the memory of the machine."""
OFFLOADS: tuple[Offload, ...] = ("none", "optimizer", "all")


def device_choice(
    card: WorkloadCard, machine: Machine, accelerator: AcceleratorCard | None, options: Options, reasons: Reasons
) -> DeviceChoice:
    """Return the devices, which are those of a card where one is known, and how they share the work."""
    known = (
        "its reported name is an alias of the card"
        if accelerator
        else f"no card in data/accelerators has the alias {machine.devices[0].name!r}; peaks and prices are unknown"
    )
    count = _count(card, options, reasons)
    strategy = _strategy(card, count, options, reasons)
    return DeviceChoice(
        backend=reasons.give("device.backend", machine.backend, machine.backend_reason),
        accelerator=reasons.give("device.accelerator", accelerator.key if accelerator else None, known),
        count=count,
        nodes=options.nodes,
        strategy=strategy,
        offload=_offload(card, options),
        tensor_parallel=card.devices.tensor_parallel,
        pipeline_parallel=card.devices.pipeline_parallel,
        launcher=None if count == 1 else options.launcher,
        threads=_threads(machine, count, options, reasons) if machine.backend in HOST_BACKENDS else None,
    )


def _count(card: WorkloadCard, options: Options, reasons: Reasons) -> int:
    asked = options.devices if options.devices is not None else card.devices.count
    count = reasons.give("device.count", asked, "asked for with --devices" if options.devices else "the workload card says so")
    if count % options.nodes:
        raise TunemarkError("--devices", count, f"is for all {options.nodes} nodes together; give a multiple of {options.nodes}")
    return count


def ill_shared(device: DeviceChoice) -> str | None:
    """Return why so many devices cannot share the work that way, or None."""
    several = [strategy.value for strategy in Strategy if strategy is not Strategy.SINGLE]
    if device.count == 1 and device.strategy is not Strategy.SINGLE:
        return f"{device.strategy.value}: one device shares nothing; leave --strategy out, or give --devices"
    if device.count > 1 and device.strategy is Strategy.SINGLE:
        return f"single: {device.count} devices need one of {', '.join(several)}"
    apart = device.tensor_parallel * device.pipeline_parallel
    if device.count % apart:
        return f"{device.count} devices: tensor x pipeline parallel is {apart}; give a multiple of it"
    return None


def too_many(device: DeviceChoice, machine: Machine) -> str | None:
    """Return why a machine has too few devices for a plan, or None."""
    here, per_node = len(machine.devices), device.count // device.nodes
    on_host = machine.backend in HOST_BACKENDS
    most = PROCESSES_A_CORE * machine.cpu_usable_cores if on_host else here
    if per_node <= most:
        return None
    has = f"{machine.cpu_usable_cores} cores" if on_host else f"{here} {machine.backend.value} device{'s' * (here != 1)}"
    fix = f"this machine has {has}; give --devices {most * device.nodes} or less"
    return f"{device.count} devices{f' on {device.nodes} nodes' * (device.nodes > 1)}: {fix}"


def _strategy(card: WorkloadCard, count: int, options: Options, reasons: Reasons) -> Strategy:
    asked, why = (
        (options.strategy, "asked for with --strategy") if options.strategy else (card.devices.strategy, "the workload card says so")
    )
    words = [strategy.value for strategy in Strategy]
    if asked == "auto" or (count == 1 and not options.strategy):
        one = count == 1
        return reasons.give(
            "device.strategy", Strategy.SINGLE if one else Strategy.DDP, "one device needs none" if one else "each device holds a replica"
        )
    if asked not in words:
        raise TunemarkError("--strategy", asked, did_you_mean(asked, words))
    return reasons.give("device.strategy", Strategy(asked), why)


def _offload(card: WorkloadCard, options: Options) -> Offload:
    asked = options.offload or card.devices.offload
    for known in OFFLOADS:
        if known == asked:
            return known
    raise TunemarkError("--offload", asked, did_you_mean(asked, OFFLOADS))


def _threads(machine: Machine, count: int, options: Options, reasons: Reasons) -> int:
    """Return threads a process: those of all processes on a machine are its physical cores."""
    here = count // options.nodes
    cores = min(machine.cpu_physical_cores or machine.cpu_usable_cores, machine.cpu_usable_cores)
    why = "one thread per physical core that this process may use"
    return reasons.give("device.threads", max(1, cores // here), why if here == 1 else f"{why}, shared by {here} processes")


def batch_choice(card: WorkloadCard, device: DeviceChoice, reasons: Reasons) -> Batch:
    """Return the batch from one micro-step to one optimizer step."""
    micro, accumulation = card.batch.micro_batch, card.batch.gradient_accumulation
    apart = device.tensor_parallel * device.pipeline_parallel
    why = "each device sees different rows" if apart == 1 else f"{device.count} devices / tensor x pipeline parallel {apart}"
    # Devices that cannot be shared so are told as unsupported; until then a plan has one replica.
    replicas = reasons.give("batch.data_parallel", max(1, device.count // apart), why)
    rows = reasons.give(
        "batch.global_batch",
        micro * accumulation * replicas,
        f"micro_batch {micro} x gradient_accumulation {accumulation} x data_parallel {replicas}",
    )
    return Batch(micro_batch=micro, gradient_accumulation=accumulation, data_parallel=replicas, global_batch=rows)
