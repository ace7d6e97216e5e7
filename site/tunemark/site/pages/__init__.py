"""One module per kind of page. Each has a function `pages(catalogue)` that yields pages from database rows.

A new module in this folder is found automatically. Pages under `guide/` are listed on the guide's first page; other
lists are linked from the navigation in mkdocs.yml.
"""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

from tunemark.site.page import Page
from tunemark.site.queries import Catalogue


def all_pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield every page of the site; the guide's first page comes last, since it lists the others."""
    guide = import_module(f"{__name__}.guide")
    listed: list[Page] = []
    for module in sorted(found.name for found in iter_modules(__path__)):
        if module != "guide":
            for page in import_module(f"{__name__}.{module}").pages(catalogue):
                listed += [page] if page.path.startswith("guide/") else []
                yield page
    yield from guide.pages(catalogue, listed)
