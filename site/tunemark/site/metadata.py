"""The description of the data for machines: JSON-LD, Croissant and llms.txt."""

import hashlib
import json
from pathlib import Path
from typing import Any

from tunemark.schema import VERSION
from tunemark.schema.quantities import QUANTITIES
from tunemark.site import downloads
from tunemark.site.costs import as_of
from tunemark.site.heads import DESCRIPTIONS, NAME, QUESTION, address
from tunemark.site.page import FEED
from tunemark.site.queries import Catalogue
from tunemark.site.render import ENDING

LICENCE = "https://creativecommons.org/licenses/by/4.0/"
KEYWORDS = ["benchmark", "fine-tuning", "LoRA", "QLoRA", "accelerator", "GPU", "Trainium", "cost", "throughput", "memory"]
DATA_PAGE = "data/index"
CROISSANT = "data/croissant.json"
LLMS = "llms.txt"


def dataset(catalogue: Catalogue, site: Path) -> dict[str, Any]:
    """Return the description of the data as a schema.org Dataset. The files are read for their sizes."""
    url = catalogue.site.url
    day = as_of(catalogue)
    files = [(relation, ending, kind) for relation in downloads.MAIN for ending, kind in (("parquet", PARQUET), ("csv", "text/csv"))]
    content = {
        "@context": "https://schema.org/",
        "@type": "Dataset",
        "name": f"{NAME}: fine-tuning results of accelerators",
        "description": _about(catalogue),
        "url": address(url, DATA_PAGE),
        "license": LICENCE,
        "version": VERSION,
        "dateModified": day,
        "isAccessibleForFree": True,
        "keywords": KEYWORDS,
        "creator": {"@type": "Organization", "name": "Tunemark contributors", "url": url},
        "variableMeasured": [
            {"@type": "PropertyValue", "name": name, "description": QUANTITIES[name].meaning, "unitText": QUANTITIES[name].unit}
            for name in ("tokens_per_s", "samples_per_s", "step_time_s", "peak_memory_bytes", "train_time_s", "train_loss")
        ],
        "distribution": [
            {
                "@type": "DataDownload",
                "name": f"{relation.name}.{ending}",
                "description": relation.contents,
                "contentUrl": f"{url}{relation.path(ending)}",
                "encodingFormat": kind,
                "contentSize": f"{(site / relation.path(ending)).stat().st_size} B",
            }
            for relation, ending, kind in files
        ],
    }
    return {name: value for name, value in content.items() if value is not None}


PARQUET = "application/vnd.apache.parquet"
CROISSANT_TYPES = {
    "BIGINT": "sc:Integer",
    "BOOLEAN": "sc:Boolean",
    "DATE": "sc:Date",
    "DOUBLE": "sc:Float",
    "INTEGER": "sc:Integer",
    "TIMESTAMP": "sc:DateTime",
    "VARCHAR": "sc:Text",
    "VARCHAR[]": "sc:Text",
}
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
"""The context that the specification of Croissant 1.0 prescribes."""


def croissant(catalogue: Catalogue, site: Path) -> dict[str, Any]:
    """Return the description of the Parquet files in MLCommons Croissant 1.0: files with hashes, and record sets with fields."""
    url = catalogue.site.url
    about = dataset(catalogue, site)
    kept = ("name", "description", "url", "license", "dateModified", "keywords", "creator")
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        **{name: about[name] for name in kept if name in about},
        "name": NAME,
        "datePublished": about.get("dateModified", "1970-01-01"),
        "version": VERSION,
        "isLiveDataset": True,
        "citeAs": f"@misc{{tunemark, author = {{{{Tunemark contributors}}}}, title = {{{about['name']}}}, howpublished = {{{url}}}}}",
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": f"{relation.name}.parquet",
                "name": f"{relation.name}.parquet",
                "description": relation.contents,
                "contentUrl": f"{url}{relation.path('parquet')}",
                "encodingFormat": "application/x-parquet",
                "sha256": hashlib.sha256((site / relation.path("parquet")).read_bytes()).hexdigest(),
            }
            for relation in downloads.RELATIONS
        ],
        "recordSet": [_record_set(catalogue, relation) for relation in downloads.RELATIONS],
    }


def _record_set(catalogue: Catalogue, relation: downloads.Relation) -> dict[str, Any]:
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"{relation.name}/{field.name}",
            "name": field.name,
            **({"description": field.meaning} if field.meaning else {}),
            "dataType": CROISSANT_TYPES[field.kind],
            **({"repeated": True} if field.kind.endswith("[]") else {}),
            "source": {"fileObject": {"@id": f"{relation.name}.parquet"}, "extract": {"column": field.name}},
        }
        for field in downloads.fields(catalogue.database, relation)
    ]
    key = {"key": {"@id": f"{relation.name}/{relation.key}"}} if relation.key else {}
    return {"@type": "cr:RecordSet", "@id": relation.name, "name": relation.name, "description": relation.contents, **key, "field": fields}


def _about(catalogue: Catalogue) -> str:
    results, prices = len(catalogue.results), len(catalogue.prices)
    return (
        f"{results:,} measured, published and converted results of fine-tuning language models on accelerators: conditions, throughput, "
        f"memory, utilisation and cost, with {prices:,} dated prices and an audit of each figure. {QUESTION}"
    )


def llms_text(catalogue: Catalogue) -> str:
    """Return llms.txt (llmstxt.org): the main pages and files, one line each."""
    url = catalogue.site.url
    pages = (
        ("Home", "index", DESCRIPTIONS["home.md.j2"]),
        ("Results", "results/index", DESCRIPTIONS["results.md.j2"]),
        ("Compare", "compare", DESCRIPTIONS["compare.md.j2"]),
        ("Cost", "cost", DESCRIPTIONS["cost.md.j2"]),
        ("Accelerators", "accelerators/index", DESCRIPTIONS["accelerators.md.j2"]),
        ("Models", "models/index", DESCRIPTIONS["models.md.j2"]),
        ("Workloads", "workloads/index", DESCRIPTIONS["workloads.md.j2"]),
        ("Studies", "studies/index", DESCRIPTIONS["studies.md.j2"]),
        ("Sources", "documents/index", DESCRIPTIONS["documents.md.j2"]),
        ("Audit", "audit/index", DESCRIPTIONS["audit.md.j2"]),
        ("How to read a number", "guide/index", DESCRIPTIONS["reading.md.j2"]),
        ("Definitions", "guide/definitions", DESCRIPTIONS["definitions.md.j2"]),
    )
    main = [(f"{relation.name} (CSV)", relation.path("csv"), relation.contents) for relation in downloads.MAIN]
    files = (
        ("Data and API", f"{DATA_PAGE}{ENDING}", "All files, with a table of fields."),
        ("API index", "api/v1/index.json", "All files of the JSON API, each with its JSON Schema."),
        *main,
        ("DuckDB", downloads.DUCKDB_FILE, "All tables in one file."),
        ("Croissant", CROISSANT, "Croissant 1.0 metadata of the Parquet files."),
        ("Atom feed", FEED, "New results, documents and prices."),
    )
    lines = [f"# {NAME}", "", f"> {QUESTION} {_about(catalogue).removesuffix(QUESTION).strip()}", ""]
    lines += ["Every figure has a trust level: published, converted, measured or reproduced. Unknown values are null, never 0."]
    lines += ["Results are comparable only within a comparability group. Units are in the names of columns.", "", "## Pages", ""]
    lines += [f"- [{name}]({address(url, path)}): {text}" for name, path, text in pages]
    lines += ["", "## Data", ""]
    lines += [f"- [{name}]({url}{path}): {text}" for name, path, text in files]
    return "\n".join(lines) + "\n"


def write(catalogue: Catalogue, site: Path) -> None:
    """Write the files that describe the data below a folder."""
    text = json.dumps(croissant(catalogue, site), indent=1, ensure_ascii=False)
    (site / CROISSANT).write_text(f"{text}\n", encoding="utf-8")
    (site / LLMS).write_text(llms_text(catalogue), encoding="utf-8")
