"""The pages of the site. A page is a file `<name>.md.j2` in this folder or in studies/; sql_page.py describes how it is written.

What neither SQL nor a template can say is a function or a constant here, which templates use by its name.
"""

from collections.abc import Iterator
from importlib import resources

from pydantic import BaseModel

from tunemark.schema.comparability import COMPARABILITY_KEYS
from tunemark.schema.physics.stacks import STACKS
from tunemark.schema.privacy import PATTERNS
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.plan import FREE_SETTINGS, MEANING
from tunemark.schema.records.published import PublishedResult
from tunemark.schema.records.reading import field_reference
from tunemark.schema.records.submission import Environment, Submission
from tunemark.schema.vocabulary import MLPERF_LABEL, Status, WarningKind
from tunemark.site import charts, data_files, home, python_module, studies, wording
from tunemark.site.page import Page
from tunemark.site.records import Catalogue
from tunemark.site.sql_page import STUDY, Runner, page_files

RECORDS: dict[str, type[BaseModel]] = {"submission": Submission, "published": PublishedResult, "environment": Environment}
CONSTANTS: dict[str, object] = {
    "divisions": {division.value: meaning for division, meaning in MEANING.items()},
    "free_settings": FREE_SETTINGS,
    "comparability_keys": COMPARABILITY_KEYS,
    "never_recorded": sorted(PATTERNS),
    "statuses": [status.value for status in Status],
    "warning_kinds": [kind.value for kind in WarningKind],
    "task_names": wording.TASKS,
    "phase_names": wording.PHASES,
    "quantity_labels": {key: row.label for key, row in QUANTITIES.items()},
    "quantity_text": lambda key, value: QUANTITIES[key].text(value),
    "trust_levels": wording.TRUST,
    "mlperf_label": MLPERF_LABEL,
    "stacks": list(STACKS.values()),
    "quantities": [
        {
            "label": row.label,
            "label_small": row.key,
            "unit": "count, share or ratio" if row.unit == "1" else row.unit,
            "better": row.better or "neither",
            "meaning": row.meaning,
        }
        for row in QUANTITIES.values()
    ],
}


RESULT = "result"
"""The file of the pages of results, which are thousands."""
STUDY_DEFAULTS = {"path": "studies/{{ name }}", "layout": STUDY, "crumbs": [["Studies", "studies/index"]]}
"""Description of a study where its file says nothing else."""
FOLDER = resources.files(__name__)


def runner(catalogue: Catalogue) -> Runner:
    """Return the runner of the site's pages, with all that templates use by name."""
    database = catalogue.database
    return Runner(
        database,
        {
            **CONSTANTS,
            "step_time_chart": charts.step_time_chart,
            "loss_chart": charts.loss_chart,
            "loss_of_runs": charts.loss_of_runs,
            "first_answer": lambda: home.first_answer(database),
            "site_url": catalogue.url,
            "files": catalogue.files,
            "python_api": lambda: list(python_module.public_functions("tunemark.collector.api")),
            "published_tables": lambda: data_files.published_tables(database),
            "fields_of": lambda table: data_files.fields(database, table),
            "record_fields": lambda name: [
                {"field": field, "kind": kind.replace("`", ""), "meaning": meaning}
                for field, kind, meaning in field_reference(RECORDS[name])
            ],
        },
    )


def result_pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the page of each result."""
    yield from runner(catalogue).family(next(file for file in page_files(FOLDER) if file.name == RESULT))


def other_pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield all pages but those of single results. The first pages of the studies and of the guide come last, since they list the others."""
    made = runner(catalogue)
    listed: list[Page] = []
    files = [file for file in page_files(FOLDER) if file.name != RESULT]
    for file in [*page_files(resources.files(studies), **STUDY_DEFAULTS), *files]:
        for page in made.family(file, listed_pages=listed):
            listed.append(page)
            yield page
