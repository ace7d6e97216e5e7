"""What other places show of this site: a picture and a chart of each study, JSON-LD, and the folders for the Hugging Face hub."""

import os
import re
import textwrap
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

import vl_convert
import yaml

from tunemark.schema.quantities import QUANTITIES
from tunemark.site import data_files
from tunemark.site.charts import Chart
from tunemark.site.database import Database
from tunemark.site.page import NAME, QUESTION, Page, address
from tunemark.site.tables import Row

INKS = {
    "var(--tm-warmup)": "#b45309",
    "var(--tm-steady)": "#0f766e",
    "var(--tm-accent)": "#0f766e",
    "var(--tm-line)": "#d9dee3",
    "currentColor": "#17202a",
}
"""The page's variables -> its light palette (tunemark.css): a picture is outside the page."""
WIDTH, HEIGHT = 1200, 630
"""Pixels of the picture that OpenGraph recommends."""
LETTERS, LINES = 44, 3
"""Letters of the title in a line of the picture, and its lines."""
SIZE = re.compile(r'<svg [^>]*?width="([\d.]+)" height="([\d.]+)"')
CARD = """<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}"><rect width="{w}" height="{h}" fill="#fff"/><rect width="12" height="{h}" fill="#0f766e"/>
<g font-family="system-ui, DejaVu Sans, sans-serif" fill="#17202a">{title}<text x="56" y="{foot}" font-size="24" fill="#5b6670">{foot_text}</text></g>{chart}</svg>"""
SCHEMA_TYPES = {"results": "Dataset", "studies": "Report", "accelerators": "Product"}
"""Folder -> type of schema.org of its pages."""
FACTS = {
    "memory_gib": ("Memory", "GiB"),
    "memory_bandwidth_gb_s": ("Memory bandwidth", "GB/s"),
    "peak_bf16_tflops": ("Dense peak, bf16", "TFLOP/s"),
    "tdp_w": ("Board power", "W"),
}
"""Facts of accelerators that their JSON-LD has: column -> name and unit."""


def picture_path(page: Page) -> str | None:
    """Return the path of a page's own picture: those with charts inside a folder have one."""
    return f"{page.path}.png" if charts_of(page) and "/" in page.path else None


def chart_path(page: Page, number: int) -> str:
    """Return the path of the nth chart of a page as a file to embed."""
    return f"{page.path}-chart-{number}.svg"


def charts_of(page: Page) -> list[Chart]:
    """Return the charts of a study; none of other pages."""
    return list(getattr(page.context.get("writer"), "drawings", ())) if page.path.startswith("studies/") else []


def pictures(page: Page, url: str) -> Iterator[tuple[str, bytes]]:
    """Yield the path and the contents of each chart of a page, and of its picture with the first one."""
    for number, chart in enumerate(charts_of(page), 1):
        yield chart_path(page, number), standalone(chart.svg).encode()
    path = picture_path(page)
    if path is not None:
        yield path, vl_convert.svg_to_png(card(page.title, charts_of(page)[0].svg, address(url, page.path)))


def standalone(svg: str) -> str:
    """Return a drawing of a page with its own colours, on white, for use in other documents."""
    for name, colour in INKS.items():
        svg = svg.replace(name, colour)
    return svg.replace(">", '><rect width="100%" height="100%" fill="#fff"/>', 1)


def card(title: str, svg: str, foot: str) -> str:
    """Return the picture of a study as SVG: its title, its chart and its address."""
    lines = textwrap.wrap(title, LETTERS, max_lines=LINES, placeholder=" …")
    shown = "".join(
        f'<text x="56" y="{88 + 54 * place}" font-size="44" font-weight="700">{escape(line)}</text>' for place, line in enumerate(lines)
    )
    top, size = 64 + 54 * len(lines), SIZE.search(svg)
    width, height = (float(part) for part in size.groups()) if size else (WIDTH, HEIGHT)
    scale = min((WIDTH - 112) / width, (HEIGHT - 76 - top) / height)
    chart = f'<g transform="translate({(WIDTH - width * scale) / 2:.1f} {top}) scale({scale:.4f})">{standalone(svg)}</g>'
    return CARD.format(w=WIDTH, h=HEIGHT, title=shown, foot=HEIGHT - 28, foot_text=escape(f"{NAME}  ·  {foot}"), chart=chart)


def linked_data(page: Page, title: str, description: str, url: str) -> Row | None:
    """Return the JSON-LD of the page of a result, a study or an accelerator; None for another page."""
    folder, _, name = page.path.rpartition("/")
    kind, row = SCHEMA_TYPES.get(folder), page.context.get("row")
    if kind is None or name == "index":
        return None
    here, known = address(url, page.path), row if isinstance(row, Mapping) else {}
    made: Row = {"@context": "https://schema.org/", "@type": kind, "@id": here, "url": here, "name": title, "description": description}
    if kind == "Product":
        figures = [_figure(label, known[key], unit) for key, (label, unit) in FACTS.items() if known[key] is not None]
        return made | {"category": "accelerator", "brand": {"@type": "Brand", "name": known["vendor"]}, "additionalProperty": figures}
    made |= {"identifier": name, "license": data_files.LICENCE, "isPartOf": address(url, "data/index"), "creator": data_files.creator(url)}
    if kind == "Report":
        return made | {"headline": title, "image": f"{url}{picture_path(page) or 'assets/card.png'}"}
    figures = [_figure(each.label, known[key], each.unit) for key, each in QUANTITIES.items() if isinstance(known.get(key), int | float)]
    return made | {"variableMeasured": figures}


def _figure(name: str, value: float, unit: str) -> Row:
    return {"@type": "PropertyValue", "name": name, "value": value, "unitText": unit}


# The hub -------------------------------------------------------------------------------------------

DATASET = """
# Tunemark: fine-tuning results of accelerators

{question} {results} results with their conditions, dated prices and the findings of an audit, as of {day}.

```python
from datasets import load_dataset
results = load_dataset("{repository}", "results", split="train")
```

Columns, units and meanings: {url}data/. A figure of a document is a claim of that document: cite its source (table `sources`) as well as Tunemark.
"""
SPACE = "\n# Tunemark\n\n{question} This Space shows {url}.\n"
PAGE = '<!doctype html><html lang="en"><meta charset="utf-8"><title>Tunemark</title><style>html,body,iframe{{margin:0;width:100%;height:100%;border:0}}</style><iframe src="{url}" title="Tunemark"></iframe></html>\n'
REPOSITORY = "tunemark/results"


def write_hub(database: Database, site: Path, folder: Path, url: str) -> None:
    """Write the folders `dataset` and `space`, each as it is pushed to the hub, with the Parquet files of a built site."""
    (row,) = database.rows("select results, (select cast(max(as_of) as varchar) from collection) as day from totals")
    words = {"question": QUESTION, "url": url, "results": f"{row['results']:,}", "day": row["day"], "repository": REPOSITORY}
    configs = [
        {"config_name": name, "data_files": f"data/{name}.parquet", **({"default": True} if name == "results" else {})}
        for name in data_files.TABLES
    ]
    front = {
        "license": "cc-by-4.0",
        "pretty_name": NAME,
        "language": ["en"],
        "tags": [word.lower() for word in data_files.KEYWORDS],
        "configs": configs,
    }
    space = {
        "title": NAME,
        "emoji": "📊",
        "colorFrom": "green",
        "colorTo": "blue",
        "sdk": "static",
        "pinned": False,
        "license": "apache-2.0",
    }
    for path, text in {
        "dataset/README.md": f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n{DATASET.format(**words)}",
        "space/README.md": f"---\n{yaml.safe_dump(space, sort_keys=False, allow_unicode=True)}---\n{SPACE.format(**words)}",
        "space/index.html": PAGE.format(url=url),
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    (folder / "dataset/data").mkdir()
    for name in data_files.TABLES:
        os.link(site / data_files.FOLDER / f"{name}.parquet", folder / "dataset/data" / f"{name}.parquet")
