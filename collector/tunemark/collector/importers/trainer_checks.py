"""What the figures of one training say about each other: the meaning of a step, and contradictions."""

from collections.abc import Iterator, Mapping

from tunemark.schema.records.published import Claim

AGREES = 0.01
"""Steps times seconds a step may differ from the training time by this share, for rounding and the first step."""
CONTRADICTS = 0.1
"""Figures that differ by more, after rounding, cannot be of one training."""


def step_of(claims: Mapping[str, Claim]) -> Claim | None:
    """Return the time of a step with a note that it is an optimizer step, where steps times this time is the training time."""
    step, steps, total = (claims.get(name) for name in ("step_time_s", "steps", "train_time_s"))
    if step is None or steps is None or total is None or not total.value or step.note:
        return None
    if abs(step.value * steps.value / total.value - 1) > AGREES:
        return None
    return step.model_copy(update={"note": "An optimizer step: steps times this figure is the training time."})


def contradictions(claims: Mapping[str, Claim]) -> Iterator[str]:
    """Yield a sentence for each two figures that cannot both be right."""
    wall, total = claims.get("wall_s"), claims.get("train_time_s")
    if wall and total and wall.value < total.value * (1 - AGREES):
        yield f"The whole process took {wall.printed}, less than its training ({total.printed} s)."
    rate, steps = claims.get("steps_per_s"), claims.get("steps")
    if rate and steps and total and total.value and "total_steps" not in claims:
        counted = steps.value / total.value
        if abs(counted / rate.value - 1) > CONTRADICTS + (rate.resolution or 0):
            yield f"{steps.printed} steps in {total.printed} s are {counted:.4g} a second, and {rate.printed} are printed."
