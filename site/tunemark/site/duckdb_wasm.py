"""DuckDB for browsers: downloaded from npm at a pinned version, checked, and copied into a site with the SQL page.

The files are too large for the repository. A build without `--sql` downloads nothing and has no SQL page.
"""

import base64
import gzip
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.files import replace_folder

FOLDER = "assets/duckdb"
NOTICE = "NOTICE.txt"
SHIM = "apache-arrow.mjs"
SHIM_TEXT = """// The module that DuckDB's client imports. It re-exports the bundle that was loaded before.
export const { RecordBatchReader, Table, tableToIPC, Type } = globalThis.Arrow;
"""


@dataclass(frozen=True, slots=True)
class Package:
    """An npm package at a pinned version."""

    name: str
    version: str
    sha512: str
    """Base64 of the hash of its archive, as in the `integrity` of npm."""
    files: tuple[str, ...]
    """Paths of the files that browsers load."""
    licence: str
    licence_files: tuple[str, ...] = ()


PACKAGES = (
    Package(
        "@duckdb/duckdb-wasm",
        "1.32.0",
        "IewXTNYEjsZCPE9weUWgtjGxUlMRo7qhX0GF6tq/KjK8bnY+RAl4cyUdYUfcdzbyb4b9ZxPC+FOsCcxgaKFWMg==",
        ("dist/duckdb-eh.wasm", "dist/duckdb-browser-eh.worker.js", "dist/duckdb-browser.mjs"),
        "MIT, Copyright DuckDB contributors, https://github.com/duckdb/duckdb-wasm",
    ),
    Package(
        "apache-arrow",
        "17.0.0",
        "X0p7auzdnGuhYMVKYINdQssS4EcKec9TCXyez/qtJt32DrIMGbzqiaMiQ0X6fQlQpw8Fl0Qygcv4dfRAr5Gu9Q==",
        ("Arrow.es2015.min.js",),
        "Apache-2.0, Copyright The Apache Software Foundation",
        ("NOTICE.txt", "LICENSE.txt"),
    ),
)
FILES = tuple(Path(file).name for package in PACKAGES for file in package.files)
VERSIONS = "versions.json"


def fetched(folder: Path, progress: Callable[[str], None]) -> Path:
    """Return the folder with all files. Missing or outdated files are downloaded with npm."""
    versions = {package.name: package.version for package in PACKAGES}
    listed = folder / VERSIONS
    if listed.is_file() and json.loads(listed.read_text(encoding="utf-8")) == versions and all((folder / name).is_file() for name in FILES):
        return folder
    # npm runs in the new folder, so its path must not be relative.
    new, old = (folder.resolve().with_name(f".{folder.name}.{word}") for word in ("new", "old"))
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        notices = [_fetch(package, new, progress) for package in PACKAGES]
        (new / SHIM).write_text(SHIM_TEXT, encoding="utf-8")
        (new / NOTICE).write_text("\n\n".join(notices) + "\n", encoding="utf-8")
        (new / VERSIONS).write_text(json.dumps(versions), encoding="utf-8")
        replace_folder(folder, new, old)
    finally:
        for leftover in (new, old):
            shutil.rmtree(leftover, ignore_errors=True)
    return folder


def _fetch(package: Package, folder: Path, progress: Callable[[str], None]) -> str:
    """Put the files of a package into a folder. Return its notice."""
    npm = shutil.which("npm")
    if npm is None:
        raise TunemarkError("--sql", "npm", "is not installed; install Node.js, or build without --sql")
    progress(f"downloading {package.name} {package.version} with npm")
    command = [npm, "pack", f"{package.name}@{package.version}", "--json", "--pack-destination", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)  # noqa: S603 - our own arguments
    archives = list(folder.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        why = next((line for line in done.stderr.splitlines() if "error" in line), "no message")
        raise TunemarkError("--sql", package.name, f"npm failed ({why}); try again, or build without --sql", exit_code=Exit.INTERNAL)
    (archive,) = archives
    check(package, archive.read_bytes())
    with tarfile.open(archive) as opened:
        for file in package.files:
            (folder / Path(file).name).write_bytes(_content(opened, file))
        texts = [_content(opened, file).decode() for file in package.licence_files]
    archive.unlink()
    return "\n\n".join((f"{package.name} {package.version}: {package.licence}", *texts))


def check(package: Package, archive: bytes) -> None:
    """Raise TunemarkError if an archive does not match the pinned hash."""
    found = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if found != package.sha512:
        raise TunemarkError(
            "--sql",
            package.name,
            f"the archive of {package.version} does not match the pinned hash and was not used; clear npm's cache and try again, or build without --sql",
            exit_code=Exit.INVALID,
        )


def _content(archive: tarfile.TarFile, file: str) -> bytes:
    opened = archive.extractfile(f"package/{file}")
    if opened is None:
        raise TunemarkError("--sql", file, "is not in the package", exit_code=Exit.INTERNAL)
    return opened.read()


def download_bytes(folder: Path) -> tuple[int, int]:
    """Return the bytes that a browser downloads from a server with compression, and from one without."""
    contents = [(folder / name).read_bytes() for name in FILES]
    return sum(len(gzip.compress(content, mtime=0)) for content in contents), sum(map(len, contents))


def copy(folder: Path, site: Path) -> None:
    """Copy the downloaded files into a site."""
    target = site / FOLDER
    target.mkdir(parents=True)
    for name in (*FILES, SHIM, NOTICE):
        shutil.copyfile(folder / name, target / name)


if __name__ == "__main__":
    fetched(Path(sys.argv[1]), print)
