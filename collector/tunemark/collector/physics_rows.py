"""FLOPs, utilisation, energy and memory of a run as rows: computed with the cards of data/, each with its formula or its reason."""

from collections.abc import Iterator

from tunemark.collector.predict.predicted_vs_measured import Beside, memory_beside
from tunemark.collector.rows import Row, Rows, text
from tunemark.schema.derive import Derived
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.utilisation import Physics, physics
from tunemark.schema.records.submission import Submission

PEAK = "peak allocated"


class PhysicsRows:
    """What follows from a submission and the facts."""

    def __init__(self, submission: Submission, derived: Derived, facts: FactBase) -> None:
        plan = submission.plan
        model = facts.models.get(plan.model.key)
        accelerator = facts.accelerators.get(plan.device.accelerator or "")
        self._submission = submission
        self._found: Physics = physics(submission, derived, model, accelerator)
        self._memory, self._no_memory = memory_beside(submission, model)

    def columns(self) -> Row:
        """Return what the row of a result holds of it."""
        used = self._submission.utilisation.energy if self._submission.utilisation else None
        ledger = self._found.flops
        return {
            **{name: known.value for name, known in self._found.figures().items()},
            "flop_per_step": ledger.model_flops if ledger else None,
            "predicted_memory_bytes": next((line.predicted_bytes for line in self._memory if line.key == PEAK), None),
            **({} if used is None else {"energy_source": used.source, "energy_j": used.joules, "energy_window_s": used.window_s}),
        }

    def tables(self, result_id: str) -> Rows:
        """Return the rows of `flops` and `memory_lines`."""
        lines = self._found.flops.lines if self._found.flops else ()
        return {
            "flops": [
                {"result_id": result_id, "position": position, "class": line.key, "flop": line.flops, "formula": line.formula}
                for position, line in enumerate(lines, start=1)
            ],
            "memory_lines": [_memory_row(result_id, position, line) for position, line in enumerate(self._memory, start=1)],
        }

    def facts(self) -> Iterator[Row]:
        """Yield each figure with its formula, and each that is not known with its reason."""
        for name, known in self._found.figures().items():
            yield {"topic": "derived", "name": name, "value": text(known.value), "reason": known.reason}
        if self._no_memory is not None:
            yield {"topic": "derived", "name": "predicted_memory_bytes", "value": None, "reason": self._no_memory}


def _memory_row(result_id: str, position: int, line: Beside) -> Row:
    return {
        "result_id": result_id,
        "position": position,
        "line": line.key,
        "kind": line.group,
        "predicted_bytes": line.predicted_bytes,
        "measured_bytes": line.measured_bytes,
        "note": line.note,
    }
