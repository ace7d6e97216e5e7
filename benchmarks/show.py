"""Write pages as pictures, and one number on its way through all pages and data, to build/show/: `python benchmarks show`.

Run it after `tunemark site build`. `.ci/release minute` adds the recorded minute of a stranger and thirty typing errors.
"""

import re
import threading
from pathlib import Path

from playwright.sync_api import sync_playwright

from tunemark.site.commands import open_server

ROOT = Path(__file__).parents[1]
SITE, OUT = ROOT / "build/site", ROOT / "build/show"
STUDIES = ("training-cost", "methods", "recommendations")
PAGES = ("index", "results/index", "compare", "cost", *(f"studies/{name}" for name in STUDIES), "results/018-010")
LOOKS = {"1280": (1280, "light"), "390": (390, "light"), "dark": (1280, "dark"), "print": (800, "light")}
RESULT, NUMBER, NEAR = "018-010", re.compile(r"\b4,?0(?:80|79\.28)\b"), 1500
"""A result, its published rate as pages round it and as its source prints it, and the most characters between the two."""


def pictures(address: str) -> None:
    """Write each page in each look."""
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for look, (width, scheme) in LOOKS.items():
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.emulate_media(media="print" if look == "print" else "screen")
            for name in PAGES:
                page.goto(f"{address}/{name}.html", wait_until="networkidle")
                page.screenshot(path=OUT / f"{name.replace('/', '-')}-{look}.png", full_page=True, animations="disabled")


def walk() -> str:
    """Return each record, page and data file that shows the number beside the name of its result, and how it is written there."""
    lines = []
    for path in (ROOT / "data/published/018/results.json", *sorted(SITE.rglob("*"))):
        text = path.read_text(encoding="utf-8") if path.suffix in {".html", ".json", ".csv"} else ""
        near = [text] if RESULT in path.name else [text[max(0, at.start() - NEAR) : at.end() + NEAR] for at in re.finditer(RESULT, text)]
        if shown := {found for part in near for found in NUMBER.findall(part)}:
            lines.append(f"{path.relative_to(ROOT)}: {', '.join(sorted(shown))}")
    return "\n".join(lines)


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "walk.txt").write_text(f"{walk()}\n", encoding="utf-8")
    with open_server(SITE, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        pictures(f"http://127.0.0.1:{server.server_port}")
