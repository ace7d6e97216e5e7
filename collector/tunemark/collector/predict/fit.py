"""The model of throughput: a roofline with a few constants that are fitted to accepted results.

1. `work_seconds`: the time per token of each class of work at the limits of the accelerator's card,
   FLOPs / dense peak + bytes / memory bandwidth + bytes / link. This is the roofline of Williams, Waterman and Patterson
   (2009), with a sum instead of the larger term, because real training loops overlap little. FLOPs are counted as in `flops/1`.
2. `fit`: how far real loops stay from these limits,

       log(device-seconds per token) = log(sum over terms of factor x seconds at the limit) + effects + noise

   A *factor* is how many times longer than at the limit a class of work takes. An *effect* is how much slower a software,
   a generation, an accelerator, a method or a model is. All have a normal prior in log space (`FACTORS`, `EFFECTS`, `SLOPES`,
   `SPREADS`). A parameter without rows keeps its prior, so an unseen accelerator gets the mean of its generation and software
   and the uncertainty of an unseen one. The posterior is Laplace's approximation, found by Gauss-Newton steps (Gelman et al.,
   Bayesian Data Analysis, chapters 4 and 15).

Standard deviations of effects were chosen once by leaving out accelerators and models (`cross_validation`), in steps of a half
or more; with every choice the median error over all results was between 7 and 13%. Without the effect of the model the interval
covers 63% of held-out models instead of 90%; without the effect of the release errors are 1.5 points larger; an effect of an
accelerator under one software and all methods brought nothing and is left out.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.physics.architecture import block_linears
from tunemark.schema.physics.flops import flops_ledger
from tunemark.schema.physics.training_shape import BYTES, TrainingShape
from tunemark.schema.vocabulary import Checkpointing, Method

Term = Literal["matmul", "attention", "elementwise", "adapters", "scores", "exchange"]
TERMS: tuple[Term, ...] = get_args(Term)

MEANING: dict[Term, str] = {
    "matmul": "matrix products, recomputed ones included, over the dense peak of the format that multiplies",
    "attention": "attention as s^2 pairs, heads filled up to a power of two, over the dense peak of the format of the activations",
    "elementwise": "norms, activations, residuals and rotations: bytes over memory bandwidth",
    "adapters": "work of adapters, with inputs cast to their format, dropped out and kept: bytes over memory bandwidth",
    "scores": "attention scores, if the kernel writes them (eager): bytes over memory bandwidth",
    "exchange": "weights that sharding gathers and gradients that it scatters: bytes over the link between devices or to the host",
}
HOST_LINK_BYTES_PER_S = 32e9
"""PCI Express 4.0 x16, one direction: the card of an accelerator does not describe its host."""
TERA, GIGA = 1e12, 1e9


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
    peak, bandwidth = accelerator.peak_tflops.get(shape.activations), accelerator.memory_bandwidth_gb_s
    if peak is None:
        return Missing(f"the card of {accelerator.name} has no dense peak for {shape.activations.value}")
    if bandwidth is None:
        return Missing(f"the card of {accelerator.name} has no memory bandwidth")
    # All s^2 pairs count, recomputed ones included. Kernels work in tiles: a head of 96 takes as long as one of 128.
    ledger, recomputes = flops_ledger(shape, "square"), shape.checkpointing is Checkpointing.FULL
    attention = ledger.of("forward_attention", "backward_attention") + (ledger.of("forward_attention") if recomputes else 0)
    tile = 2 ** math.ceil(math.log2(shape.model.head_dim)) / shape.model.head_dim
    link = HOST_LINK_BYTES_PER_S if shape.offload else (accelerator.interconnect_gb_s or 64) / 2 * GIGA
    flops: dict[Term, float] = {"matmul": ledger.executed - attention, "attention": attention * tile}
    seconds = {term: amount / (peak * TERA * shape.tokens) for term, amount in flops.items()}
    for term, size in moved_bytes(shape).items():
        seconds[term] = size / ((link if term == "exchange" else bandwidth * GIGA) * shape.tokens)
    return seconds


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
    # Sharding gathers 16-bit weights forward, backward and for recomputation; full fine-tuning also scatters gradients.
    weights = 2.0 * model.layers * sum(linear.inputs * linear.outputs * linear.copies for linear in block_linears(model))
    gathers = passes - 1 if shape.sharding in {"zero3", "fsdp1", "fsdp2"} else 0
    exchanged = weights * (gathers + (shape.method is Method.FULL))
    return {
        "elementwise": elementwise,
        "adapters": adapters,
        "scores": scores if shape.attention == "eager" else 0.0,
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
    stack: str
    """Source of the training loop: a document, `mlperf`, or `measured`."""
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
    def generation(self) -> str:
        """Vendor and architecture of the accelerator."""
        return f"{self.accelerator.vendor} {self.accelerator.architecture or self.accelerator.key}"

    @property
    def architecture(self) -> str:
        """The numbers of the model that determine the time per token, except the vocabulary; Llama 3 and 3.1 have the same."""
        model = self.shape.model
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
    same: tuple[str, ...] = ()
    """Results with the same combination and the same digits, which add no evidence."""

    @property
    def log_seconds(self) -> float:
        """The modelled quantity."""
        return math.log(self.device_seconds_per_token)


def observe(result_id: str, config: Combination, tokens_per_s: float) -> Observed | Missing:
    """Return a calibration row from tokens/s of all devices together, or the reason why it cannot be one."""
    terms = work_seconds(config.shape, config.accelerator)
    if isinstance(terms, Missing):
        return terms
    if not (math.isfinite(tokens_per_s) and tokens_per_s > 0):
        return Missing(f"{tokens_per_s:g} tokens/s is not a valid rate")
    return Observed(result_id, config, config.devices / tokens_per_s, terms)


def without_copies(rows: Iterable[Observed]) -> tuple[Observed, ...]:
    """Return rows without those that repeat another row's digits at the same combination: a copy is not a second measurement."""
    first_rows: dict[tuple[object, ...], Observed] = {}
    for row in rows:
        config, shape = row.config, row.config.shape
        key = (
            *(config.accelerator.key, config.devices, config.stack, config.release, config.architecture, config.devices_per_row),
            *(shape.method, shape.sequence_length, shape.micro_batch, shape.checkpointing, f"{row.device_seconds_per_token:.4g}"),
        )
        first = first_rows.get(key)
        first_rows[key] = row if first is None else replace(first, same=(*first.same, row.id))
    return tuple(first_rows.values())


# The fit -------------------------------------------------------------------------------------------

Array = NDArray[np.floating[Any]]
STEPS = 60
CLOSE = 1e-9


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
    "exchange": Prior(math.log(1.5), 0.7, "partly overlapped with computing, partly over a slower link than the card lists"),
}
"""Term -> prior of its factor, how many times longer than at the limit it takes."""
EFFECTS: dict[str, float] = {
    "stack": 0.6,
    "stack, method": 0.2,
    "release": 0.1,
    "generation": 0.15,
    "stack, generation": 0.1,
    "accelerator": 0.07,
    "stack, accelerator, method": 0.05,
    "model": 0.1,
}
"""Effect -> standard deviation among its levels, in log space; their mean is zero.

Training loops differ by factors (`stack`), less by method within one (`stack, method`) and from round to round (`release`).
How close to the peak a device gets depends on its generation (`generation`) and on the kernels that a loop has for it
(`stack, generation`). Devices of one generation differ in clocks and power (`accelerator`), and shapes suit kernels more or
less (`model`). `stack, accelerator, method` is the remaining difference between rows that share all of these.
"""
SLOPES: dict[str, Prior] = {
    "devices doubled": Prior(0.03, 0.03, "a few percent for each doubling of the devices"),
    "devices per row doubled": Prior(0.05, 0.05, "devices that share a row lose more than devices with separate rows"),
}
SPREADS = {"factor of stack": 0.5, "factor of accelerator": 0.07}
"""Standard deviation in log space of the factors of one software stack, and of one stack on one accelerator, about the common factors."""
LINK = 3
"""The spread of links is larger by this factor: they belong to the machine, which cards do not describe."""
NOISE = 0.06
"""Standard deviation of a row around the model, in log space."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A prediction in log space."""

    log_seconds: float
    """Logarithm of device-seconds per token."""
    sd: float
    """Standard deviation of one further row: parameters, unseen levels, and noise."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The posterior: a mean for each parameter with rows, and their covariance."""

    names: tuple[str, ...]
    mean: Array
    covariance: Array
    rows: tuple[Observed, ...]

    def predict(self, config: Combination) -> Estimate | Missing:
        """Return the prediction for a combination, or the reason why there is none."""
        terms = work_seconds(config.shape, config.accelerator)
        if isinstance(terms, Missing):
            return terms
        names, index = parameters(config, terms), {name: number for number, name in enumerate(self.names)}
        mean = np.array([self.mean[index[name]] if name in index else prior_of(name).mean for name in names])
        value, slopes = Design([(config, terms)], names).linear(mean)
        slope = dict(zip(names, slopes[0], strict=True))
        fitted = [name for name in names if name in index]
        columns, fitted_slope = [index[name] for name in fitted], np.array([slope[name] for name in fitted])
        variance = float(fitted_slope @ self.covariance[np.ix_(columns, columns)] @ fitted_slope)
        # A parameter without rows keeps the variance of its prior.
        variance += sum((float(weight) * prior_of(name).sd) ** 2 for name, weight in slope.items() if name not in index)
        return Estimate(float(value[0]), math.sqrt(variance + NOISE**2))


class Design:
    """The parameters that each row depends on, as matrices of shape (rows, parameters)."""

    def __init__(self, rows: Sequence[tuple[Combination, Mapping[Term, float]]], names: Sequence[str]) -> None:
        place = {name: number for number, name in enumerate(names)}
        self._seconds = np.array([[terms[term] for term in TERMS] for _, terms in rows]).reshape(len(rows), len(TERMS))
        self._effects = np.zeros((len(rows), len(names)))
        self._factors = np.zeros((len(TERMS), len(rows), len(names)))
        for line, (config, terms) in enumerate(rows):
            for name, weight in effects_of(config).items():
                self._effects[line, place[name]] = weight
            for number, term in enumerate(TERMS):
                if terms[term] > 0:
                    self._factors[number, line, [place[name] for name in factors_of(config, term)]] = 1

    def linear(self, mean: Array) -> tuple[Array, Array]:
        """Return log seconds of each row at these parameters, and their derivatives."""
        parts = self._seconds.T * np.exp(self._factors @ mean)
        total = parts.sum(axis=0)
        slopes = np.einsum("tr,trp->rp", parts / total, self._factors) + self._effects
        return np.log(total) + self._effects @ mean, slopes


def fit(rows: Iterable[Observed]) -> Fit:
    """Return the posterior given rows; without rows it is the prior."""
    rows = tuple(rows)
    names = tuple(sorted({name for row in rows for name in parameters(row.config, row.terms)}))
    if not rows:
        return Fit((), np.zeros(0), np.zeros((0, 0)), ())
    design = Design([(row.config, row.terms) for row in rows], names)
    priors = [prior_of(name) for name in names]
    middle, precision = np.array([prior.mean for prior in priors]), np.array([1 / prior.sd**2 for prior in priors])
    observed = np.array([row.log_seconds for row in rows])
    mean, moved = middle, math.inf
    for _ in range(STEPS):
        if moved < CLOSE:
            break
        predicted, slopes = design.linear(mean)
        downhill = slopes.T @ (observed - predicted) / NOISE**2 - precision * (mean - middle)
        step = np.linalg.solve(slopes.T @ slopes / NOISE**2 + np.diag(precision), downhill)
        mean, moved = mean + step, float(np.abs(step).max())
    _, slopes = design.linear(mean)
    covariance = np.linalg.inv(slopes.T @ slopes / NOISE**2 + np.diag(precision))
    return Fit(names, mean, covariance, rows)


def parameters(config: Combination, terms: Mapping[Term, float]) -> list[str]:
    """Return the names of all parameters that a combination depends on."""
    return [*(name for term in TERMS if terms[term] > 0 for name in factors_of(config, term)), *effects_of(config)]


def factors_of(config: Combination, term: Term) -> tuple[str, ...]:
    """Return the parameters that add up to the logarithm of a term's factor."""
    return (
        f"factor: {term}",
        f"factor of stack: {term}, {config.stack}",
        f"factor of accelerator: {term}, {config.stack}, {config.accelerator.key}",
    )


def effects_of(config: Combination) -> dict[str, float]:
    """Return the effects on a combination with their weights."""
    method, chip = config.shape.method.value, config.accelerator.key
    effects = {
        f"stack: {config.stack}": 1.0,
        f"stack, method: {config.stack}, {method}": 1.0,
        f"generation: {config.generation}": 1.0,
        f"stack, generation: {config.stack}, {config.generation}": 1.0,
        f"accelerator: {chip}": 1.0,
        f"stack, accelerator, method: {config.stack}, {chip}, {method}": 1.0,
        f"model: {config.architecture}": 1.0,
        "slope: devices doubled": math.log2(config.devices),
        "slope: devices per row doubled": math.log2(config.devices_per_row),
    }
    if config.release:
        effects[f"release: {config.stack}, {config.release}"] = 1.0
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
