"""Audit the pages of a built site with Lighthouse and axe-core, which npm downloads into a folder of their own.

    .venv/bin/tunemark site build && .venv/bin/python benchmarks/page_audits.py
    .venv/bin/python benchmarks/page_audits.py --only axe

Lighthouse runs on a server that compresses, as web hosts do, with its settings for phones. Axe runs at 1280 px in light and dark mode
and at 390 px. It needs node, npm, and Chromium (`make browser`, or a path in CHROME_PATH).
"""

import argparse
import functools
import gzip
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tunemark.schema.files import project_root

VERSIONS = ("lighthouse@12", "axe-core@4")
LIGHTHOUSE = ("index.html", "results/index.html", "compare.html", "studies/memory.html", "studies/scaling.html", "results/003-002.html")
AXE = (
    *LIGHTHOUSE,
    *("accelerators/index.html", "accelerators/nvidia-h100-80gb-sxm.html", "audit/index.html", "cost.html", "data/index.html"),
    *("documents/index.html", "documents/003.html", "guide/index.html", "guide/definitions.html", "guide/limitations.html"),
    *("models/index.html", "models/llama-2-7b.html", "prices.html", "studies/index.html", "studies/methods.html"),
    *("workloads/index.html", "workloads/lora-8b.html"),
)
VIEWS = ((1280, "light"), (1280, "dark"), (390, "light"))
CATEGORIES = ("performance", "accessibility", "best-practices", "seo")
SERIOUS = ("serious", "critical")
COMPRESSED = (".html", ".js", ".css", ".json", ".svg", ".xml")


class Compressing(SimpleHTTPRequestHandler):
    """Serves text compressed."""

    def log_message(self, *_: object) -> None:
        """Print no requests."""

    def do_GET(self) -> None:
        """Send a file, compressed if it is text."""
        path = Path(self.translate_path(self.path))
        path = path / "index.html" if path.is_dir() else path
        if path.suffix not in COMPRESSED or not path.is_file():
            super().do_GET()
            return
        content = gzip.compress(path.read_bytes(), 6)
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(str(path)))
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a folder and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Compressing, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


def installed(folder: Path) -> Path:
    """Install Lighthouse and axe-core into a folder unless they are there, and return its `node_modules`."""
    modules = folder / "node_modules"
    if not all((modules / name.partition("@")[0]).is_dir() for name in VERSIONS):
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent", *VERSIONS], cwd=folder, check=True)  # noqa: S603, S607 - npm of the reader
    return modules


def lighthouse(modules: Path, address: str, page: str, chrome: str) -> tuple[list[int], float]:
    """Return the scores of a page, 0 to 100, and the KiB that it loads."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        flags = ["--output=json", f"--output-path={report}", "--quiet", "--chrome-flags=--headless=new --no-sandbox", *_only()]
        command = ["node", str(modules / "lighthouse/cli/index.js"), address + page, *flags]
        subprocess.run(command, check=True, env=os.environ | {"CHROME_PATH": chrome})  # noqa: S603 - our own command
        found = json.loads(report.read_bytes())
    scores = [round(100 * found["categories"][name]["score"]) for name in CATEGORIES]
    return scores, found["audits"]["total-byte-weight"]["numericValue"] / 1024


def _only() -> list[str]:
    return [f"--only-categories={','.join(CATEGORIES)}"]


def violations(browser: Browser, script: Path, address: str, page: str) -> Iterator[str]:
    """Yield the serious and critical violations that axe finds on a page in each view."""
    for width, scheme in VIEWS:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        opened = context.new_page()
        opened.goto(address + page)
        opened.wait_for_timeout(1000)
        opened.add_script_tag(path=str(script))
        for found in opened.evaluate("axe.run()")["violations"]:
            if found["impact"] in SERIOUS:
                yield f"{page}, {width} px, {scheme}: {found['id']}, {len(found['nodes'])} x, {found['nodes'][0]['target']}"
        context.close()


def main() -> None:
    """Print the scores and the violations."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--site", type=Path, default=project_root() / "build" / "site")
    parser.add_argument("--packages", type=Path, default=project_root() / "build" / "page-audits", help="folder for the packages of npm")
    parser.add_argument("--only", choices=("lighthouse", "axe"))
    options = parser.parse_args()
    modules = installed(options.packages)
    with served(options.site) as address, sync_playwright() as playwright:
        chrome = os.environ.get("CHROME_PATH") or playwright.chromium.executable_path
        if options.only != "axe":
            for page in LIGHTHOUSE:
                scores, kib = lighthouse(modules, address, page, chrome)
                print(f"{page:30} {', '.join(map(str, scores)):20} {kib:5.0f} KiB", flush=True)
        if options.only != "lighthouse":
            with playwright.chromium.launch(executable_path=chrome, args=["--no-sandbox"]) as browser:
                script = modules / "axe-core/axe.min.js"
                found = [line for page in AXE for line in violations(browser, script, address, page)]
            print("\n".join(found) or f"axe: no serious or critical violation on {len(AXE)} pages in {len(VIEWS)} views")


if __name__ == "__main__":
    main()
