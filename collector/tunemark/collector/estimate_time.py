"""How fast, how long and for how much money, for `tunemark estimate`: predicted from accepted results, each with its interval."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from tunemark.collector.output import print_table
from tunemark.collector.predict.fit import Fit
from tunemark.collector.predict.fits import fits
from tunemark.collector.predict.predicted import LEVEL, Range, Throughput, default_stack, predict
from tunemark.collector.predict.rows import Combination
from tunemark.collector.predict.work import Missing
from tunemark.schema import formats
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import PriceRow
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.statistics.job_prediction import HOUR_S, price_of

HEAD = f"Predicted, with an interval of {LEVEL:.0%}: training alone, without start, evaluation and saving"


@dataclass(frozen=True, slots=True)
class Answer:
    """What is predicted for an accelerator."""

    accelerator: str
    name: str
    throughput: Throughput | None
    reason: str | None
    """Why nothing is predicted."""
    seconds: Range | None
    """Of the whole job; None without its size."""
    usd: Range | None
    """Of the whole job; None without a price or its size."""
    price: PriceRow | None
    """The row of the price book that the cost follows from; None where a price was given."""


def tokens_of(shape: TrainingShape, samples: int | None, tokens: int | None, epochs: int) -> int | None:
    """Return the tokens of a job, at full rows; None without a size."""
    if samples is not None and tokens is not None:
        raise TunemarkError("--samples", samples, "say how much is trained once: --samples or --tokens")
    for option, value in (("--samples", samples), ("--tokens", tokens), ("--epochs", epochs)):
        if value is not None and value < 1:
            raise TunemarkError(option, value, "must be 1 or more")
    size = samples * shape.sequence_length if samples is not None else tokens
    return None if size is None else size * epochs


def stack_named(fitted: Fit, name: str | None, shape: TrainingShape) -> str:
    """Return the software to predict for: as named, else the one with the most combinations of this method."""
    known = sorted({row.of.stack for row in fitted.rows})
    if name is None:
        return default_stack(fitted.rows, shape.method) or "measured"
    if name not in known:
        raise TunemarkError("--like", name, did_you_mean(name, known))
    return name


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for beside the shape."""

    stack: str
    """Whose software."""
    tokens: int | None
    """Of the whole job; None for its speed alone."""
    usd_per_hour: float | None
    """Of all devices; None for the price book's."""

    def __post_init__(self) -> None:
        """Refuse a price that is none."""
        if self.usd_per_hour is not None and self.usd_per_hour <= 0:
            raise TunemarkError("--usd-per-hour", self.usd_per_hour, "must be above 0")


def answers(facts: FactBase, fitted: Fit, shape: TrainingShape, accelerators: Iterable[str], wanted: Wanted) -> Iterator[Answer]:
    """Yield an answer for each accelerator. What does not fit is not predicted."""
    stack, release = wanted.stack, newest_release(fitted, wanted.stack)
    devices = shape.world_size * shape.tensor_parallel
    for key in accelerators:
        card = facts.accelerators[key]
        fit = next(iter(fits(shape, [card])), None)
        found: Throughput | Missing
        if fit is not None and not fit.fits:
            found = Missing(f"does not fit: {formats.gib(-fit.margin)} short")
        else:
            found = predict(fitted, Combination(card, devices, shape, stack, release, float(shape.tensor_parallel)))
        if isinstance(found, Missing):
            yield Answer(key, card.name, None, found.reason, None, None, None)
            continue
        seconds = None if wanted.tokens is None else found.tokens_per_s.under(wanted.tokens)
        price = price_of(facts.prices, key, devices) if wanted.usd_per_hour is None else None
        hourly = wanted.usd_per_hour if price is None else price.usd_per_hour
        usd = None if seconds is None or hourly is None else seconds.times(hourly / HOUR_S)
        yield Answer(key, card.name, found, None, seconds, usd, price)


def newest_release(fitted: Fit, stack: str) -> str:
    """Return the newest release of a software that results tell of; empty where it has none."""
    return max((row.of.release for row in fitted.rows if row.of.stack == stack), default="")


def show(found: Sequence[Answer], stack: str) -> None:
    """Print answers as a table for people."""
    said = [one for one in found if one.throughput is not None]
    typer.echo("")
    columns = ["accelerator", "predicted tokens/s", "90% interval", "time", "90% interval", "usd", "90% interval", "at"]
    if said:
        print_table(columns, [_line(one) for one in sorted(said, key=_fastest)], title=f"{HEAD}; software as in {stack}")
        typer.echo("")
        print_table(["accelerator", "nearest results", "no result has its"], [_rests(one) for one in sorted(said, key=_fastest)])
    silent = [one for one in found if one.throughput is None]
    if silent:
        typer.echo("")
        print_table(["accelerator", "no data"], [(one.name, one.reason) for one in silent])


def as_json(found: Iterable[Answer], stack: str) -> dict[str, Any]:
    """Return answers as plain data."""
    return {"label": "predicted", "level": LEVEL, "like": stack, "accelerators": [_plain(one) for one in found]}


def _fastest(one: Answer) -> float:
    return -one.throughput.tokens_per_s.value if one.throughput else 0.0


def _line(one: Answer) -> tuple[object, ...]:
    assert one.throughput is not None  # noqa: S101 - only those are asked for
    rate = one.throughput.tokens_per_s
    at = "" if one.price is None else f"{one.price.usd_per_hour:g}/h {one.price.provider} {one.price.instance}"
    return (one.name, *_shown(rate, formats.significant), *_shown(one.seconds, formats.duration), *_shown(one.usd, formats.usd), at)


def _shown(figure: Range | None, show_as: Any) -> tuple[str, str]:  # noqa: ANN401 - a formatter of one number
    if figure is None:
        return "", ""
    return show_as(figure.value), f"{show_as(figure.low)} to {show_as(figure.high)}"


def _rests(one: Answer) -> tuple[object, ...]:
    assert one.throughput is not None  # noqa: S101 - only those are asked for
    return one.name, ", ".join(row.id for row in one.throughput.neighbours), ", ".join(one.throughput.unseen) or "(all seen)"


def _plain(one: Answer) -> dict[str, Any]:
    found = one.throughput
    return {
        "accelerator": one.accelerator,
        "tokens_per_s": None if found is None else _interval(found.tokens_per_s),
        "seconds": _interval(one.seconds),
        "usd": _interval(one.usd),
        "price": None if one.price is None else one.price.model_dump(mode="json"),
        "rests_on": [] if found is None else [row.id for row in found.neighbours],
        "unseen": [] if found is None else list(found.unseen),
        "no_data": one.reason,
    }


def _interval(figure: Range | None) -> dict[str, float] | None:
    return None if figure is None else {"value": figure.value, "low": figure.low, "high": figure.high}
