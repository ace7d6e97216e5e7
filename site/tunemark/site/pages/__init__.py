"""The kinds of pages, one module each: database rows -> pages. Rendering is elsewhere."""

from collections.abc import Iterator

from tunemark.site.page import Page
from tunemark.site.pages import (
    accelerators,
    audit,
    cost,
    device_coverage,
    documents,
    guide,
    home,
    measured,
    mlperf,
    models,
    predictions,
    provenance,
    published,
    results,
    studies,
    workloads,
)
from tunemark.site.queries import Catalogue


def all_pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield every page of the site."""
    for kind in _KINDS:
        yield from kind.pages(catalogue)


_KINDS = (
    home,
    results,
    workloads,
    studies,
    measured,
    published,
    mlperf,
    accelerators,
    models,
    documents,
    audit,
    cost,
    guide,
    device_coverage,
    predictions,
    provenance,
)
