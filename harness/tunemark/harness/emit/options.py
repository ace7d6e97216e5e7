"""What `tunemark plan` takes to write a script instead of showing the plan."""

from enum import StrEnum
from typing import Annotated

import typer

from tunemark.harness.emit.job import job_of
from tunemark.harness.emit.skypilot import skypilot
from tunemark.harness.emit.slurm import slurm
from tunemark.harness.run_options import RunOptions
from tunemark.schema.facts.fact_base import FactBase

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
    job = job_of(workload, chosen, facts, accelerator, instance)
    return slurm(job) if kind is Format.SLURM else skypilot(job)
