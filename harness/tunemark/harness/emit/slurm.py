"""A batch script for SLURM: `sbatch` it from the root of a checkout on a file system that all nodes share."""

import shlex

from tunemark.harness.emit.job import PORT, Job
from tunemark.schema.vocabulary import Backend

NEURON_ENVIRONMENT = (
    "# .venv is one with the Neuron stack beside Tunemark: README, `On a Neuron machine`. Name another with TUNEMARK=PROGRAM.",
    "# Not yet tried on such a machine.",
)
PROGRAM = '"$TUNEMARK"'


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
    on_node = job.command(PROGRAM, '"$SLURM_NODEID"', f'"$HEAD_NODE:{PORT}"')
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
