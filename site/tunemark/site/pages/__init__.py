"""One module per kind of page. Each has a function `pages(catalogue)` that yields pages from database rows.

A new module in this folder is found automatically. Pages under `guide/` are listed on the guide's first page; other
lists are linked from the navigation in mkdocs.yml.
"""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

from tunemark.site.page import Page
from tunemark.site.queries import Catalogue

OF_RESULTS = ("measured", "mlperf", "published")
"""Modules with one page per result."""


def all_pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield every page of the site."""
    yield from result_pages(catalogue)
    yield from other_pages(catalogue)


def result_pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the page of each result. What they show is computed when they are written."""
    for name in OF_RESULTS:
        yield from import_module(f"{__name__}.{name}").pages(catalogue)


def other_pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield all pages but those of single results; the guide's first page comes last, since it lists the others."""
    guide = import_module(f"{__name__}.guide")
    listed: list[Page] = []
    for name in sorted({found.name for found in iter_modules(__path__)} - {"guide", *OF_RESULTS}):
        for page in import_module(f"{__name__}.{name}").pages(catalogue):
            listed += [page] if page.path.startswith("guide/") else []
            yield page
    yield from guide.pages(catalogue, listed)
