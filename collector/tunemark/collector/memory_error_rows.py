"""The error of the memory model on each published peak, as rows."""

from collections.abc import Iterable

from tunemark.collector.predict.published_memory import memory_errors
from tunemark.collector.rows import Row
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.converted import ConvertedResult
from tunemark.schema.records.published import PublishedResult


def memory_error_rows(facts: FactBase, results: Iterable[PublishedResult | ConvertedResult]) -> list[Row]:
    """Return rows of the documents whose figures of memory have a reading; without one it is not known what is compared."""
    read = {one.source: " ".join(one.because) for one in facts.known.memory_readings}
    found = memory_errors(tuple(one for one in results if isinstance(one, PublishedResult) and one.source in read), facts)
    return [
        {
            "result_id": one.id,
            "model": one.model,
            "method": one.method.value,
            "accelerator": one.accelerator,
            "accelerator_count": one.devices,
            "published_bytes": one.published,
            "predicted_bytes": one.predicted,
            "formula_004_bytes": one.formula_004,
            "accelerate_bytes": one.accelerate,
            "error": one.error,
            "reading": read[one.id.split("-")[0]],
        }
        for one in found
    ]
