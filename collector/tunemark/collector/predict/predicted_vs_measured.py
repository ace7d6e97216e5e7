"""Predicted memory beside what was measured, line by line."""

from collections.abc import Iterable
from dataclasses import dataclass

from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.memory_states import MemoryLedger, MemoryLine
from tunemark.schema.physics.training_shape import shape_of_plan, shape_problem
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import MemoryReading, ModelFacts, Submission

MEASURED = {
    "base weights": ("weights", "4-bit weights", "4-bit scales"),
    "adapters": ("adapters",),
    "gradients": ("gradients",),
    "optimizer states": ("optimizer states", "fp32 master weights"),
}
"""What the harness weighs -> the lines of the estimate that it is made of."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Bytes of one kind, predicted and measured."""

    key: str
    """What it is."""
    group: str
    """`state`: tensors that were weighed. `peak`: of the allocator. `part`: predicted only."""
    predicted_bytes: int | None
    measured_bytes: int | None
    note: str
    """The formula, and what keeps the two from being compared."""

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1."""
        return self.predicted_bytes / self.measured_bytes - 1 if self.predicted_bytes is not None and self.measured_bytes else None


def memory_beside(submission: Submission, card: ModelCard | None) -> tuple[tuple[Beside, ...], str | None]:
    """Return the lines, and why there is no prediction, or None."""
    reason = _no_prediction(submission.plan, card)
    if reason is not None or card is None:
        return (), reason
    ledger = estimate_memory(shape_of_plan(submission.plan, card))
    lines = [*_states(ledger, submission), *_peaks(ledger, submission)]
    return (*lines, *_parts(ledger.lines)), None


def _no_prediction(plan: Plan, card: ModelCard | None) -> str | None:
    if card is None:
        return f"there is no card of the model {plan.model.key}"
    if plan.device.offload == "optimizer":
        return "the memory model does not know states of the optimizer in host memory while parameters stay on the device"
    if plan.device.pipeline_parallel > 1:
        return "the memory model does not know pipeline stages"
    return shape_problem(plan, card)


def _states(ledger: MemoryLedger, submission: Submission) -> Iterable[Beside]:
    """Yield tensors of one process: those that are sharded with the part that it holds."""
    model = submission.model
    for key, names in MEASURED.items():
        parts = [line for line in ledger.lines if line.key in names]
        weighed = _weighed(key, model, stateless=_stateless(submission))
        if parts or weighed:
            formula = "; ".join(line.formula for line in parts)
            yield Beside(key, "state", sum(line.bytes for line in parts), weighed, _sentence(formula, _not_weighed(key, model)))


def _stateless(submission: Submission) -> bool:
    """Return whether the optimizer took its steps without keeping anything between them."""
    return submission.plan.optimizer.name == "sgd" and len(submission.trace) > 0


def _weighed(key: str, model: ModelFacts | None, *, stateless: bool) -> int | None:
    if model is None:
        return None
    return {
        "base weights": sum(model.parameter_bytes.values()) - model.adapter_bytes,
        "adapters": model.adapter_bytes,
        # Nothing is trained without gradients: in older records 0 stands for gradients that were not seen.
        "gradients": model.gradient_bytes or None,
        # In older records 0 also stands for a run that ended before there were states to be weighed.
        "optimizer states": model.optimizer_state_bytes if stateless else model.optimizer_state_bytes or None,
    }[key]


def _not_weighed(key: str, model: ModelFacts | None) -> str:
    if model is None:
        return "the run ended before the model was weighed"
    reasons = {"gradients": model.gradient_bytes_reason, "optimizer states": model.optimizer_state_bytes_reason}
    return reasons.get(key) or ""


def _peaks(ledger: MemoryLedger, submission: Submission) -> Iterable[Beside]:
    memory = submission.memory
    formula = f"all that is alive when {_MOMENTS[ledger.peak_moment]}"
    yield Beside("peak allocated", "peak", ledger.peak_allocated, *_read(memory.device_allocated, formula))
    yield Beside("peak reserved", "peak", ledger.peak_reserved, *_read(memory.device_reserved, "the same, and what the allocator caches"))


_MOMENTS = {
    "loss": "the loss is computed",
    "backward begins": "the backward pass begins",
    "backward ends": "the backward pass ends",
    "optimizer": "weights are updated",
}


def _read(reading: MemoryReading, formula: str) -> tuple[int | None, str]:
    return reading.peak_bytes, _sentence(formula, reading.method or "", reading.reason or "")


def _parts(lines: Iterable[MemoryLine]) -> Iterable[Beside]:
    """Yield the lines of the estimate that nothing weighs one by one."""
    weighed = {name for names in MEASURED.values() for name in names}
    for line in lines:
        if line.key not in weighed:
            yield Beside(line.key, "part", line.bytes, None, line.formula)


def _sentence(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
