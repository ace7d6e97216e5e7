"""The data files of the site: for other tools, for the API, and for the scripts of pages. MkDocs does not see them."""

from pathlib import Path

from tunemark.site import costs, downloads, recommend_data, reproduce
from tunemark.site.api import RESULT, Api
from tunemark.site.explorer_data import EXPLORER_PATH, explorer_json
from tunemark.site.kept_results import KeptResults, paths_of
from tunemark.site.pages import compare, predictions
from tunemark.site.queries import Catalogue


def write(catalogue: Catalogue, folder: Path, kept: KeptResults) -> None:
    """Write all data files below a folder."""
    downloads.write_files(catalogue.database, folder)
    downloads.write_duckdb(catalogue.database, folder)
    texts = {
        compare.DATA_PATH: compare.compare_json(catalogue),
        costs.DATA_PATH: costs.cost_json(catalogue),
        costs.CSV_PATH: downloads.csv_text(costs.default_costs(catalogue)),
        EXPLORER_PATH: explorer_json(catalogue),
        predictions.ERRORS_CSV: downloads.csv_text(catalogue.predictions["throughput_errors"]),
        **dict(recommend_data.data_files(catalogue)),
    }
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    reproduce.write_files(catalogue, folder)
    api = Api(catalogue)
    api.write(folder, kept.files)
    for result in kept.files:
        kept.renew(paths_of(result)[1], folder, api.start, RESULT)
