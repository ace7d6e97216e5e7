"""Time the explorer of the results page with 20,000 synthetic rows in headless Chromium.

    .venv/bin/python benchmarks/explorer_speed.py build/site

*Ready* is from the start of the navigation to the first drawn rows. An *action* is from the reader's click or key press to the
end of the layout of the new rows. Printed are medians over repeats, with the least and the most. The CPU time of the main thread
also covers painting and the rows drawn when the browser is idle; unlike the wall time it does not depend on what else runs.
"""

import argparse
import json
import random
import shutil
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from tunemark.site.commands import open_server
from tunemark.site.explorer import FIELDS, encoded

CHROMIUM = "/usr/bin/chromium"
PAGE = "results/index.html"
VALUES = {
    "accelerator": 140,
    "model": 60,
    "method": 4,
    "trust": 4,
    "software_level": 3,
    "framework": 40,
    "status": 4,
    "year": 12,
    "source": 60,
}
"""Number of different texts by field, as in the collection."""
COUNTS = {"devices": (1, 2, 4, 8, 16, 64, 256), "row_length": (128, 512, 1024, 2048, 4096, 8192)}
UNKNOWN = 0.2
SETTLE_MS = 500
"""Wait before the first action, in which the theme starts."""
PAUSE_MS = 200
"""Wait before an action, in which the browser paints and draws further rows."""
ACTIONS = {
    "exact facet": "document.querySelector('[data-facet=method] input').click()",
    "facet of many values": "document.querySelector('[data-facet=accelerator] input').click()",
    "free text, one key": "(box => { box.value = 'model 7'; box.dispatchEvent(new Event('input')); })(document.querySelector('#tm-explorer-text'))",
    "sort by a figure": "document.querySelector('[data-sort-key=tokens_per_s]').click()",
    "sort by a text": "document.querySelector('[data-sort-key=model]').click()",
    "baseline": "document.querySelector('[data-baseline]').click()",
    "clear all": "document.querySelector('.tm-explorer-status button').click()",
}


def synthetic(rows: int) -> dict[str, Any]:
    """Return the explorer's data for this number of rows, always the same."""
    chance = random.Random(14)  # noqa: S311 - no secret

    def value(kind: str, key: str) -> str | float | None:
        if key != "accelerator" and chance.random() < UNKNOWN:
            return None
        if kind == "text":
            return f"{key} {chance.randrange(VALUES[key])}"
        return chance.choice(COUNTS[key]) if key in COUNTS else 10 ** chance.uniform(-2, 6)

    made = [
        {"id": f"{row:05}", "flags": 0, "ambiguous": None} | {field.key: value(field.kind, field.key) for field in FIELDS}
        for row in range(rows)
    ]
    return encoded(made, {})


def copied(site: Path, folder: Path, data: str) -> Path:
    """Copy the page and its assets, and write its data. Return the folder."""
    shutil.copytree(site / "assets", folder / "assets")
    for name in ("index.html", "results/index.html", "search/search_index.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(site / name, folder / name)
    (folder / "data").mkdir()
    (folder / "data" / "explorer.json").write_text(data, encoding="utf-8")
    return folder


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a built site and yield its address."""
    with open_server(site, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def opened(browser: Browser, address: str) -> tuple[Page, float]:
    """Open the page. Return it and the milliseconds until it was ready."""
    page = browser.new_page(viewport={"width": 1280, "height": 844})
    page.goto(address + PAGE)
    page.wait_for_selector(".tm-explorer[data-ready]")
    page.wait_for_timeout(SETTLE_MS)
    return page, page.evaluate("performance.getEntriesByName('tm-explorer-ready')[0].startTime")


def cpu_ms(session: CDPSession) -> float:
    """Return the CPU time of the page's main thread so far, in milliseconds."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(1_000 * float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


def action_ms(page: Page, session: CDPSession, script: str) -> tuple[float, float]:
    """Return the milliseconds of an action with its layout: wall time, and CPU time of the main thread."""
    page.wait_for_timeout(PAUSE_MS)
    before = cpu_ms(session)
    wall = page.evaluate(
        f"() => {{ const start = performance.now(); {script}; document.body.offsetHeight; return performance.now() - start; }}"
    )
    return float(wall), cpu_ms(session) - before


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, help="folder of a built site, such as build/site")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    data = json.dumps(synthetic(given.rows), separators=(",", ":"))
    ready: list[float] = []
    actions: dict[str, list[tuple[float, float]]] = {name: [] for name in ACTIONS}
    with TemporaryDirectory() as folder, served(copied(given.site, Path(folder), data)) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(given.repeats):
            page, ready_ms = opened(browser, address)
            ready.append(ready_ms)
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})
            for name, script in ACTIONS.items():
                actions[name].append(action_ms(page, session, script))
            page.close()
        browser.close()
    print(f"{given.rows:,} rows, {len(data) / 1e6:.1f} MB of JSON, medians of {given.repeats}")
    print(f"{'ready':22} {statistics.median(ready):5.0f} ms   ({min(ready):.0f} to {max(ready):.0f})")
    for name, times in actions.items():
        wall, cpu = zip(*times, strict=True)
        print(f"{name:22} {statistics.median(wall):5.0f} ms   ({min(wall):.0f} to {max(wall):.0f}); CPU {statistics.median(cpu):3.0f} ms")


if __name__ == "__main__":
    main()
