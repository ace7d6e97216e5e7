"""A submission with what follows from it: the quantities that the other modules of the gate compare."""

import tomllib
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tunemark.schema.derive import Derived
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.flops import FlopsLedger
from tunemark.schema.physics.memory import Weights, count_weights
from tunemark.schema.physics.training_shape import BYTES, TrainingShape, shape_of_plan, shape_problem
from tunemark.schema.physics.utilisation import mean_step, peak_flop_per_s, probed_flop_per_s
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import SHORT_NAMES, Gate
from tunemark.schema.vocabulary import HOST_INTERVAL_S, NATIVE, SHARDED_STATES, SHARDED_WEIGHTS, Backend, Dtype, Phase, Status, Strategy

MANY_STEPS, SOME_SAMPLES, MANY_SAMPLES = 20, 10, 50
"""Steps from which a shape is no chance; samples of which a mean has a standard error of a third, and of a seventh, of their spread."""
Floats = NDArray[np.float64]
STACKS = tomllib.loads(Path(__file__).with_name("stacks.toml").read_text(encoding="utf-8"))
"""What a software stack can have, by back end."""


@dataclass
class Run:
    """A submission with the cards that it names and the figures that follow from it."""

    s: Submission
    facts: FactBase
    derived: Derived | None

    def __post_init__(self) -> None:
        s = self.s
        self.plan, self.environment, self.trace, self.process = s.plan, s.environment, s.trace, s.process
        self.device, self.rules, self.use, self.memory = s.plan.device, s.plan.measurement, s.utilisation, s.memory
        self.status, self.ok = s.outcome.status, s.outcome.status is Status.OK
        self.backend = s.plan.device.backend
        self.cpu, self.neuron = self.backend is Backend.CPU, self.backend is Backend.NEURON_XLA
        self.gpu = self.backend in {Backend.CUDA, Backend.ROCM}
        self.steps, self.count = len(s.trace), s.plan.device.count
        self.phases = [mark.phase for mark in s.timeline]
        # Parts that the weights and the optimizer states are divided into, and parts that each process surely holds only one of: FSDP2
        # shards parameters, gradients and states alike.
        self.weight_shards = self.count if self.device.strategy in SHARDED_WEIGHTS else self.device.tensor_parallel
        self.state_shards = self.count if self.device.strategy in SHARDED_STATES else 1
        self.own_shards = self.count if self.device.strategy is Strategy.FSDP2 else 1
        self.used_cpu_s = None if s.process.user_s is None else s.process.user_s + (s.process.system_s or 0.0)
        self.powers_w = [use.power_mean_w for use in self.use.devices if use.power_mean_w is not None] if self.use else []
        # Step times in seconds, and finite losses.
        self.times: Floats = np.asarray(s.trace.step_times_s)
        self.losses: Floats = np.asarray([loss for loss in s.trace.loss if loss is not None])
        # Seconds from the first step to the last, and when the phase train and the one after it begin.
        self.trained_s = s.trace.completed_at_s[-1] - s.trace.started_at_s if self.steps else 0.0
        self.train_begins_s = next((mark.at_s for mark in s.timeline if mark.phase is Phase.TRAIN), None)
        self.train_ends_s = next((after.at_s for mark, after in pairwise(s.timeline) if mark.phase is Phase.TRAIN), None)
        self.linux = s.environment.os.startswith("Linux")
        self.loaded = Phase.LOAD in self.phases
        self.sampled_often = self.use is not None and self.use.samples >= SOME_SAMPLES
        self.sampled_surely = float(self.times[SOME_SAMPLES:].sum()) > SOME_SAMPLES * HOST_INTERVAL_S

    # Cards

    @cached_property
    def card(self) -> AcceleratorCard | None:
        """The accelerator card."""
        return self.facts.accelerators.get(self.device.accelerator or "")

    @cached_property
    def model(self) -> ModelCard | None:
        """The model card, if the plan's shape can be computed on it; with the vocabulary of the text that random weights were made for."""
        card, ran = self.facts.models.get(self.plan.model.key), self.s.model
        if card is None or shape_problem(self.plan, card) is not None:
            return None
        if self.plan.data.tokenizer != "word-level" or ran is None:
            return card
        copies = 1 if card.tied_embeddings or self.plan.model.labels else 2
        weights = count_weights(replace(shape_of_plan(self.plan, card), tensor_parallel=1))
        head = self.plan.model.labels * (card.hidden_size + 1) if self.plan.model.labels else 0
        missing = weights.plain + weights.quantised + weights.adapters + head - ran.parameters
        words = card.vocabulary - round(missing / (copies * card.hidden_size))
        return card.model_copy(update={"vocabulary": words}) if 0 < words < card.vocabulary else card

    @cached_property
    def shape(self) -> TrainingShape | None:
        """The shape of a step."""
        return shape_of_plan(self.plan, self.model) if self.model else None

    @cached_property
    def weights(self) -> Weights | None:
        """The weights of the model and its adapters, by the card."""
        return count_weights(self.shape) if self.shape else None

    # Time

    def lasted(self, phase: Phase) -> list[float]:
        """Return the durations of a phase that has ended."""
        return [after.at_s - mark.at_s for mark, after in pairwise(self.s.timeline) if mark.phase is phase]

    @cached_property
    def window_s(self) -> float | None:
        """Time of the steady window."""
        window = self.derived.window if self.derived else None
        return float(self.times[window.first : window.stop].sum()) if window and window.steps else None

    @property
    def compiles(self) -> bool:
        """True if the plan compiles graphs."""
        model = self.plan.model
        return model.compile != "none" or model.attention == "flex_attention" or self.neuron or self.backend in NATIVE

    # Processes and weights

    @cached_property
    def trained_bytes(self) -> float | None:
        """Bytes of a trained weight, if all have one format."""
        names = self.s.effective.trainable_dtypes if self.s.effective else ()
        formats = {SHORT_NAMES.get(name.removeprefix("torch.")) for name in names}
        only = next(iter(formats)) if len(formats) == 1 else None
        return BYTES[Dtype(only)] if only else None

    def gate(self, name: str) -> Gate | None:
        """Return a gate by name."""
        return next((gate for gate in self.s.gates if gate.name == name), None)

    # Work

    @cached_property
    def ledger(self) -> FlopsLedger | None:
        """The FLOPs of the mean step; None without tokens, or if the model has no card."""
        return mean_step(self.s, self.model) if self.model and sum(self.trace.real_tokens) else None

    @cached_property
    def flops(self) -> Floats:
        """FLOPs that are executed in each step, of shape (steps,), without what autograd skips; empty if they are not known."""
        tokens, ledger = np.asarray(self.trace.real_tokens, dtype=float), self.ledger
        return ledger.executed / max(1, ledger.tokens) * tokens if ledger else np.empty(0)

    @cached_property
    def peak(self) -> float | None:
        """Dense peak of all devices in FLOP/s, for the formats of the plan."""
        return peak_flop_per_s(self.s, self.card, self.ledger, recomputed=True).value

    @cached_property
    def probed(self) -> float | None:
        """Matrix rate of all devices in the probe, in FLOP/s."""
        return probed_flop_per_s(self.s).value

    @cached_property
    def device_bytes(self) -> int | None:
        """Memory of a device, by its driver or by its card."""
        reported = max((device.memory_bytes or 0 for device in self.environment.devices), default=0)
        if self.cpu:
            return self.environment.memory_bytes
        return reported or (int(self.card.memory_gib * 2**30) if self.card and self.card.memory_gib else None)
