"""Checks of model cards, and of workloads with their golden losses: shapes, settings, and the words of their titles.

A check yields problems; the caller knows the file and the line.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from copy import deepcopy
from difflib import SequenceMatcher
from itertools import pairwise

from pydantic import ValidationError

from tunemark.collector.gate.fact_checks import PRINTED_SIZE, Neighbours, name_problems, printed_sizes, skeleton, source_problems
from tunemark.schema.errors import TunemarkError, must_be
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.workloads import GoldenLosses, WorkloadCard
from tunemark.schema.physics.architecture import FAMILIES, count_parameters, targets_in
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import Strategy, Task, Weights

# Models ----------------------------------------------------------------------------------------------

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
NAME_FACTOR = 1.4
"""Names round: `1B` has 1.32e9 parameters, `8x7B` shares its attention (0.83 of the product), `7B` may leave out embeddings (8.5e9)."""
WINDOWED = ("gemma2", "mistral", "mixtral", "phi3", "qwen2", "qwen3")
"""Families whose attention can have a window."""
MODEL_BOUNDS: dict[str, tuple[int, int, int, str]] = {
    "hidden_size": (64, 65_536, 32, "matrix tiles have a multiple of 32"),
    "intermediate_size": (128, 1_048_576, 16, "matrix tiles have a multiple of 16"),
    "layers": (1, 256, 1, "no trained model has more blocks"),
    "attention_heads": (1, 512, 1, "no trained model has more heads"),
    "head_dim": (16, 512, 8, "attention kernels take a multiple of 8"),
    "vocabulary": (256, 1_048_576, 1, "at least all bytes, at most a million tokens"),
    "context_length": (64, 16_777_216, 64, "contexts are multiples of 64"),
}


def model_problems(card: ModelCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield all problems of a model card."""
    yield from name_problems(card, beside)
    yield from source_problems(card)
    for check in (_shapes, _heads, _parameters, _hub):
        yield from check(card)
    yield from _names_of_others(card, beside)
    yield from _series(card, beside)


def _shapes(card: ModelCard) -> Iterator[Problem]:
    """Yield a problem for each size that no model has."""
    for name, (low, high, multiple, why) in MODEL_BOUNDS.items():
        value = getattr(card, name)
        if not low <= value <= high or value % multiple:
            yield Problem(name, str(value), f"must be {low} to {high}, a multiple of {multiple}: {why}")
    ratio = card.intermediate_size / card.hidden_size
    if not 1 <= ratio <= 16:  # noqa: PLR2004 - models have 2.67 to 8; experts may be as narrow as the residual stream
        yield Problem(
            "intermediate_size", str(card.intermediate_size), f"is {ratio:.2g} x hidden_size; feed-forward layers are 1 to 16 times as wide"
        )
    if card.sliding_window is not None and card.sliding_window > card.context_length:
        yield Problem(
            "sliding_window", str(card.sliding_window), f"is longer than the context, {card.context_length}; then there is no window"
        )
    if card.sliding_window is not None and card.family not in WINDOWED:
        fix = f"{card.family} attends to the whole context; families with a window: {', '.join(WINDOWED)}"
        yield Problem("sliding_window", str(card.sliding_window), fix)
    if card.sliding_window_every is not None and card.sliding_window_every > card.layers:
        yield Problem(
            "sliding_window_every", str(card.sliding_window_every), f"the model has {card.layers} layers; none would have a window"
        )
    if (card.experts is None) != (card.active_experts is None) or (card.active_experts or 0) > (card.experts or 0):
        yield Problem(
            "active_experts", str(card.active_experts), f"of {card.experts} experts; a mixture has both, and no more active than all"
        )
    if (card.family == "mixtral") != (card.experts is not None):
        yield Problem("family", repr(card.family), f"experts is {card.experts}; of these families only mixtral is a mixture")


def _heads(card: ModelCard) -> Iterator[Problem]:
    """Yield problems of the attention: query heads share key and value heads evenly, and together are about as wide as the stream."""
    if card.attention_heads % card.key_value_heads:
        yield Problem("key_value_heads", str(card.key_value_heads), f"does not divide attention_heads, {card.attention_heads}")
    width = card.attention_heads * card.head_dim / card.hidden_size
    learned = FAMILIES[card.family].learned_positions
    if not 0.5 <= width <= 4 or (learned and width != 1):  # noqa: PLR2004 - 1 to 2 so far; gpt2 and bert split the stream itself
        wanted = "1 in this family" if learned else "0.5 to 4"
        yield Problem("head_dim", str(card.head_dim), f"heads x head_dim is {width:.3g} x hidden_size; must be {wanted}")


def _parameters(card: ModelCard) -> Iterator[Problem]:
    """Yield a problem where the stated parameters, to their last digit that is not zero, are not those counted from the shapes.

    A size in the names agrees with the count within `NAME_FACTOR`.
    """
    counted = count_parameters(card).total
    if card.parameters is not None:
        unit = 10 ** (len(digits := str(card.parameters)) - len(digits.rstrip("0")))
        if abs(card.parameters - counted) > unit / 2:
            yield Problem("parameters", str(card.parameters), f"the shapes on this card have {counted}; correct one of them")
    for name in dict.fromkeys((card.key, card.name, *card.aliases, *((card.hub_id,) if card.hub_id else ()))):
        for _, printed in printed_sizes(name):
            if not 1 / NAME_FACTOR <= counted / printed <= NAME_FACTOR:
                where = next((part for part in ("key", "name", "hub_id") if getattr(card, part) == name), "aliases")
                yield Problem(
                    where, repr(name), f"the shapes on this card have {counted / 1e9:.3g}e9 parameters; correct the name or the shapes"
                )


def _hub(card: ModelCard) -> Iterator[Problem]:
    """Yield a problem for a repository that is not `owner/name`, and for a licence gate without a repository."""
    if card.hub_id is not None and not HUB_ID.fullmatch(card.hub_id):
        yield Problem("hub_id", repr(card.hub_id), "is not a repository; write owner/name, without address or revision")
    if card.gated is not None and card.hub_id is None:
        yield Problem("gated", str(card.gated), "there is no hub_id that could be gated; add it, or leave this out")


def _names_of_others(card: ModelCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for an owner that looks like another one, and for a source that is the repository of another model."""
    others = {other.hub_id: other.key for other in beside.models.values() if other.hub_id and other.key != card.key}
    owner = (card.hub_id or "").partition("/")[0]
    alike = {name for name in (hub_id.partition("/")[0] for hub_id in others) if skeleton(name) == skeleton(owner) and name != owner}
    if owner and alike:
        yield Problem(
            "hub_id", repr(card.hub_id), f"its owner looks like {' and '.join(sorted(alike))}; write an owner the same on all cards"
        )
    named = [hub_id for hub_id in others if re.search(rf"(?<![\w/.-]){re.escape(hub_id)}(?![\w/-])", card.source)]
    if card.hub_id and named and card.hub_id not in card.source:
        yield Problem("source", repr(named[0]), f"is the repository of {others[named[0]]}; name the source of this model")


def _series(card: ModelCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a value on which the other sizes of a series agree: gated weights, and a context that is that of another series.

    The name of a series is that of its models without the size: Llama 3.1.
    """
    series = defaultdict[str, list[ModelCard]](list)
    for other in beside.models.values():
        if other.key != card.key and other.family == card.family:
            series[_series_name(other)].append(other)
    sizes = series.pop(_series_name(card), [])
    gated, contexts = {other.gated for other in sizes}, {other.context_length for other in sizes}
    if len(sizes) > 1 and len(gated) == 1 and card.gated not in gated and card.gated is not None and "gated" not in (card.notes or ""):
        yield Problem(
            "gated", str(card.gated), f"the other sizes of {_series_name(card)} have {gated.pop()}; correct it, or explain gated in notes"
        )
    elsewhere = [name for name, models in series.items() if card.context_length in {other.context_length for other in models}]
    explained = "context" in (card.notes or "")
    if len(sizes) > 1 and len(contexts) == 1 and card.context_length not in contexts and elsewhere and not explained:
        fix = f"is the context of {elsewhere[0]}; the other sizes of {_series_name(card)} have {contexts.pop()}; correct it, or explain it in notes"
        yield Problem("context_length", str(card.context_length), fix)


def _series_name(card: ModelCard) -> str:
    return re.sub(r"\s+", " ", PRINTED_SIZE.sub("", card.name)).strip()


# Workloads -------------------------------------------------------------------------------------------

STRETCH = 4
"""Models with rotary or linear positions are trained at up to four times their context; learned positions end with the table."""
WORKLOAD_BOUNDS: dict[str, tuple[float, float, str]] = {
    "data.sequence_length": (8, 2_097_152, "tokens of one row"),
    "batch.micro_batch": (1, 4096, "rows that one device holds at once"),
    "batch.gradient_accumulation": (1, 8192, "micro-steps of one step"),
    "optimizer.learning_rate": (1e-8, 1, "peak learning rates of fine-tuning are about 1e-6 to 1e-2"),
    "optimizer.weight_decay": (0, 1, "a share of the weights per unit of learning rate"),
    "optimizer.warmup_steps": (0, 100_000, "steps"),
    "devices.count": (1, 100_000, "devices of one run"),
    "labels": (2, 100_000, "classes"),
    "stop.max_steps": (1, 10_000_000, "steps"),
    "stop.epochs": (1, 1000, "passes over the rows"),
    "stop.max_train_s": (1, 31_536_000, "at most a year"),
    "optimizer.epsilon": (1e-16, 1e-2, "added to the root of the second moment"),
    "lora.rank": (1, 4096, "not above the width of a layer"),
    "lora.alpha": (1, 16_384, "a few times the rank"),
}
LARGEST_STEP = 2**28
"""Tokens of one optimizer step: the largest pretraining runs use 2^24."""
NEAR_LN = 0.15
"""Untrained weights guess: their loss is the logarithm of the number of choices, a few percent above it for finite initial scales."""
FALL = 4
"""A recorded loss is more than the last one over this: both are means of five steps."""
COUNTED = re.compile(r"(\d{1,3}(?:,\d{3})+) (?!tokens|token\b)\w+")
EPOCHS = re.compile(r"\b(\d+|one|two|three|four|five|six|seven|eight|nine|ten) epochs?\b")
WORDS_OF_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
GENERAL = {"code", "tiny"}
"""First words of names of models that name no series."""
KEY_FACTOR = 1.8
"""Keys of workloads round more than names: `lora-1b` has 1.7e9 parameters."""
NEARLY = 0.9
"""Share of common letters (difflib) from which the name of a dataset is taken for a misspelling of a known one."""
TOLERANCES = (1e-4, 0.3)
"""Rounding of kernels is above 1e-4 of the loss; with 0.3 a run that learns nothing could pass."""


def workload_problems(card: WorkloadCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield problems of a workload card: settings that no run has, rows longer than the positions of its model."""
    yield from source_problems(card)
    for name, (low, high, meaning) in WORKLOAD_BOUNDS.items():
        value = _at(card, name)
        if value is not None and not low <= value <= high:
            yield Problem(name.rsplit(".", 1)[-1], f"{value:g}", f"must be {low:g} to {high:g}: {meaning}")
    tokens = card.batch.micro_batch * card.batch.gradient_accumulation * card.data.sequence_length * card.devices.count
    if tokens > LARGEST_STEP:
        yield Problem("micro_batch", str(card.batch.micro_batch), f"a step would have {tokens} tokens; at most {LARGEST_STEP} make sense")
    if not all(0 <= beta < 1 for beta in card.optimizer.betas):
        yield Problem("betas", repr(card.optimizer.betas), "must be 0 or more, and below 1: shares of the moments that each step keeps")
    if card.stop.max_steps is not None and card.optimizer.warmup_steps >= card.stop.max_steps:
        fix = f"the run ends after {card.stop.max_steps} steps, before its learning rate is reached"
        yield Problem("warmup_steps", str(card.optimizer.warmup_steps), fix)
    yield from _parallel(card, beside.models.get(card.model))
    yield from _stated(card, beside)
    rows = beside.known.dataset(card.data.name)
    if rows is not None:
        if rows.labels is not None and card.labels is not None and card.labels != rows.labels:
            yield Problem("labels", str(card.labels), f"{rows.key} has {rows.labels} classes")
        for name, stated, most in (
            ("training_rows", card.data.training_rows or 0, rows.training_rows),
            ("evaluation_rows", card.data.evaluation_rows, max(rows.validation_rows or 0, rows.test_rows or 0)),
        ):
            if stated > most > 0:
                yield Problem(name, str(stated), f"{rows.key} has {most} of them")
    model = beside.models.get(card.model)
    if model is not None:
        longest = model.context_length * (
            1 if FAMILIES[model.family].learned_positions and "alibi" not in (model.notes or "").lower() else STRETCH
        )
        if card.data.sequence_length > longest:
            fix = f"{card.model} has a context of {model.context_length} and can be trained at {longest} at most"
            yield Problem("sequence_length", str(card.data.sequence_length), fix)
        if card.lora is not None and card.lora.rank > model.hidden_size:
            yield Problem("rank", str(card.lora.rank), f"is above the width of the model, {model.hidden_size}; it would not be low-rank")


def _parallel(card: WorkloadCard, model: ModelCard | None) -> Iterator[Problem]:
    """Yield problems of devices that cannot share the work: one of several, or several of one, and heads that do not divide."""
    devices = card.devices
    if (devices.strategy == Strategy.SINGLE and devices.count > 1) or (
        devices.count == 1 and devices.strategy not in {"auto", Strategy.SINGLE}
    ):
        yield Problem("strategy", repr(str(devices.strategy)), f"devices.count is {devices.count}; write auto, or correct one of them")
    apart = devices.tensor_parallel * devices.pipeline_parallel
    if devices.count % apart:
        yield Problem("count", str(devices.count), f"is not a multiple of the {apart} devices that share one copy of the model")
    if model is not None and model.attention_heads % devices.tensor_parallel:
        fix = f"does not divide the {model.attention_heads} attention heads of {model.key}"
        yield Problem("tensor_parallel", str(devices.tensor_parallel), fix)
    if model is not None and card.lora is not None:
        try:
            targets_in(model, card.lora.target_modules)
        except TunemarkError as error:
            yield Problem("target_modules", repr(error.value), error.fix)


def _stated(card: WorkloadCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield what the words of a card contradict: its model, rows and epochs; and a template or a dataset that is nearly right."""
    model, words = beside.models.get(card.model), f"{card.title}. {card.description}"
    named = [key for key in beside.models if re.search(rf"(?<![a-z0-9]){re.escape(key)}(?![a-z0-9.])", card.key)]
    if named and max(named, key=len) != card.model:
        yield Problem("model", repr(card.model), f"the key {card.key!r} says {max(named, key=len)}; correct one of them")
    if model is not None:
        counted = count_parameters(model).total
        for name, text, factor in (("title", card.title, NAME_FACTOR), ("key", card.key, KEY_FACTOR)):
            for shown, printed in printed_sizes(text):
                if not 1 / factor <= counted / printed <= factor:
                    fix = f"{card.model} has {counted / 1e9:.3g}e9 parameters; correct the {name} or the model"
                    yield Problem("model", repr(card.model), f"the {name} says {shown}, and {fix}")
        first = {re.split(r"[^A-Za-z]", other.name)[0].lower() for other in beside.models.values()} - GENERAL
        series = {name for name in first if name and re.search(rf"(?i)(?<![a-z]){name}(?![a-z])", card.title)}
        if series and not any(name in f"{model.name} {model.family}".lower() for name in series):
            yield Problem("model", repr(card.model), f"the title says {' and '.join(sorted(series))}; correct one of them")
    counts = {int(number.replace(",", "")) for number in COUNTED.findall(card.title)}
    if card.data.training_rows is not None and counts and card.data.training_rows not in counts:
        yield Problem(
            "training_rows", str(card.data.training_rows), f"the title says {', '.join(f'{count:,}' for count in sorted(counts))}"
        )
    epochs = {WORDS_OF_NUMBERS.index(word) + 1 if word in WORDS_OF_NUMBERS else int(word) for word in EPOCHS.findall(words)}
    if card.stop.epochs is not None and epochs and card.stop.epochs not in epochs:
        yield Problem("epochs", str(card.stop.epochs), f"the description says {', '.join(map(str, sorted(epochs)))}")
    template = card.data.template or ""
    if template.count("{") != template.count("}"):
        yield Problem("template", repr(template), "has a brace without its counterpart")
    known = [dataset.key for dataset in beside.known.datasets]
    alike = [key for key in known if key != card.data.name and SequenceMatcher(None, key, card.data.name).ratio() >= NEARLY]
    if card.data.name not in known and alike:
        yield Problem("name", repr(card.data.name), f"is nearly {alike[0]!r}, which is known; correct it")


def setting_problems(card: WorkloadCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield problems of the axes and points of a card: settings that a card does not have, and values that no run has.

    Each value is set on the card, and the card is checked with it.
    """
    fixed = {problem.field for problem in workload_problems(card, beside)}
    for axis in card.axes:
        own = _own(card, axis.field)
        if not axis.at and [other.field for other in card.axes].count(axis.field) == 1 and own is not None and own not in axis.values:
            yield Problem("values", repr(axis.values), f"lacks the card's own {axis.field}, {own!r}; an axis has it among its values")
    varied = [(axis.field, {**axis.at, axis.field: value}) for axis in card.axes for value in axis.values]
    varied += [("", settings) for settings in card.points]
    for name, settings in varied:
        try:
            other = WorkloadCard.model_validate(_with(card, settings))
        except ValidationError as error:
            first = error.errors()[0]
            wrong = ".".join(map(str, first["loc"])) or name
            fix = "is not a setting of a workload card" if first["type"] == "extra_forbidden" else must_be(first["msg"])
            yield Problem("field", repr(wrong), f"{fix}; correct the axis or the point")
            continue
        for problem in workload_problems(other, beside):
            if problem.field not in fixed:
                yield Problem("values", repr(settings), f"{problem.field} {problem.fix}")


def _with(card: WorkloadCard, settings: Mapping[str, object]) -> dict[str, object]:
    """Return the content of a card with dotted settings replaced, without its axes and points."""
    content = deepcopy(card.model_dump(mode="json", exclude={"axes", "points"}, exclude_defaults=True))
    for name, value in settings.items():
        *sections, last = name.split(".")
        place = content
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return content


def _own(card: WorkloadCard, path: str) -> object:
    """Return the card's own value of a setting as in a file; None if it has none."""
    content: object = card.model_dump(mode="json")
    for name in path.split("."):
        content = content.get(name) if isinstance(content, dict) else None
    return content


def _at(record: object, path: str) -> float | None:
    for name in path.split("."):
        record = getattr(record, name, None)
    return record if isinstance(record, int | float) else None


def golden_problems(golden: GoldenLosses, card: WorkloadCard | None, sha256: str, model: ModelCard | None) -> Iterator[Problem]:
    """Yield problems of golden losses: not of this card, not those of a run that starts untrained and learns."""
    if card is None:
        yield Problem("key", repr(golden.key), "there is no workload of this name in data/workloads")
        return
    yield from source_problems(golden)
    if golden.workload_sha256 != sha256:
        yield Problem("workload_sha256", golden.workload_sha256, f"the card has {sha256}; record the losses again with the card as it is")
    if golden.seed != card.seed:
        yield Problem("seed", str(golden.seed), f"the card has {card.seed}; record the losses with the seed of the card")
    if not TOLERANCES[0] <= golden.tolerance <= TOLERANCES[1]:
        yield Problem("tolerance", f"{golden.tolerance:g}", f"must be {TOLERANCES[0]:g} to {TOLERANCES[1]:g}, a relative difference")
    steps = sorted(golden.losses.items())
    if len(steps) < 2 or steps[0][0] < 1 or steps[-1][0] > (card.stop.max_steps or math.inf):  # noqa: PLR2004
        yield Problem("losses", repr([step for step, _ in steps]), "needs two steps or more, from 1 to the last step of the card")
        return
    choices = card.labels if card.task is Task.SEQUENCE_CLASSIFICATION else model and model.vocabulary
    if card.weights is Weights.RANDOM and choices and abs(steps[0][1] / math.log(choices) - 1) > NEAR_LN:
        fix = f"random weights begin near ln({choices}) = {math.log(choices):.4f}; record the losses again"
        yield Problem(str(steps[0][0]), f"{steps[0][1]:g}", fix)
    for (_, before), (step, loss) in pairwise(steps):
        if card.task is Task.CAUSAL_LM and loss < before / FALL:
            yield Problem(str(step), f"{loss:g}", f"is less than a quarter of the loss before it, {before:g}; check the decimal point")
        if not 0 < loss <= before * (1 + golden.tolerance):
            yield Problem(str(step), f"{loss:g}", f"is above the loss before it, {before:g}, by more than the tolerance; losses fall")
    if steps[-1][1] >= steps[0][1]:
        yield Problem(
            str(steps[-1][0]),
            f"{steps[-1][1]:g}",
            f"is not below the first loss, {steps[0][1]:g}; a workload that learns nothing proves nothing",
        )
