"""A run on other machines: validated by planning it for them, and then written in the words of a batch system or cloud."""

import math
import shlex
from dataclasses import dataclass, replace

from tunemark.harness.emit.arguments import run_arguments
from tunemark.harness.emit.target import Target, target_of
from tunemark.harness.planning import refuse_unsupported, resolve
from tunemark.harness.run_options import RunOptions
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import Backend, Method, Strategy

PORT = 29_500
DAY_S = 86_400
MARGIN_S = 900
"""For queueing between nodes, imports and the first download."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a script runs."""

    plan: Plan
    target: Target
    arguments: tuple[str, ...]
    """Of `tunemark`, without those that differ from node to node."""

    @property
    def name(self) -> str:
        """Return its name in a queue."""
        return f"tunemark-{self.plan.workload}"

    @property
    def hours_minutes(self) -> tuple[int, int]:
        """Return the time to ask for: the worker's own limit and a margin; a day where it has none."""
        limit = self.plan.measurement.timeout_s
        minutes = math.ceil((DAY_S if limit is None else limit + MARGIN_S) / 60)
        return divmod(minutes, 60)

    @property
    def time_reason(self) -> str:
        """Return where the time comes from, and how to ask for another."""
        if self.plan.measurement.timeout_s is not None:
            return "Time: that of --timeout, and a margin for imports and downloads."
        return "Time: a day, since no --timeout was given. It is a guess: `sbatch --time=HH:MM:SS FILE`, or plan with --timeout SECONDS."

    @property
    def extras(self) -> tuple[str, ...]:
        """Return the optional parts of Tunemark that it needs beside `make setup`; Neuron machines are set up otherwise."""
        plan = self.plan
        qlora = plan.method is Method.QLORA or plan.optimizer.name.endswith("8bit")
        wanted = {
            "nvidia": self.target.card.vendor == "NVIDIA",
            "qlora": qlora,
            "distributed": plan.device.strategy in {Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3},
        }
        if self.target.backend is Backend.NEURON:
            return ()
        return tuple(name for name, needed in wanted.items() if needed)

    def command(self, program: str, rank: str, head: str) -> str:
        """Return the command of a node, one option a line; `rank` and `head` are words of the shell that it runs in."""
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


def job_of(workload: str, chosen: RunOptions, facts: FactBase, accelerator: str | None, instance: str | None) -> Job:
    """Return the job of what was asked.

    Raises
    ------
    TunemarkError
        For what cannot be planned for the target: an unknown name or value, or what its devices cannot do.

    """
    target = target_of(facts, accelerator, instance, chosen.devices, chosen.nodes)
    resolved = resolve(workload, facts, target.machine(), replace(chosen.options(), devices=target.devices, nodes=target.nodes))
    refuse_unsupported(resolved)
    arguments = run_arguments(workload, chosen)
    arguments += ["--devices", str(target.devices)]
    if resolved.plan.device.strategy is not Strategy.SINGLE:
        arguments += ["--strategy", resolved.plan.device.strategy.value]
    return Job(resolved.plan, target, tuple(arguments))
