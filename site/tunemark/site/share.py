"""What other places show of this site: pictures of studies and results, charts, JSON-LD, and the folders for the Hugging Face hub."""

import io
import os
import re
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import vl_convert
import yaml
from PIL import Image, ImageDraw, ImageFont

from tunemark.schema.quantities import QUANTITIES
from tunemark.site import data_files
from tunemark.site.charts import Chart
from tunemark.site.database import Database
from tunemark.site.page import NAME, QUESTION, Page, Row, address

INK = "--md-default-fg-color"
"""Variable of the page that is the colour of text."""
COLOUR = re.compile(r"(--[\w-]+): (#[0-9a-f]+);")
WIDTH, HEIGHT = PIXELS = 1200, 630
"""Pixels of the picture that OpenGraph recommends."""
LETTERS, LINES, TITLE = 44, 3, 44
"""Letters of the title in a line of the picture, its lines, and their height in pixels."""
RESULT_PIXELS = 600, 315
"""Pixels of the pictures of results, which are thousands: the least that is shown at full width."""
FONT = cache(ImageFont.load_default)
"""The font that is part of Pillow, by its size in pixels."""
SIZE = re.compile(r'<svg [^>]*?width="([\d.]+)" height="([\d.]+)"')
CARD = """<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}"><rect width="{w}" height="{h}" fill="#fff"/><rect width="12" height="{h}" fill="var(--tm-accent)"/>
<g font-family="system-ui, DejaVu Sans, sans-serif" fill="currentColor">{title}<text x="56" y="{foot}" font-size="24" fill="var(--tm-quiet)">{foot_text}</text></g>{chart}</svg>"""
SCHEMA_TYPES = {"results": "Dataset", "studies": "Report", "accelerators": "Product", "models": "Product"}
"""Folder -> type of schema.org of its pages."""
FACTS = {
    "memory_gib": ("Memory", "GiB"),
    "memory_bandwidth_gb_s": ("Memory bandwidth", "GB/s"),
    "peak_bf16_tflops": ("Dense peak, bf16", "TFLOP/s"),
    "tdp_w": ("Board power", "W"),
    "parameters": ("Parameters", "1"),
    "context_length": ("Context length", "tokens"),
}
"""Facts of accelerators and models that their JSON-LD has: column -> name and unit."""


def picture_path(page: Page) -> str | None:
    """Return the path of a page's own picture: studies with charts, and results, have one."""
    return f"{page.path}.png" if charts_of(page) or (page.path.startswith("results/") and page.path != "results/index") else None


def charts_of(page: Page) -> list[Chart]:
    """Return the charts of a study; none of other pages."""
    return list(getattr(page.context.get("writer"), "drawings", ())) if page.path.startswith("studies/") else []


def pictures(page: Page, url: str) -> Iterator[tuple[str, bytes]]:
    """Yield the path and the contents of each chart of a page, and of its picture with the first one."""
    for number, chart in enumerate(charts_of(page), 1):
        yield f"{page.path}-chart-{number}.svg", standalone(chart.svg).encode()
    path = picture_path(page)
    if path is not None:
        yield path, vl_convert.svg_to_png(card(page, address(url, page.path))) if charts_of(page) else result_card(page, url)


def result_card(page: Page, url: str) -> bytes:
    """Return the picture of a result as PNG: its title, its first figures, its evidence, and its address. Drawing SVG would take 50 ms."""
    row: Any = page.context["row"]
    figures = row["summary"].removesuffix(f". {row['trust_explained']}").split("; ")[:4]
    lines = [(line, 22) for line in textwrap.wrap(page.title, LETTERS, max_lines=LINES, placeholder=" …")]
    lines += [(figure, 17 if place else 28) for place, figure in enumerate([*figures, f"Evidence: {row['trust_shown']}"])]
    image, top = Image.new("L", RESULT_PIXELS, 255), 18.0
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, 6, RESULT_PIXELS[1]), fill=90)
    for line, size in lines:
        draw.text((28, top), line.replace("\u00a0", " ").replace("\u00d7", "x"), 0, FONT(size))  # the font has neither
        top += 1.35 * size
    draw.text((28, RESULT_PIXELS[1] - 28), f"{NAME}  ·  {address(url, page.path)}", 90, FONT(13))
    image = image.point([shade // 64 for shade in range(256)])
    image.putpalette([channel for shade in (0, 85, 170, 255) for channel in [shade] * 3])
    image.save(out := io.BytesIO(), "PNG", compress_level=1, bits=2)
    return out.getvalue()


def standalone(svg: str) -> str:
    """Return a drawing of a page with its own colours, on white, for use in other documents."""
    return _inked(svg).replace(">", '><rect width="100%" height="100%" fill="#fff"/>', 1)


def _inked(svg: str) -> str:
    """Return a drawing with the page's light colours in place of its variables, which are known on pages only."""
    inks = _light_colours()
    svg = svg.replace("currentColor", inks[INK])
    return re.sub(r"var\((--[\w-]+)\)", lambda match: inks[match[1]], svg)


@cache
def _light_colours() -> dict[str, str]:
    """Return the colours of the style sheet by name. It gives those of the light palette first."""
    found = COLOUR.findall(resources.files("tunemark.site").joinpath("assets", "tunemark.css").read_text(encoding="utf-8"))
    return dict(reversed(found))


def card(page: Page, foot: str) -> str:
    """Return the picture of a page as SVG: its title, its first chart, and its address."""
    top, shown, chart = 34.0, "", ""
    for line in textwrap.wrap(page.title, LETTERS, max_lines=LINES, placeholder=" …"):
        top += 1.3 * TITLE
        shown += f'<text x="56" y="{top:.0f}" font-size="{TITLE}" font-weight="700">{escape(line)}</text>'
    for drawing in charts_of(page)[:1]:
        found = SIZE.search(drawing.svg)
        width, height = (float(part) for part in found.groups()) if found else (WIDTH, HEIGHT)
        scale = min((WIDTH - 112) / width, (HEIGHT - 100 - top) / height)
        chart = f'<g transform="translate({(WIDTH - width * scale) / 2:.1f} {top + 24}) scale({scale:.4f})">{standalone(drawing.svg)}</g>'
    return _inked(CARD.format(w=WIDTH, h=HEIGHT, title=shown, foot=HEIGHT - 28, foot_text=escape(f"{NAME}  ·  {foot}"), chart=chart))


def linked_data(page: Page, title: str, description: str, url: str) -> Row | None:
    """Return the JSON-LD of the page of a result, a study or an accelerator; None for another page."""
    folder, _, name = page.path.rpartition("/")
    kind, row = SCHEMA_TYPES.get(folder), page.context.get("row")
    if kind is None or name == "index":
        return None
    here, known = address(url, page.path), row if isinstance(row, Mapping) else {}
    made: Row = {"@context": "https://schema.org/", "@type": kind, "@id": here, "url": here, "name": title, "description": description}
    if kind == "Product":
        figures = [_figure(label, known[key], unit) for key, (label, unit) in FACTS.items() if known.get(key) is not None]
        brand = {"@type": "Brand", "name": known.get("vendor") or known["family"]}
        return made | {"category": folder[:-1], "brand": brand, "additionalProperty": figures}
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
    tags = [word.lower() for word in data_files.KEYWORDS]
    front = {"license": "cc-by-4.0", "pretty_name": NAME, "language": ["en"], "tags": tags, "configs": configs}
    space = {"title": NAME, "emoji": "📊", "colorFrom": "green", "colorTo": "blue", "sdk": "static", "license": "apache-2.0"}
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
