"""The data files of the site: for other tools, for the API, and for the scripts of pages. MkDocs does not see them."""

from pathlib import Path

from tunemark.site import costs, downloads, recommend_data, reproduce
from tunemark.site.api import Api
from tunemark.site.explorer_data import EXPLORER_PATH, explorer_json
from tunemark.site.kept_results import KeptResults
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
    Api(catalogue).write(folder, kept)


def move(source: Path, target: Path) -> None:
    """Move everything in a folder into another one on the same file system, which can have folders of the same names."""
    for path in source.iterdir():
        place = target / path.name
        if path.is_dir() and place.is_dir():
            move(path, place)
        else:
            path.rename(place)
