"""Errors of memory as somebody would type it: printed conditions and a usual software stack, without what is known of a document's own code.

`low` counts figures that are predicted more than 10% too low. `inside` counts those in the range that `tunemark estimate` prints without
`--stack`: from the lower end of the leanest stack to the upper end of the heaviest. Figures are those of documents whose quantity (allocated or reserved) is known.
`aside` are those kept aside while terms were chosen (see `kept_aside`), `seen` the others; `named` are the same with `--stack` where one is known.
"""

import hashlib
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tunemark.collector.audit.load import load_evidence
from tunemark.collector.audit.published_shape import published_shape
from tunemark.collector.predict.estimate import memory_on
from tunemark.collector.predict.predicted_vs_measured import predicted_bytes
from tunemark.schema.formats import GIB
from tunemark.schema.plan_search import has_bf16
from tunemark.schema.records.published import Conditions, PublishedResult
from tunemark.schema.vocabulary import Dtype, PublishedStatus

ROOT = Path(__file__).parents[1]
STATED = {"loss": "loss", "optimizer": "optimizer", "gradient_checkpointing": "checkpointing"}


def kept_aside(source: str, conditions: Conditions) -> bool:
    """Return True for figures that nobody looked at while terms were chosen: two whole documents, and a quarter of the steps of the others."""
    step = f"{source} {conditions.model} {conditions.method} {conditions.accelerator_count}"
    return source in {"019", "022"} or int(hashlib.sha256(step.encode()).hexdigest(), 16) % 4 == 0


def errors(root: Path) -> Iterator[tuple[set[str], float, bool]]:
    """Yield for each figure its lines of the table, predicted over published minus 1, and whether the interval holds it. The global batch states the micro-steps."""
    evidence = load_evidence(root)
    readings = {reading.source: reading for reading in evidence.facts.known.memory_readings}
    for record in evidence.records:
        if not isinstance(record, PublishedResult) or record.source not in readings or record.status is not PublishedStatus.OK:
            continue
        conditions, reading = record.conditions, readings[record.source]
        shape, device = published_shape(conditions, evidence.facts, None), evidence.facts.accelerators.get(conditions.accelerator or "")
        if shape is None or record.id in reading.left_out or conditions.settings.get("expert_parallel", 1) != 1:
            continue
        micro_steps = conditions.gradient_accumulation or max(1, (conditions.global_batch or 1) // (shape.micro_batch * shape.world_size))
        shape = replace(shape, gradient_accumulation=micro_steps)
        total = int(device.memory_gib * GIB) if device and device.memory_gib else None
        for name, quantity in (("peak_memory_bytes", reading.quantity), ("device_memory_bytes", "in use")):
            claim = record.claims.get(name)
            part = "aside" if kept_aside(record.source, conditions) else "seen"
            for stack, lines in ((None, {record.source, "all", part}), (reading.stack, {"named", f"named, {part}"})) if claim else ():
                chosen = shape.parameters is Dtype.FP16 and (device is None or has_bf16(device))
                fixed = tuple(field for setting, field in STATED.items() if setting in conditions.settings)
                memory = memory_on(shape, stack, (*fixed, *(["parameters"] if chosen or "parameters" in conditions.settings else [])))
                sizes, lows, highs = zip(*(predicted_bytes(ledger, quantity, total) for ledger in memory.ledgers.values()), strict=True)
                size = sizes[list(memory.ledgers).index(memory.stack)]
                yield lines, size / claim.value - 1, min(lows) <= claim.value <= max(highs)


def main() -> None:
    """Print the errors by document."""
    found = list(errors(ROOT))
    print(f"{'source':14}{'figures':>9}{'median error':>14}{'> 10% low':>11}{'inside':>9}")
    for source in sorted({line for row in found for line in row[0]}, key=lambda line: (not line.isdigit(), line)):
        of_source = [(error, inside) for lines, error, inside in found if source in lines]
        error = statistics.median(abs(error) for error, _ in of_source)
        low, inside = (sum(each) / len(of_source) for each in zip(*((error < -0.1, inside) for error, inside in of_source), strict=True))
        print(f"{source:14}{len(of_source):>9}{error:>14.1%}{low:>11.1%}{inside:>9.1%}")


if __name__ == "__main__":
    main()
