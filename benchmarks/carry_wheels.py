"""Download the wheels that a GPU machine without a network lacks into `.wheels/`, which git ignores, so that they can be carried to it.

It also writes the commit of this checkout: records state it, and a copy without git's history cannot find it.

    python benchmarks/carry_wheels.py [--folder .wheels]

The list is `[wheels]` of gpu_campaign.toml. A machine without a network installs them with `gpu_campaign.py`, which finds the folder.
"""

import argparse
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MIB = 2**20


def requirement(name: str, lock: str) -> str:
    """Return a package with the version of the lock, or without one where the lock has none."""
    found = re.search(rf"^{re.escape(name)}==([^\s\\;]+)", lock, re.MULTILINE)
    return f"{name}=={found[1]}" if found else name


def git(*arguments: str) -> str:
    """Return git's output about this checkout."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603 - our own command line


def download(name: str, folder: Path, wanted: dict[str, object]) -> str | None:
    """Download the wheel of a package without its requirements; return pip's last words if that fails."""
    platforms = [word for platform in wanted["platforms"] for word in ("--platform", platform)]  # type: ignore[attr-defined]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", str(wanted["python"]), "--implementation", "cp", *platforms, "--dest", str(folder), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - names from our own list
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no message"])[-1]


def keep_libraries(wheel: Path, kept: list[str]) -> None:
    """Leave only the libraries (*.so) of these names in a wheel: one that has a library for each version of CUDA is too large to carry."""
    whole = wheel.rename(wheel.with_suffix(".whole"))
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            if not entry.filename.endswith(".so") or Path(entry.filename).stem in kept:
                new.writestr(entry, old.read(entry))
    whole.unlink()


def main() -> int:
    """Download all wheels, and print their sizes; return 1 if a required one is missing or they are too large together."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / ".wheels")
    folder = parser.parse_args().folder
    wanted = tomllib.loads(Path(__file__).with_name("gpu_campaign.toml").read_text(encoding="utf-8"))["wheels"]
    lock = (ROOT / "requirements-run.lock").read_text(encoding="utf-8")
    folder.mkdir(exist_ok=True)
    commit, changed = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    (folder / "built_from.json").write_text(json.dumps({"commit": commit, "dirty": bool(changed)}) + "\n", encoding="utf-8")
    # Two versions of one package stop the whole installation.
    for old in folder.glob("*.whl"):
        old.unlink()
    missing = False
    for kind in ("packages", "optional"):
        for name in wanted[kind]:
            problem = download(requirement(name, lock), folder, wanted)
            if problem:
                print(f"{name}: {problem}")
                missing = missing or kind == "packages"
    for name, kept in wanted["libraries"].items():
        for wheel in folder.glob(f"{name}-*.whl"):
            keep_libraries(wheel, kept)
    total = 0
    for wheel in sorted(folder.glob("*.whl")):
        size = wheel.stat().st_size
        if total + size > wanted["most_mib"] * MIB:
            print(f"left out, larger than the limit of {wanted['most_mib']} MiB: {wheel.name}, {size / MIB:.1f} MiB")
            wheel.unlink()
            continue
        total += size
        print(f"{size / MIB:6.1f} MiB  {wheel.name}")
    print(f"{total / MIB:6.1f} MiB in {folder}")
    return int(missing)


if __name__ == "__main__":
    sys.exit(main())
