"""Measure the start-up time of the command line: fresh processes, interleaved with an interpreter that does nothing.

    python benchmarks/start_up.py [--rounds 20] [--json]

The wall time runs from the start of a process to its end. Commands take turns, so that a noisy host disturbs all of them
alike. The first round, which fills the caches of files and bytecode, is dropped.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

FLOOR = "python -c pass"
COMMANDS = {
    FLOOR: ["-c", "pass"],
    "tunemark --help": ["-m", "tunemark.cli", "--help"],
    "tunemark plan smoke-lora": ["-m", "tunemark.cli", "plan", "smoke-lora"],
}


def wall_s(arguments: list[str]) -> float:
    """Return the seconds of one fresh process. Raises CalledProcessError when it fails, since a failure would be fast."""
    started_s = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)  # noqa: S603 - ours
    return time.perf_counter() - started_s


def measure(rounds: int) -> dict[str, list[float]]:
    """Return the wall times of each command, in seconds."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(rounds + 1):
        for name, arguments in COMMANDS.items():
            seconds = wall_s(arguments)
            if number:
                times[name].append(seconds)
    return times


def table(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return milliseconds with their range, and the median ratio to the bare interpreter of the same round."""
    floor = times[FLOOR]
    return {
        name: {
            "median_ms": 1e3 * statistics.median(own),
            "least_ms": 1e3 * min(own),
            "most_ms": 1e3 * max(own),
            "times_bare": statistics.median(one / bare for one, bare in zip(own, floor, strict=True)),
        }
        for name, own in times.items()
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="processes of each command that are counted")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    if chosen.rounds < 1:
        parser.error("--rounds must be 1 or more")
    found = table(measure(chosen.rounds))
    if chosen.json:
        print(json.dumps(found, indent=1))
        return
    print("| command | median | least to most | ratio to a bare interpreter |\n|---|---|---|---|")
    for name, row in found.items():
        print(f"| `{name}` | {row['median_ms']:.0f} ms | {row['least_ms']:.0f} to {row['most_ms']:.0f} ms | {row['times_bare']:.1f} |")


if __name__ == "__main__":
    main()
