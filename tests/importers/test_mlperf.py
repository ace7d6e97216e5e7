"""MLPerf logs: what is read, what is reported, and what never stops the rest."""

import json
import math
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from factories import CHECKOUT, FACTS, Tunemark, assert_golden
from hypothesis import given
from hypothesis import strategies as st

from tunemark.collector.importers.mlperf import Entries, read_entries, read_run
from tunemark.schema.records.converted import ConvertedResult, run_energy
from tunemark.schema.records.reading import read_record

DATA = Path(__file__).with_name("data")
REAL = os.pathsep.join(str(CHECKOUT.parent / f"shared/facts/mlperf-training-{part}.tar.xz") for part in ("llama2-70b-lora", "supplement"))
REAL_ARCHIVES = [Path(name) for name in os.environ.get("TUNEMARK_MLPERF_ARCHIVES", REAL).split(os.pathsep)]
"""The archives of all MLPerf logs, scaling factors and power readings; they are not committed."""


def line(key: str, at_ms: object, value: object = None, **metadata: object) -> str:
    return f":::MLLOG {json.dumps({'namespace': '', 'time_ms': at_ms, 'event_type': 'POINT_IN_TIME', 'key': key, 'value': value, 'metadata': metadata})}\n"


def make_log(stop: str | None = "success", **settings_of_log: object) -> bytes:
    """A run that trains 8 samples in 10 s, evaluates in 2 s, and stops at 13 s."""
    lines = [
        *(line(key, 500, value) for key, value in settings_of_log.items()),
        line("init_start", 600),
        line("init_stop", 1_000),
        line("run_start", 1_000),
        line("block_start", 1_000, samples_count=0),
        line("block_stop", 11_000, samples_count=8),
        line("eval_accuracy", 13_000, 0.92, samples_count=8),
    ]
    return "".join([*lines, line("run_stop", 14_000, samples_count=8, status=stop) if stop else ""]).encode()


def made_folder(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def entry_files(runs: int = 3, **more: bytes) -> dict[str, bytes]:
    logs = {f"v5.1/Some One/results/box/llama2_70b_lora/result_{number}.txt": make_log() for number in range(runs)}
    description = json.dumps(
        {
            "system_name": "Box",
            "number_of_nodes": "2",
            "accelerators_per_node": "8",
            "host_processors_per_node": "2",
            "accelerator_model_name": "NVIDIA H100-SXM5-80GB",
        }
    )
    return {"v5.1/Some One/systems/box.json": description.encode(), **logs, **more}


FOLDER, DONE = "v5.1/Dell/results/box/llama2_70b_lora", line("eval_accuracy", 13_000, 0.92, samples_count=8).encode()


def runs(*logs: bytes, **beside: bytes) -> dict[str, bytes]:
    """Return the files of an entry: its logs in order, and others beside them."""
    return {f"{FOLDER}/result_{number}.txt": log for number, log in enumerate(logs)} | {
        f"{FOLDER}/{name}": text for name, text in beside.items()
    }


def ending(at_ms: int) -> bytes:
    return make_log().replace(b'"time_ms": 14000', f'"time_ms": {at_ms}'.encode())


def evaluated(*events: str) -> bytes:
    return make_log().replace(DONE, "".join(events).encode())


def last(loss: float, at_ms: int = 13_000, samples: int = 8) -> str:
    return line("eval_accuracy", at_ms, loss, samples_count=samples)


STRANGE = json.dumps({"system_name": "Box\x1b[2J\u202e", "number_of_nodes": "\x1b[31m", "accelerator_model_name": "A\x07B"}).encode()
FOUR = [ending(14_000 + 1_000 * number) for number in range(4)]
SPREAD = {"scaling.json": b'{"scaling_factor": 1.05}'}
# 100 W before and after the run from 1 s to 14 s, 500 W within it.
POWER = [line("power_reading", 1_000 * second, watts) for second, watts in enumerate((100, *(500,) * 14, 100))]
POWER = [line("power_measurement_start", 0), line("conversion_eff", 0, 0.96, measurement_type="AC"), *POWER]
FOLDERS: dict[str, list[dict[str, bytes]]] = {
    "raw values come from their events; the target is that of the rules": [runs(make_log(seed=7))],
    "a target in the logs": [runs(make_log(target_accuracy=0.95))],
    "a machine with a description": [entry_files(1)],
    "a success needs a last evaluation at the target": [runs(evaluated(last(0.93)), evaluated(last(-1)), evaluated(last(0.92, 12_000), last(math.inf, samples=16)))],
    "unreadable lines": [
        runs(
            b':::MLLOG {"key": "run_stop", "time_ms": 1',
            b"\n" + line("run_start", "soon").encode(),
            b':::MLLOG {"key": "run_start", "time_ms": NaN}\n',
            make_log().replace(b"0.92", b'"low"'),
            b"\x00\xff\xfe" * 1_000,
            b"one\ntwo\n",
            b':::MLLOG {"key": "run_start", "x": "' + b"a" * 10_000_000 + b'"}\n',
        )
    ],
    "control characters reach no terminal and no page": [{"v5.1/Some\x1b]0;Evil/systems/box.json": STRANGE, "v5.1/Some\x1b]0;Evil/results/box/llama2_70b_lora/result_0.txt": make_log()}],
    "four runs": [runs(*FOUR)],
    "a run that missed the target counts as longer than any other": [runs(make_log(stop=None), *FOUR[1:])],
    "three that missed it": [runs(make_log(stop=None), make_log(stop="aborted"), make_log(stop="aborted"), FOUR[3])],
    "the official score is the mean without the extremes": [runs(ending(14_000), ending(15_000), ending(17_000))],
    "times the scaling factor": [runs(ending(14_000), ending(15_000), ending(17_000), **SPREAD)],
    "an entry over two folders, with a file in both": [runs(ending(14_000), ending(15_000), ending(17_000)), runs(make_log(), **SPREAD)],
    "energy is mean power within the run times its duration": [runs(make_log(), **{"power/result_0/node_0.txt": "".join(POWER).encode()})],
}  # fmt: skip


def outcome(found: Entries) -> Iterator[str]:
    """Yield what becomes of folders, a line each: entries with their conditions, runs and statistics, and problems."""
    for entry in found.results:
        yield f"{entry.id}: {entry.submitter}; {entry.label}; {entry.system.model_dump(mode='json', exclude_defaults=True)}"
        yield f"  {entry.conditions.model_dump(mode='json', exclude_defaults=True)}; target {entry.target_eval_loss}"
        yield from (f"  {run.model_dump(mode='json', exclude_defaults=True)}; {run.samples_per_s} samples/s" for run in entry.runs)
        energy, reached = run_energy(entry), sum(run.time_to_target_s is not None for run in entry.runs)
        median = f"{entry.median_time.value:.6g}" if entry.median_time else None
        yield f"  {reached} of {len(entry.runs)} reached the target; median {median} s, score {entry.score_s and round(entry.score_s, 6)} s; scaling factor {entry.scaling_factor}"
        yield from ([f"  {energy.per_run_j} J a run, {energy.per_sample_j} J a sample; {energy.scope}"] if energy else [])
    yield from map(str, found.problems)


def test_folders_become_entries_with_runs_statistics_and_problems(tmp_path: Path):
    lines = ["# committed examples", *outcome(read_entries([DATA / "mlperf"], FACTS))]
    for number, (name, folders) in enumerate(FOLDERS.items()):
        made = [made_folder(tmp_path / f"{number}-{place}", files) for place, files in enumerate(folders)]
        lines += [f"# {name}", *outcome(read_entries(made, FACTS))]
    assert all(text.isprintable() for text in lines)
    assert_golden(
        Path(__file__).with_name("cases") / "mlperf.txt", "\n".join(lines).replace(f"{tmp_path}/", "").replace(f"{DATA}/", "") + "\n"
    )


@given(st.binary(max_size=2_000), st.integers(0, 2_000))
def test_any_bytes_are_judged_and_not_raised(noise: bytes, at: int):
    good = make_log(global_batch_size=8)
    log = read_run("log", good[:at] + noise + good[at:])
    assert log.run is None or log.run.file == "log"


# Entries ---------------------------------------------------------------------------------------------


def test_spellings_of_accelerators_resolve():
    printed = {(result.system.accelerator_printed, result.conditions.accelerator) for result in committed()}
    assert len(printed) > 15
    cards = {spelling: FACTS.recognise_accelerator(spelling or "") for spelling, _ in printed}
    assert {(spelling, card and card.key) for spelling, card in cards.items()} == printed


def test_links_are_passed_over(tmp_path: Path):
    folder = made_folder(tmp_path / "logs", {f"{FOLDER}/result_0.txt": make_log(seed=1)})
    (folder / FOLDER / "result_5.txt").symlink_to(made_folder(tmp_path, {"other": make_log(seed=2)}) / "other")
    assert [run.seed for run in read_entries([folder], FACTS).results[0].runs] == [1]


# The committed results --------------------------------------------------------------------------------


def committed() -> list[ConvertedResult]:
    records = [read_record(path.read_bytes()) for path in sorted((CHECKOUT / "data" / "converted" / "mlperf").rglob("*.json"))]
    return [record for record in records if isinstance(record, ConvertedResult)]


def test_the_committed_results_are_those_of_the_logs(tmp_path: Path):
    if not all(path.is_file() for path in REAL_ARCHIVES):
        pytest.skip("the MLPerf logs are not committed; name their archives in TUNEMARK_MLPERF_ARCHIVES, separated like PATH")
    for path in REAL_ARCHIVES:
        with tarfile.open(path) as archive:
            archive.extractall(tmp_path / path.stem, filter="data")
    found = read_entries([tmp_path / path.stem for path in REAL_ARCHIVES], FACTS)
    assert {result.id: result for result in found.results} == {result.id: result for result in committed()}
    assert found.logs == 1_710
    assert all(problem.noted for problem in found.problems)


def test_the_command_writes_one_file_for_each_entry_and_a_bad_file_stops_no_other(tmp_path: Path, tunemark: Tunemark):
    folder = "v5.1/Some One/results/box/llama2_70b_lora/"
    bad = {f"{folder}result_7.txt": b"\x00" * 5_000, f"{folder}result_8.txt": b"", "v5.1/Some One/systems/other.json": b"{"}
    said = tunemark("import", "mlperf", DATA / "mlperf", made_folder(tmp_path / "logs", entry_files() | bad), "--out", tmp_path / "out")
    assert said.code == 3
    assert [path.name for path in sorted((tmp_path / "out").rglob("*.json"))] == [
        "mlperf-v4.1-dell-xe9680x8h100-sxm-80gb.json",
        "mlperf-v5.1-dell-1xxe9780x8b200-sxm-180gb.json",
        "mlperf-v5.1-some-one-box.json",
    ]
    assert "ends without run_stop; kept as incomplete" in said.err
    assert all(f"{name.rpartition('/')[2]}:" in said.err for name in bad)
