"""The pages of studies: findings over all results, and series of runs. Each is a file of the folder studies/, and so is a new one."""

from collections.abc import Iterator
from importlib import resources

from tunemark.site import columns, studies, wording
from tunemark.site.page import Page
from tunemark.site.queries import Catalogue
from tunemark.site.sql_page import STUDY, Runner

DEFAULTS = {"path": "studies/{{ name }}", "layout": STUDY, "crumbs": (("Studies", "studies/index"),)}
"""Description of a study where its file says nothing else."""
SERIES = """
    select * exclude (started_at), study_kind as kind, 'studies/' || study_id as kind_href, study_id as kind_small, epoch_us(started_at) as started_us
    from studies
    order by started_at desc, study_id
"""
COLUMNS = (
    ("kind", "Study", "series"),
    "workload",
    ("accelerator_name", "Device"),
    ("points", "Points", "whole"),
    ("runs", "Runs", "whole"),
    ("failed", "Failed", "whole"),
    ("started_us", "Date", "day"),
)


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the list of studies and their pages."""
    made = list(Runner(catalogue.database).pages(resources.files(studies), **DEFAULTS))
    series = catalogue.database.rows(SERIES)
    context: dict[str, object] = {
        "studies": [page for page in made if page.template == STUDY],
        "table": columns.table("Series of runs", series, COLUMNS, interactive=True) if series else None,
        "meaning": wording.SERIES_MEANING,
        "names": wording.SERIES,
    }
    yield Page("studies/index", "Studies", "studies.md.j2", context)
    yield from made
