"""Figures derived from the printed figures of a result and from numbers in its words. Unknown inputs give unknown results."""

import math
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tunemark.schema.records.published import PublishedResult
from tunemark.schema.vocabulary import Dtype, Padding

WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
"""Words of documents, and names of quantities and settings, that the rules look up."""
FIGURES = (
    *("step_time_s", "steps_per_s", "global_batch", "tokens_per_s", "samples_per_s"),
    *("epoch_time_s", "train_time_s", "wall_s", "evaluation_rows"),
)
"""Figures that are taken as claimed, or derived."""
EVALUATED = ("accuracy", "eval_")
"""Beginnings of the names of figures that an evaluation measures."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a published result and its origin."""

    value: float
    formula: str | None = None
    """The formula in words; None when the document claims the figure itself."""


def derived_figures(result: PublishedResult, training_rows: int | None, test_rows: int | None) -> dict[str, Figure]:
    """Return times, rates, and the rows of a step and of an evaluation: claimed with one meaning, else by the first formula with known inputs.

    An ambiguous step time stays unknown, since no other figure can settle its meaning. On several devices the rows of a step are unknown
    unless they are stated: devices may share a row (tensor parallel) or hold separate rows.
    """
    claims, conditions, packed = result.claims, result.conditions, result.conditions.packing
    full = conditions.padding is Padding.NONE or packed is True
    known = {name: claim.value for name, claim in claims.items() if not claim.readings}
    if packed:
        known.pop("samples_per_s", None)
    if known.get("steps", math.inf) < known.get("total_steps", 0):
        # The epochs that were planned were not done either.
        known.pop("epochs", None)
    stated = {name: getattr(conditions, name) for name in ("global_batch", "micro_batch", "gradient_accumulation", "sequence_length")}
    stated |= {"training_rows": training_rows, "test_rows": test_rows}
    known |= {name: value for name, value in stated.items() if value}
    figures = {name: Figure(known[name]) for name in FIGURES if name in known}
    # A packed or padded row is no document, and neither gives the number of documents.
    documents = not packed and conditions.padding not in {Padding.STATIC, Padding.DYNAMIC}
    holding = {
        "": True,
        "no printed step time": "step_time_s" not in claims,
        "one device": conditions.accelerator_count == 1,
        "full rows": full,
        "full documents": documents and full,
        "documents": documents,
        "an evaluation": any(name.startswith(EVALUATED) for name in claims),
    }
    for name, above, below, condition, formula in WORDS["derived"]:
        factors, divisors = ([known.get(each, 0.0) for each in side.split()] for side in (above, below))
        if holding[condition] and name not in figures and all((*factors, *divisors)):
            known[name] = math.prod(factors) / math.prod(divisors)
            figures[name] = Figure(known[name], formula.format(**stated))
    return figures


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
