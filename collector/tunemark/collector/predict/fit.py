"""The model of throughput: a roofline with constants that are fitted to accepted results.

    log(device-seconds per token) = log(sum over terms of factor x seconds at the limit) + effects + noise

A *factor* is how many times longer than at the limit a class of work takes; it depends on how far the software is tuned, and on the
training loop itself. An *effect* is how much slower a software, a generation, an accelerator, a method or a model is. All have a normal
prior in log space (`FACTORS`, `EFFECTS`, `SLOPES`, `SPREADS`). A parameter without rows keeps its prior: an unseen accelerator gets
the mean of its generation, an unseen training loop the mean of its level, each with the uncertainty of an unseen one. The posterior is
Laplace's approximation, found by Gauss-Newton steps (Gelman et al., Bayesian Data Analysis, chapters 4 and 15).

Noise has Student's t distribution, so that an outlier has little influence (Lange, Little and Taylor 1989). All rows of a
training loop together have at most the weight of `MOST_ROWS` rows, so that one benchmark with many entries does not dominate.

Standard deviations were chosen by leaving out whole sources, levels, accelerators and models (`cross_validation`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.physics.architecture import block_linears
from tunemark.schema.physics.flops import flops_ledger
from tunemark.schema.physics.training_shape import BYTES, TrainingShape
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method, SoftwareLevel

# Work at the limits of an accelerator --------------------------------------------------------------

Term = Literal["matmul", "attention", "elementwise", "adapters", "scores", "dequantisation", "exchange"]
TERMS: tuple[Term, ...] = get_args(Term)

MEANING: dict[Term, str] = {
    "matmul": "matrix products, recomputed ones included, over the dense peak of the format that multiplies",
    "attention": "attention as s^2 pairs, heads filled up to a power of two, over the dense peak of the format of the activations",
    "elementwise": "norms, activations, residuals and rotations: bytes over memory bandwidth",
    "adapters": "work of adapters, with inputs cast to their format, dropped out and kept: bytes over memory bandwidth",
    "scores": "attention scores, if the kernel writes them (eager): bytes over memory bandwidth",
    "dequantisation": "4-bit weights expanded before each product, once per micro-step and pass: bytes over memory bandwidth",
    "exchange": "weights that sharding gathers and gradients that it scatters: bytes over the link between devices or to the host",
}
HOST_LINK_BYTES_PER_S = 32e9
"""PCI Express 4.0 x16, one direction: the card of an accelerator does not describe its host."""
TERA, GIGA = 1e12, 1e9
SIXTEEN_BIT = {Dtype.BF16: Dtype.FP16, Dtype.FP16: Dtype.BF16}


@dataclass(frozen=True, slots=True)
class Missing:
    """The reason why there is no figure."""

    reason: str


def work_seconds(shape: TrainingShape, accelerator: AcceleratorCard) -> dict[Term, float] | Missing:
    """Return seconds of one device per token of its micro-step, by class of work, each at the limit of the card.

    Tensor-parallel devices share the tokens: their seconds add up to the seconds of one device that does all the work.

    Matrix products use the format of the activations, also in bitsandbytes' 4-bit layers unless configured otherwise. The default
    of `bnb_4bit_compute_dtype` is fp32; assuming it halves the errors of the QLoRA rows of held-out models.
    """
    computed = shape.autocast or shape.activations
    # Devices without bf16 run 16-bit work in fp16.
    other = SIXTEEN_BIT.get(computed, computed)
    peak, bandwidth = accelerator.peak_tflops.get(computed, accelerator.peak_tflops.get(other)), accelerator.memory_bandwidth_gb_s
    if peak is None:
        return Missing(f"the card of {accelerator.name} has no dense peak for {computed.value}")
    if bandwidth is None:
        return Missing(f"the card of {accelerator.name} has no memory bandwidth")
    link = HOST_LINK_BYTES_PER_S if shape.offload else (accelerator.interconnect_gb_s or 64) / 2 * GIGA
    flops, moved = work_of(shape)
    seconds = {term: amount / (peak * TERA * shape.tokens) for term, amount in flops.items()}
    for term, size in moved.items():
        seconds[term] = size / ((link if term == "exchange" else bandwidth * GIGA) * shape.tokens)
    return seconds


@lru_cache(maxsize=4096)
def work_of(shape: TrainingShape) -> tuple[dict[Term, float], dict[Term, float]]:
    """Return the FLOPs and the moved bytes of a micro-step of one device, by class of work. They are the same on every accelerator."""
    # All s^2 pairs count, recomputed ones included. Kernels work in tiles: a head of 96 takes as long as one of 128.
    ledger, recomputes = flops_ledger(shape, "square"), shape.checkpointing is Checkpointing.FULL
    attention = ledger.of("forward_attention", "backward_attention") + (ledger.of("forward_attention") if recomputes else 0)
    tile = 2 ** math.ceil(math.log2(shape.model.head_dim)) / shape.model.head_dim
    return {"matmul": ledger.executed - attention, "attention": attention * tile}, moved_bytes(shape)


def moved_bytes(shape: TrainingShape) -> dict[Term, float]:
    """Return the bytes that a device moves in a micro-step, by class of work.

    A block reads and writes about ten tensors as wide as the model (two norms, two residuals, rotations) and four as wide as
    its feed-forward layer (gate, activation, product); the head three as wide as the vocabulary.
    """
    model = shape.model
    # Passes of activations through memory: forward, twice that backward, and the recomputed forward.
    passes = 4 if shape.checkpointing is Checkpointing.FULL else 3
    block = 10 * model.hidden_size + 4 * model.intermediate_size * (model.active_experts or 1)
    elementwise = shape.slots * (model.layers * block * passes + 3 * model.vocabulary * 2) * BYTES[shape.activations]
    # Adapters: input cast and dropped out, output added, in their format.
    widths = sum((3 if shape.lora_dropout else 1) * linear.inputs + 2 * linear.outputs for linear in shape.adapted)
    adapters = shape.slots * model.layers * widths * BYTES[shape.adapters] * passes
    # An eager kernel writes and reads all scores: product, mask, softmax in fp32, cast.
    scores = shape.micro_batch * model.attention_heads * shape.sequence_length**2 * model.layers * 16.0 * passes
    # Weights are read in the forward and backward pass and in recomputation. Each time, bitsandbytes expands a 4-bit layer.
    count = float(model.layers * sum(linear.inputs * linear.outputs * linear.copies for linear in block_linears(model)))
    quantised, uses = shape.method is Method.QLORA, passes - 1
    expanded = count * (BYTES[Dtype.NF4] + BYTES[shape.activations]) * uses if quantised else 0.0
    # Sharding gathers weights as they are stored for each use; full fine-tuning also scatters 16-bit gradients.
    gathers = uses if shape.sharding in {"zero3", "fsdp1", "fsdp2"} else 0
    exchanged = count * ((BYTES[Dtype.NF4] if quantised else 2.0) * gathers + 2.0 * (shape.method is Method.FULL))
    return {
        "elementwise": elementwise,
        "adapters": adapters,
        "scores": scores if shape.attention == "eager" else 0.0,
        "dequantisation": expanded,
        "exchange": 0.0 if shape.world_size == 1 or shape.sharding == "single" else exchanged,
    }


# Combinations and calibration rows -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Combination:
    """A configuration: work of a shape, on an accelerator, with a software stack."""

    accelerator: AcceleratorCard
    """The card of one device."""
    devices: int
    """Number of devices that work together."""
    shape: TrainingShape
    """A micro-step of one device, or of the devices that share a row."""
    level: SoftwareLevel
    """How far the training loop is tuned."""
    stack: str = ""
    """Source of the training loop: a document, `mlperf`, or `measured`; empty for any loop of this level."""
    release: str = ""
    """Version of that software, such as a round of MLPerf."""
    devices_per_row: float = 1.0
    """Devices that share a row (tensor, context and pipeline parallel)."""

    def __post_init__(self) -> None:
        """Refuse counts below 1."""
        if self.devices < 1:
            raise TunemarkError("devices", self.devices, "must be 1 or more")
        if self.devices_per_row < 1:
            raise TunemarkError("devices_per_row", self.devices_per_row, "must be 1 or more")

    @property
    def source(self) -> str:
        """The document or benchmark, without the part of it."""
        return self.stack.split(" ", maxsplit=1)[0]

    @property
    def software(self) -> str:
        """The training loop with its level: a document may have results of several."""
        return f"{self.stack or 'any'} ({self.level})"

    @property
    def generation(self) -> str:
        """Vendor and architecture of the accelerator."""
        return generation_of(self.accelerator)

    @property
    def architecture(self) -> str:
        """The numbers of the model that determine the time per token."""
        return architecture_of(self.shape.model)


def generation_of(card: AcceleratorCard) -> str:
    """Return the vendor and the architecture of an accelerator."""
    architecture = card.architecture or card.key
    return architecture if architecture.startswith(f"{card.vendor} ") else f"{card.vendor} {architecture}"


def architecture_of(model: ModelCard) -> str:
    """Return the numbers that determine the time per token, except the vocabulary; Llama 3 and 3.1 have the same."""
    experts = f", {model.experts} experts" if model.experts else ""
    heads = f"{model.attention_heads}/{model.key_value_heads} heads of {model.head_dim}"
    return f"{model.layers} blocks of {model.hidden_size}/{model.intermediate_size}, {heads}{experts}"


@dataclass(frozen=True, slots=True)
class Observed:
    """A calibration row: a result with its combination and rate."""

    id: str
    """Id of the result, or of the first of several equal ones."""
    config: Combination
    device_seconds_per_token: float
    """Devices x seconds / computed tokens (slots); the inverse is tokens/s per device."""
    terms: dict[Term, float]
    """Seconds per token of each class of work at the limits of the card."""
    basis: str = ""
    """The calculation of the rate."""
    same: tuple[str, ...] = ()
    """Results with the same combination and the same digits, which add no evidence."""

    @property
    def tokens_per_s(self) -> float:
        """Computed tokens per second of all devices together."""
        return self.config.devices / self.device_seconds_per_token

    @property
    def log_seconds(self) -> float:
        """The modelled quantity."""
        return math.log(self.device_seconds_per_token)


def observe(result_id: str, config: Combination, tokens_per_s: float, basis: str = "") -> Observed | Missing:
    """Return a calibration row from tokens/s of all devices together, or the reason why it cannot be one."""
    terms = work_seconds(config.shape, config.accelerator)
    if isinstance(terms, Missing):
        return terms
    if not (math.isfinite(tokens_per_s) and tokens_per_s > 0):
        return Missing(f"{tokens_per_s:g} tokens/s is not a valid rate")
    return Observed(result_id, config, config.devices / tokens_per_s, terms, basis)


def without_copies(rows: Iterable[Observed]) -> tuple[Observed, ...]:
    """Return rows without those that repeat another row's digits at the same combination: a copy is not a second measurement."""
    first_rows: dict[tuple[object, ...], Observed] = {}
    for row in rows:
        config, shape = row.config, row.config.shape
        key = (
            *(config.accelerator.key, config.devices, config.software, config.release, config.architecture, config.devices_per_row),
            *(shape.method, shape.sequence_length, shape.micro_batch, shape.checkpointing, f"{row.device_seconds_per_token:.4g}"),
        )
        first = first_rows.get(key)
        first_rows[key] = row if first is None else replace(first, same=(*first.same, row.id))
    return tuple(first_rows.values())


# The priors ----------------------------------------------------------------------------------------

Array = NDArray[np.floating[Any]]
STEPS = 60
CLOSE = 1e-3
"""Steps end when no parameter moves by more than this, a tenth of a percent."""


@dataclass(frozen=True, slots=True)
class Prior:
    """A prior distribution, in log space."""

    mean: float
    sd: float
    why: str


FACTORS: dict[Term, Prior] = {
    "matmul": Prior(math.log(1.4), 0.3, "large matrix products reach 50 to 90% of the dense peak"),
    "attention": Prior(math.log(3.0), 0.5, "attention kernels reach 20 to 60%"),
    "elementwise": Prior(math.log(1.5), 0.5, "loops reach 60 to 90% of the bandwidth, and kernels that are not fused move more bytes"),
    "adapters": Prior(math.log(2.0), 0.7, "loops that are not fused cast, drop out and add in separate passes"),
    "scores": Prior(math.log(1.5), 0.7, "several passes over the scores, not fused"),
    "dequantisation": Prior(
        math.log(2.0), 0.5, "expanding 4-bit blocks reaches 30 to 80% of the bandwidth, and the product reads the weights again"
    ),
    "exchange": Prior(math.log(1.5), 0.7, "partly overlapped with computing, partly over a slower link than the card lists"),
}
"""Term -> prior of its factor, how many times longer than at the limit it takes."""
EFFECTS: dict[str, float] = {
    "level": 0.2,
    "level, method": 0.06,
    "stack": 0.25,
    "stack, method": 0.12,
    "release": 0.1,
    "generation": 0.15,
    "stack, generation": 0.1,
    "accelerator": 0.08,
    "stack, accelerator": 0.08,
    "model": 0.08,
}
"""Effect -> standard deviation among its levels, in log space; their mean is zero.

Software differs by how far it is tuned (`level`), by training loop (`stack`), by method, and from round to round (`release`). How
close to the peak a device gets depends on its generation and on the kernels that a loop has for it (`stack, generation`). Devices of
one generation differ in clocks and power (`accelerator`), and shapes suit kernels more or less (`model`).
"""
SLOPES: dict[str, Prior] = {
    "devices doubled": Prior(0.03, 0.03, "a few percent for each doubling of the devices"),
    "devices per row doubled": Prior(0.05, 0.05, "devices that share a row lose more than devices with separate rows"),
}
SPREADS = {"factor of level": 0.3, "factor of stack": 0.2}
"""Standard deviation in log space of the factors of a level about the common ones, and of a training loop about its level's."""
LINK = 3
"""The spread of links is larger by this factor: they belong to the machine, which cards do not describe."""
NOISE = 0.08
"""Scale of a row around the model, in log space."""
FREEDOM = 4
"""Degrees of freedom of the noise."""
MOST_ROWS = 40
"""Rows of one training loop count at most as this many."""


@dataclass(frozen=True, slots=True)
class LogPrediction:
    """A prediction in log space."""

    log_seconds: float
    """Logarithm of device-seconds per token."""
    sd: float
    """Standard deviation of one further row: parameters, unseen levels, and noise."""


# The fit -------------------------------------------------------------------------------------------


class Design:
    """The parameters that rows depend on. All arrays have a last column for "no parameter", which is always 0."""

    def __init__(self, rows: Sequence["Parameters"], names: Sequence[str]) -> None:
        place = {name: number for number, name in enumerate(names)}
        none = len(names)
        self.seconds = np.array([[row.terms[term] for term in TERMS] for row in rows]).reshape(len(rows), len(TERMS))
        self.effects = np.zeros((len(rows), none + 1))
        self.factors = np.full((len(rows), len(TERMS), len(SPREADS) + 1), none)
        for line, row in enumerate(rows):
            for name, weight in row.effects.items():
                self.effects[line, place.get(name, none)] = weight
            for number, term in enumerate(TERMS):
                if term in row.factors:
                    self.factors[line, number] = [place.get(name, none) for name in row.factors[term]]
        self.effects[:, none] = 0

    def linear(self, mean: Array, lines: Any = slice(None)) -> tuple[Array, Array]:  # noqa: ANN401 - an index of rows
        """Return log seconds of rows at these parameters, shape (rows,), and their derivatives, shape (rows, parameters)."""
        padded, factors, slopes = np.append(mean, 0.0), self.factors[lines], self.effects[lines].copy()
        parts = self.seconds[lines] * np.exp(padded[factors].sum(axis=2))
        total = parts.sum(axis=1)
        every = np.arange(len(total))
        for term in range(len(TERMS)):
            for kind in range(factors.shape[2]):
                slopes[every, factors[:, term, kind]] += parts[:, term] / total
        predicted = np.log(total) + self.effects[lines] @ padded
        return predicted, slopes[:, :-1]


@dataclass(frozen=True, slots=True)
class Posterior:
    """The posterior: a mean for each parameter, and their covariance."""

    mean: Array
    covariance: Array


@dataclass(frozen=True)
class Fit:
    """The posterior of the parameters that any of the rows depends on."""

    names: tuple[str, ...]
    rows: tuple[Observed, ...]
    design: Design
    posterior: Posterior

    def predict(self, config: Combination) -> LogPrediction | Missing:
        """Return the prediction for a combination, or the reason why there is none."""
        return self.predict_all([config])[0]

    def predict_all(self, configs: Sequence[Combination]) -> list[LogPrediction | Missing]:
        """Return the prediction for each combination, or the reason why there is none."""
        work = [work_seconds(config.shape, config.accelerator) for config in configs]
        rows = [Parameters.of(config, terms) for config, terms in zip(configs, work, strict=True) if not isinstance(terms, Missing)]
        unseen = tuple(sorted({name for row in rows for name in row.names} - set(self.names)))
        # A parameter without rows keeps the mean and the variance of its prior.
        priors = [prior_of(name) for name in unseen]
        mean = np.concatenate([self.posterior.mean, [prior.mean for prior in priors]])
        values, slopes = Design(rows, (*self.names, *unseen)).linear(mean)
        known, new = slopes[:, : len(self.names)], slopes[:, len(self.names) :]
        variances = ((known @ self.posterior.covariance) * known).sum(axis=1) + new**2 @ np.array([prior.sd**2 for prior in priors])
        estimates = iter(_predictions(values, variances))
        return [terms if isinstance(terms, Missing) else next(estimates) for terms in work]

    def without(self, lines: Sequence[int]) -> Posterior:
        """Return the posterior without some rows, by their numbers."""
        return posterior_of(self, np.delete(np.arange(len(self.rows)), lines))

    def predict_rows(self, posterior: Posterior, lines: Sequence[int]) -> list[LogPrediction]:
        """Return predictions for some rows by another posterior of the same parameters."""
        values, slopes = self.design.linear(posterior.mean, list(lines))
        return _predictions(values, ((slopes @ posterior.covariance) * slopes).sum(axis=1))


def _predictions(values: Array, variances: Array) -> list[LogPrediction]:
    """Return predictions of one further row each, from its mean and the variance of the parameters."""
    return [LogPrediction(*pair) for pair in zip(values.tolist(), np.sqrt(variances + ROW_VARIANCE).tolist(), strict=True)]


ROW_VARIANCE = NOISE**2 * FREEDOM / (FREEDOM - 2)
"""Variance of a row: of Student's t distribution with that scale."""


def fit(rows: Iterable[Observed]) -> Fit:
    """Return the posterior given rows; without rows it is the prior."""
    rows = tuple(rows)
    parameters = [Parameters.of(row.config, row.terms) for row in rows]
    names = tuple(sorted({name for each in parameters for name in each.names}))
    design = Design(parameters, names)
    unfitted = Fit(names, rows, design, Posterior(np.zeros(len(names)), np.zeros((len(names), len(names)))))
    return replace(unfitted, posterior=posterior_of(unfitted, np.arange(len(rows)))) if rows else unfitted


def posterior_of(fitted: Fit, lines: NDArray[np.integer[Any]]) -> Posterior:
    """Return the posterior given some of the rows, by Gauss-Newton steps with the weights of Student's t distribution.

    The steps begin at the mean of the prior: rows that are left out have no influence at all.
    """
    priors = [prior_of(name) for name in fitted.names]
    middle, precision = np.array([prior.mean for prior in priors]), np.diag([1 / prior.sd**2 for prior in priors])
    observed = np.array([fitted.rows[line].log_seconds for line in lines])
    counts = Counter(fitted.rows[line].config.stack for line in lines)
    capped = np.array([min(1.0, MOST_ROWS / counts[fitted.rows[line].config.stack]) for line in lines])
    mean = middle
    for _ in range(STEPS):
        predicted, slopes = fitted.design.linear(mean, lines)
        residuals = observed - predicted
        weights = capped * (FREEDOM + 1) / (FREEDOM + (residuals / NOISE) ** 2) / NOISE**2
        # A product of a matrix with its own transpose takes half of the time.
        weighed = slopes * np.sqrt(weights)[:, None]
        curvature = weighed.T @ weighed + precision
        step = np.linalg.solve(curvature, slopes.T @ (weights * residuals) - precision @ (mean - middle))
        mean = mean + step
        if float(np.abs(step).max()) < CLOSE:
            break
    return Posterior(mean, np.linalg.inv(curvature))


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters that a combination depends on."""

    terms: Mapping[Term, float]
    """Seconds per token of each class of work at the limits of the card."""
    factors: dict[Term, tuple[str, ...]]
    """The parameters of each term that is not zero."""
    effects: dict[str, float]
    """The effects with their weights."""

    @classmethod
    def of(cls, config: Combination, terms: Mapping[Term, float]) -> "Parameters":
        """Return the parameters of a combination with these terms."""
        return cls(terms, {term: factors_of(config, term) for term in TERMS if terms[term] > 0}, effects_of(config))

    @property
    def names(self) -> list[str]:
        """The names of all parameters."""
        return [*(name for names in self.factors.values() for name in names), *self.effects]


def factors_of(config: Combination, term: Term) -> tuple[str, ...]:
    """Return the parameters that add up to the logarithm of a term's factor."""
    return (f"factor: {term}", f"factor of level: {term}, {config.level}", f"factor of stack: {term}, {config.software}")


def effects_of(config: Combination) -> dict[str, float]:
    """Return the effects on a combination with their weights."""
    method, chip, software = config.shape.method.value, config.accelerator.key, config.software
    effects = {
        f"level: {config.level}": 1.0,
        f"level, method: {config.level}, {method}": 1.0,
        f"stack: {software}": 1.0,
        f"stack, method: {software}, {method}": 1.0,
        f"generation: {config.generation}": 1.0,
        f"stack, generation: {software}, {config.generation}": 1.0,
        f"accelerator: {chip}": 1.0,
        f"stack, accelerator: {software}, {chip}": 1.0,
        f"model: {config.architecture}": 1.0,
        "slope: devices doubled": math.log2(config.devices),
        "slope: devices per row doubled": math.log2(config.devices_per_row),
    }
    if config.release:
        effects[f"release: {software}, {config.release}"] = 1.0
    return {name: weight for name, weight in effects.items() if weight}


def prior_of(name: str) -> Prior:
    """Return the prior of a parameter by its name."""
    kind, _, rest = name.partition(": ")
    if kind in SPREADS:
        return Prior(0.0, SPREADS[kind] * (LINK if rest.startswith("exchange") else 1), "")
    if kind == "factor":
        return FACTORS[rest]  # type: ignore[index]
    return SLOPES[rest] if kind == "slope" else Prior(0.0, EFFECTS[kind], "")


def meaning_of_parameter(name: str) -> str:
    """Return the meaning of a parameter in words."""
    kind, _, level = name.partition(": ")
    if kind == "factor":
        return f"times longer than at the limit: {MEANING[level]}"  # type: ignore[index]
    if kind in SPREADS:
        return f"how much longer that term takes than with all software: {level.split(', ')[0]}"
    if kind == "slope":
        return f"times longer for each doubling: {SLOPES[level].why}"
    return f"times longer than the mean of every {kind}"
