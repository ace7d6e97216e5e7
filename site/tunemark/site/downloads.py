"""All results as one CSV file, for those who want to reckon for themselves."""

import csv
import io

from tunemark.site.escape import one_line
from tunemark.site.queries import Catalogue

PATH = "data/results.csv"
FORMULA = ("=", "+", "-", "@")


def results_csv(catalogue: Catalogue) -> str:
    """Return the view `results` as CSV; empty is unknown, and units are in the names of the columns."""
    out = io.StringIO()
    if catalogue.results:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(catalogue.results[0])
        writer.writerows([_cell(value) for value in row.values()] for row in catalogue.results)
    return out.getvalue()


def _cell(value: object) -> object:
    """Return a value that a spreadsheet shows and does not run as a formula."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.startswith(FORMULA) else text
