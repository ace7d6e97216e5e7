"""Cost arithmetic: price an hour of what has to be rented, times hours. One place, for all rooms."""

from dataclasses import dataclass

HOUR_S = 3_600


@dataclass(frozen=True, slots=True)
class Cost:
    """US dollars for amounts of work at one throughput and one price."""

    usd_per_hour: float
    per_1k_samples: float | None
    per_1m_samples: float | None
    per_1m_tokens: float | None


def instances_needed(accelerators: int, accelerators_per_instance: float) -> int:
    """Return how many whole instances hold so many accelerators; instances are indivisible."""
    return max(1, -(-accelerators // max(1, int(accelerators_per_instance))))


def cost_of(usd_per_hour: float, *, samples_per_s: float | None, tokens_per_s: float | None) -> Cost:
    """Return what work costs at a price in USD/h and throughputs in 1/s (definitions.md, 15)."""
    usd_per_s = usd_per_hour / HOUR_S
    per_sample = usd_per_s / samples_per_s if samples_per_s else None
    return Cost(
        usd_per_hour=usd_per_hour,
        per_1k_samples=None if per_sample is None else per_sample * 1_000,
        per_1m_samples=None if per_sample is None else per_sample * 1_000_000,
        per_1m_tokens=usd_per_s / tokens_per_s * 1_000_000 if tokens_per_s else None,
    )
