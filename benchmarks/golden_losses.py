"""Write the reference losses of a smoke workload: `python benchmarks/golden_losses.py SUBMISSION...`.

Run it after a change that is meant to change losses, and give the reason in the commit. The submissions come from
`tunemark run W --steps 240 --seconds 600` on a CPU in fp32.
"""

import sys
from pathlib import Path

from tunemark.schema.derive import smoothed_loss
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.reading import read_record
from tunemark.schema.records.submission import Submission

STEPS = (10, 50, 100, 150, 200, 240)
TOLERANCES = {"smoke-lora": 0.003, "smoke-full": 0.08, "smoke-bert": 0.15}
"""Relative. With LoRA on random weights the loss hardly moves; the others fall steeply, in other formats a little earlier or later."""


def main() -> None:
    """Write data/workloads/golden/WORKLOAD.toml of each submission named on the command line."""
    facts = FactBase.of_project()
    for name in sys.argv[1:]:
        record = read_record(Path(name).read_bytes())
        assert isinstance(record, Submission)
        precision = record.plan.precision
        lines = [
            f'key = "{record.plan.workload}"',
            f'workload_sha256 = "{facts.workload_sha256(record.plan.workload)}"',
            f"seed = {record.plan.measurement.seed}",
            f"tolerance = {TOLERANCES[record.plan.workload]}",
            f'source = "a run on a {record.plan.device.backend.value} in {precision.compute.value}, torch {record.environment.packages["torch"]}"',
            "",
            "[losses]",
            *(f"{step} = {smoothed_loss(record.trace, step):.4f}" for step in STEPS if step <= len(record.trace)),
        ]
        path = facts.root / "workloads" / "golden" / f"{record.plan.workload}.toml"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
