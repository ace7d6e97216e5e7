"""Figures derived from the printed figures of a result and from numbers in its words. Unknown inputs give unknown results."""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tunemark.schema.records.published import Claim, Conditions
from tunemark.schema.vocabulary import Dtype, Padding

WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
"""Words of documents, and names of quantities and settings, that the rules look up."""
EVALUATED = ("accuracy", "eval_")
"""Beginnings of the names of figures that an evaluation measures."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a published result and its origin."""

    value: float
    formula: str | None = None
    """The formula in words; None when the document claims the figure itself."""


def derived_figures(
    claims: Mapping[str, Claim], conditions: Conditions, training_rows: int | None, test_rows: int | None
) -> dict[str, Figure]:
    """Return times, rates, and the rows of a step and of an evaluation: claimed with one meaning, else by the first formula with known inputs.

    An ambiguous step time stays unknown, since no other figure can settle its meaning. On several devices the rows of a step are unknown
    unless they are stated: devices may share a row (tensor parallel) or hold separate rows.
    """
    claimed = {name: claim.value for name, claim in claims.items() if not claim.readings}
    figures: dict[str, Figure] = {}

    def add(name: str, *options: tuple[float | None, str], stated: float | None = None) -> float | None:
        known = claimed.get(name) if stated is None else stated
        figure = next((Figure(value, formula) for value, formula in ((known, None), *options) if value is not None), None)
        if figure is not None:
            figures[name] = figure
        return None if figure is None else figure.value

    time, epochs, length = claimed.get("train_time_s"), claimed.get("epochs"), conditions.sequence_length
    # With fewer steps than planned, the epochs were not done either.
    if claimed.get("steps", math.inf) < claimed.get("total_steps", 0):
        epochs = None
    step = None
    if "step_time_s" in claimed or "step_time_s" not in claims:
        step = add(
            "step_time_s", (_ratio(1, claimed.get("steps_per_s")), "1 / claimed steps per second, an average over the whole training")
        )
    add("steps_per_s", (_ratio(1, claimed.get("step_time_s")), "1 / claimed step time"))
    on_one = _product(conditions.micro_batch, conditions.gradient_accumulation) if conditions.accelerator_count == 1 else None
    batch = add("global_batch", (on_one, "micro-batch x gradient accumulation on one device"), stated=conditions.global_batch)
    full = conditions.padding is Padding.NONE or conditions.packing is True
    tokens = add(
        "tokens_per_s",
        (_ratio(claimed.get("tokens"), time), "claimed tokens / training time"),
        (_ratio(_product(batch, length), step) if full else None, "rows in a step x sequence length / step time; rows are full"),
    )
    # A packed or padded row is no document, and neither gives the number of documents.
    documents = tokens if not conditions.packing and conditions.padding not in {Padding.STATIC, Padding.DYNAMIC} else None
    stated = "rows are full" if full else "the source gives one length for all rows, taken as full"
    if conditions.packing:
        claimed.pop("samples_per_s", None)
    add(
        "samples_per_s",
        (_ratio(documents, length), f"tokens per second / sequence length; {stated}"),
        (_ratio(_product(epochs, training_rows), time), f"epochs x {training_rows} training rows / training time"),
    )
    add("epoch_time_s", (_ratio(time, epochs), "training time / epochs"))
    add("train_time_s")
    add("wall_s")
    add("evaluation_rows", (test_rows if any(name.startswith(EVALUATED) for name in claims) else None, "rows of the dataset's test set"))
    return figures


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def _product(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first * second


def printed_rows(dataset: str | None) -> int | None:
    """Return the training rows printed with a dataset: `emotion (1600/200/200)`, `recipes (9,500 rows)`."""
    match = re.search(r"\((?:first )?([0-9][0-9,]*)(?:/[0-9,/]+| rows| records)\)", dataset or "")
    return int(match[1].replace(",", "")) if match else None


FOUR_BIT_PRODUCTS = re.compile(r"(?:nv|mx)fp4|\bfp4\b|float4", re.IGNORECASE)
"""Names of 4-bit floating-point formats that matrix units multiply. NF4 only stores weights."""


def narrow_format(printed: str | None) -> Dtype | None:
    """Return the format below 16 bits in which matrices multiply, in printed words: fp4, fp8, or None."""
    if FOUR_BIT_PRODUCTS.search(printed or ""):
        return Dtype.FP4
    return Dtype.FP8 if "fp8" in (precision_class(printed) or "") else None


@cache
def precision_class(printed: str | None) -> str | None:
    """Return the number format of matrix products in printed words, as in `Dtype`; `fp16/bf16` if both are named."""
    words = (printed or "").lower()
    for name, dtype in (("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32"), ("float8", "fp8"), ("mxfp8", "fp8")):
        words = words.replace(name, dtype)
    # An underscore joins words: amp_bf16.
    named = [dtype for dtype in ("fp16", "bf16", "tf32", "fp32", "fp8") if re.search(rf"(?<![a-z0-9]){dtype}(?![a-z0-9])", words)]
    return "/".join(named) or None
