"""Factories of evidence: results and statements of a document that does not exist."""

from factories import FACTS

from tunemark.collector.audit.evidence import Evidence
from tunemark.collector.audit.load import audited_record
from tunemark.schema.records.published import Claim, Conditions, Origin, PublishedResult, Reading, SourceDocument, Statement

SOURCE = "900"
BERT = {"model": "bert-base-uncased", "method": "full", "sequence_length": 128, "dataset": "dair-ai/emotion"}
A100, H100 = "nvidia-a100-80gb-sxm", "nvidia-h100-80gb-sxm"


def claim(value, printed=None, **readings):
    """A printed figure. Keyword arguments are readings by meaning, with underscores for spaces."""
    shown = printed if printed is not None else f"{value:,.10g}"
    return Claim(
        value=value, printed=shown, readings=tuple(Reading(meaning=name.replace("_", " "), value=one) for name, one in readings.items())
    )


def result(number=1, *, claims=None, labels=None, section="Table", status="ok", source=SOURCE, **conditions):
    """A LoRA run of Llama 2 7B, 4 rows of 2,048 tokens on one A100, by default."""
    plain = {"model": "llama-2-7b", "method": "lora", "accelerator": A100, "accelerator_count": 1, "precision": "bf16"}
    plain |= {"micro_batch": 4, "gradient_accumulation": 1, "sequence_length": 2048, "padding": "none"}
    return PublishedResult(
        id=f"{source}-{number:03d}",
        source=source,
        section=section,
        origin=Origin(kind="document"),
        labels=labels or {"model": "Llama 2 7B"},
        conditions=Conditions.model_validate(plain | conditions),
        claims={name: value if isinstance(value, Claim) else claim(value) for name, value in (claims or {}).items()},
        status=status,
    )


def statement(assertion, number=1, *, claims=None, labels=None):
    return Statement(
        id=f"{SOURCE}-S{number:02d}",
        section="Text",
        labels=labels or {},
        claims={name: value if isinstance(value, Claim) else claim(value) for name, value in (claims or {}).items()},
        assertion=assertion,
    )


def evidence(*records):
    """The evidence of results and statements."""
    results = [record for record in records if isinstance(record, PublishedResult)]
    document = SourceDocument(
        id=SOURCE,
        title="A document",
        summary="Made by hand.",
        licence="CC0-1.0",
        results=len(results),
        statements=tuple(record for record in records if isinstance(record, Statement)),
    )
    return Evidence(tuple(audited_record(record, FACTS) for record in results), (document,), FACTS)


def offer(price, *, used_for=(), **more):
    plain = {"kind": "offer", "provider": "aws", "accelerator": A100, "instance": "p4de", "used_for": list(used_for)}
    return statement(plain | more, claims={"price_usd_per_hour": claim(price, f"${price}")})
