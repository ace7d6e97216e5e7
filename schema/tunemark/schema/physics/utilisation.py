"""Utilisation and energy of a run: MFU, HFU, MAFU, FLOP/s and joules, used by harness and collector.

A figure that cannot be computed is null with its reason. The peak of another chip and an estimate from TDP are never used.
See definitions#mfu, definitions#hfu and definitions#energy.
"""

from dataclasses import dataclass, replace

from tunemark.schema import formats
from tunemark.schema.derive import Derived
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.physics.flops import FlopsLedger, FlopsLine, flops_ledger, palm_flops
from tunemark.schema.physics.training_shape import TrainingShape, shape_of_plan, shape_problem
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import StepTrace
from tunemark.schema.samples import Counts
from tunemark.schema.statistics.steady_state import SteadyWindow
from tunemark.schema.vocabulary import Backend, Dtype

TERA = 1e12
PARTS = (Backend.ROCM, Backend.NEURON, Backend.NEURON_XLA, Backend.TPU)
"""Device families in which a device can be a part of what its card describes: one of two dies, or one core."""


@dataclass(frozen=True, slots=True)
class Known:
    """A figure with its formula, or the reason why it is unknown."""

    value: float | None
    reason: str
    """The formula in words; for an unknown figure, what is missing."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of the steps of a window, summed over steps and replicas."""

    steps: int
    seconds: float
    """Their wall time."""
    counts: Counts

    def pieces(self, *, packed: bool) -> int:
        """Return the number of stretches of tokens that attend only to themselves.

        Without packing, a document is one stretch. A packed row cuts at most one document in two, and the first token of each
        piece has no label: both bound the number of pieces.
        """
        seen = self.counts
        if not packed:
            return seen.documents
        return max(seen.documents, min(seen.real_tokens - seen.supervised_tokens, seen.documents + seen.rows))


def work_in(trace: StepTrace, window: SteadyWindow) -> Work:
    """Return the work of the steps of a window."""
    part = slice(window.first, window.stop)
    return Work(window.steps, sum(trace.step_times_s[part]), Counts(*(sum(getattr(trace, name)[part]) for name in Counts._fields)))


MOST_DOCUMENTS = 65_536
"""Larger micro-batches are represented by this many documents."""


def measured_shape(plan: Plan, card: ModelCard, work: Work) -> TrainingShape:
    """Return the mean step of a window, all replicas together, as documents of equal length.

    Longer documents have more than their share of attention, so that this count is low by as much as lengths are spread.
    """
    packed, longest = plan.data.packing, plan.data.sequence_length
    # Without borders, all tokens of a row attend like those of one document.
    pieces = work.counts.rows if packed and not plan.data.document_borders else work.pieces(packed=packed)
    tokens = max(1, round(work.counts.real_tokens / work.steps))
    documents = min(tokens, max(1, round(pieces / work.steps), -(-tokens // longest)))
    if documents > MOST_DOCUMENTS:
        # The mean length. A ledger is scaled to the actual number of tokens.
        tokens, documents = round(tokens / documents * MOST_DOCUMENTS), MOST_DOCUMENTS
    short, longer = divmod(tokens, documents)
    lengths = (short + 1,) * longer + (short,) * (documents - longer)
    return replace(shape_of_plan(plan, card), micro_batch=documents, document_lengths=lengths)


def peak_flop_per_s(
    submission: Submission, card: AcceleratorCard | None, ledger: FlopsLedger | None = None, *, recomputed: bool = False
) -> Known:
    """Return the sum of the dense peaks of the devices, FLOP/s: in the compute format, or for products in two formats.

    Where matrices multiply in fp8 and all else in the compute format, it is all FLOPs of the ledger over the time that they take with
    each format at its own peak; without a ledger the peak of fp8, which is higher. See definitions#mfu.
    """
    compute = submission.plan.precision.compute
    plain = _peak_in(submission, card, compute)
    if not submission.plan.model.fp8_products or plain.value is None:
        return plain
    fp8 = _peak_in(submission, card, Dtype.FP8)
    if fp8.value is None or ledger is None:
        return fp8
    flops = ledger.hardware_flops if recomputed else ledger.model_flops
    share = ledger.in_block_matrices(recomputed=recomputed) / max(1, flops)
    both = 1 / (share / fp8.value + (1 - share) / plain.value)
    return Known(both, f"{share:.1%} of the FLOPs at {fp8.reason}, the others at {plain.value / TERA:g} TFLOP/s {compute.value}")


def _peak_in(submission: Submission, card: AcceleratorCard | None, compute: Dtype) -> Known:
    """Return the sum of the dense peaks of the devices in a number format."""
    device = submission.plan.device
    if card is None:
        return Known(None, submission.plan.reasons.get("device.accelerator", "the device is not in the catalogue, so its peak is unknown"))
    peak = card.peak_tflops.get(compute)
    if peak is None:
        return Known(None, f"the card of {card.name} has no dense peak for {compute.value}")
    part = part_of_card(submission, card)
    if part is None:
        cores = card.cpu.cores if card.cpu else card.cores_per_unit
        return Known(None, f"the peak of {card.name} is for {cores} cores, and how many of them the run could use is unknown")
    if card.cpu is not None:
        cores = submission.environment.usable_physical_cores
        nodes = f"{device.nodes} x " if device.nodes > 1 else ""
        used = f"{nodes}{cores} of {card.cpu.cores} cores x {peak:g} TFLOP/s {compute.value}, {card.name} {card.cpu.clock_words()}"
        return Known(device.count * part * peak * TERA, used)
    many = f"{device.count} x " if device.count > 1 else ""
    piece = "" if part == 1 else f" x {part:g} of a {card.unit}"
    return Known(device.count * part * peak * TERA, f"{many}{peak:g} TFLOP/s {compute.value}{piece}, {card.name}")


def mean_step(submission: Submission, model: ModelCard) -> FlopsLedger:
    """Return the FLOPs ledger of the mean step. Some step must have tokens."""
    whole = SteadyWindow(0, len(submission.trace), stable=True, verdict="all steps")
    return step_flops(submission, model, work_in(submission.trace, whole))


def part_of_card(submission: Submission, card: AcceleratorCard) -> float | None:
    """Return the part of a card's unit that one device is: 1, or a die or core recognised by its memory; None if unknown.

    A process on the CPU has its share of the physical cores that the run could use. A machine with two sockets has two units.
    """
    device, usable, cores = submission.plan.device, submission.environment.usable_physical_cores, card.cores_per_unit
    if card.cpu is not None:
        # Some of the cores of a CPU with several kinds may be of any kind.
        unknown = usable is None or (len(card.cpu.clusters) > 1 and usable % card.cpu.cores)
        return None if unknown else (usable or 0) / card.cpu.cores * device.nodes / device.count
    if cores is None or cores == 1 or device.backend not in PARTS:
        return 1.0
    memory = submission.environment.devices[0].memory_bytes
    if memory is None or card.memory_gib is None:
        return None
    return min(cores, max(1, round(cores * memory / (card.memory_gib * formats.GIB)))) / cores


def units_per_node(submission: Submission, card: AcceleratorCard | None) -> float:
    """Return the units of a card that a run used on each machine: its devices, or the part of a CPU whose cores it could use."""
    device = submission.plan.device
    part = part_of_card(submission, card) if card is not None and card.cpu is not None else 1.0
    return device.count / device.nodes * (1.0 if part is None else part)


def probed_flop_per_s(submission: Submission) -> Known:
    """Return the sum of the matrix rates of the devices in the probe, FLOP/s: the better of before and after training.

    The better rate counts: a disturbed probe would inflate MAFU. Each process probes its own device.
    """
    probe, count = submission.probe, submission.plan.device.count
    if probe is None:
        return Known(None, "the matrix rate was not probed")
    if submission.plan.model.fp8_products:
        return Known(None, f"the probe multiplies in {probe.dtype.value}, and the matrices of the blocks multiply in fp8")
    many = f"{count} x " if count > 1 else ""
    reached = max(probe.before_flop_per_s, probe.after_flop_per_s or 0.0)
    formula = f"of {many}{formats.flop_per_s(reached)} {probe.dtype.value} in products of {probe.size} x {probe.size} matrices"
    return Known(count * reached, formula)


UTILISATION = {
    "model_flop_per_s": "model FLOPs of a step / time of a step, over all devices",
    "mfu": "model FLOPs of a step / (time of a step x sum of dense peaks)",
    "mfu_palm": "(6 N_mm + 12 layers x heads x head_dim x tokens in a row) per slot / (time x sum of dense peaks), as PaLM counts",
    "hfu": "model FLOPs and recomputed ones / (time of a step x sum of dense peaks)",
    "mafu": "model FLOPs of a step / (time of a step x matrix rate that the devices reached in the better probe, before or after training)",
}
"""Figure -> its formula in words."""
ENERGY = {"energy_per_step_j": "steps", "energy_per_sample_j": "samples", "energy_per_1k_tokens_j": "thousands of real tokens"}
"""Figure, of all devices and with idle power -> what it is per."""


@dataclass(frozen=True, slots=True)
class Physics:
    """FLOPs, utilisation and energy of the steady window."""

    flops: FlopsLedger | None
    """The ledger of the mean step, over all replicas."""
    reason: str | None
    """Why there is none."""
    figures: dict[str, Known]
    """By the key of their quantity: those of `UTILISATION` and `ENERGY`."""


def physics(submission: Submission, derived: Derived, model: ModelCard | None, accelerator: AcceleratorCard | None) -> Physics:
    """Return utilisation and energy from a submission, its derived figures, and the cards of its model and accelerator, if known.

    FLOPs are counted over the steady window.
    """
    work = work_in(submission.trace, derived.window) if derived.window and derived.window.steps else None
    energy = _energy(submission, work)
    reason = _no_ledger(submission, work, model)
    if reason is not None or work is None or model is None:
        return Physics(None, reason, dict.fromkeys(UTILISATION, Known(None, reason or "")) | energy)
    ledger = step_flops(submission, model, work)
    step_s = work.seconds / work.steps
    peak, hardware_peak = (peak_flop_per_s(submission, accelerator, ledger, recomputed=recomputed) for recomputed in (False, True))
    # PaLM's count is that of rows of the mean width.
    counts = work.counts
    width = max(1, round(counts.slot_tokens / counts.rows)) if counts.rows else submission.plan.data.sequence_length
    row = replace(shape_of_plan(submission.plan, model), micro_batch=1, sequence_length=width)
    figures = {"model_flop_per_s": Known(ledger.model_flops / step_s, UTILISATION["model_flop_per_s"])}
    for name, flops, rate in (
        ("mfu", ledger.model_flops, peak),
        ("mfu_palm", palm_flops(row) / width * counts.slot_tokens / work.steps, peak),
        ("hfu", ledger.hardware_flops, hardware_peak),
        ("mafu", ledger.model_flops, probed_flop_per_s(submission)),
    ):
        figures[name] = Known(flops / (step_s * rate.value), f"{UTILISATION[name]}: {rate.reason}") if rate.value is not None else rate
    if (figures["mafu"].value or 0.0) > 1:
        figures["mafu"] = Known(None, "training was faster than the probe, which was disturbed, or is slow in this format")
    return Physics(ledger, None, figures | energy)


def step_flops(submission: Submission, model: ModelCard, work: Work) -> FlopsLedger:
    """Return the ledger of the mean step of a window, scaled to its real tokens."""
    ledger = flops_ledger(measured_shape(submission.plan, model, work))
    factor = work.counts.real_tokens / work.steps / ledger.tokens
    lines = tuple(FlopsLine(line.key, round(line.flops * factor), line.formula) for line in ledger.lines)
    return FlopsLedger(lines, round(ledger.tokens * factor), round(ledger.not_needed * factor))


def _no_ledger(submission: Submission, work: Work | None, model: ModelCard | None) -> str | None:
    if work is None:
        return "no steady step was measured"
    if not work.counts.real_tokens:
        return "the steps hold no tokens"
    if model is None:
        return f"there is no card of the model {submission.plan.model.key}"
    return shape_problem(submission.plan, model)


def _energy(submission: Submission, work: Work | None) -> dict[str, Known]:
    """Return joules per step, per sample and per thousand tokens of the window."""
    used = submission.utilisation.energy if submission.utilisation else None
    reason = "no steady step was measured" if work is None else "energy was not measured" if used is None else used.reason
    if work is None or used is None or used.joules is None or not used.window_s:
        return dict.fromkeys(ENERGY, Known(None, reason or "the time between the two readings is not known"))
    # Readings are not taken exactly at the steps, so convert them to watts first.
    joules = used.joules / used.window_s * work.seconds
    source = "the hardware's counter" if used.source == "counter" else "power integrated over time"
    return {
        name: Known(joules / amount, f"mean power from {source} x time / {what}") if amount else Known(None, f"no {what} were counted")
        for (name, what), amount in zip(ENERGY.items(), (work.steps, work.counts.documents, work.counts.real_tokens / 1_000), strict=True)
    }
