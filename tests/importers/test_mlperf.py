"""MLPerf logs: what is read, what is reported, and what never stops the rest."""

import io
import json
import math
import re
import tarfile
from pathlib import Path

import pytest
from factories import Tunemark
from hypothesis import given
from hypothesis import strategies as st

from tunemark.collector.importers.import_io import members
from tunemark.collector.importers.mlperf import accelerator_key, read_entries
from tunemark.collector.importers.mlperf_log import read_run
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.converted import ConvertedResult, run_energy, time_to_target
from tunemark.schema.records.reading import read_record

ENTRY = "v5.1/Dell/results/1xXE9780x8B200-SXM-180GB/llama2_70b_lora"


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


def made_archive(tmp_path: Path, files: dict[str, bytes], mode: str = "w:xz") -> Path:
    path = tmp_path / "logs.tar"
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


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


# One log ---------------------------------------------------------------------------------------------


def test_raw_values_come_from_their_events():
    run = read_run("a/result_0.txt", make_log(seed=7)).run
    assert run is not None
    assert (run.file, run.status, run.seed, run.init_s) == ("result_0.txt", "ok", 7, 0.4)
    assert (run.time_to_target_s, run.samples, run.train_s, run.samples_per_s) == (13.0, 8, 10.0, 0.8)
    assert (run.curve.samples, run.curve.at_s, run.curve.eval_loss) == ((8,), (12.0,), (0.92,))


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        (line("eval_accuracy", 13_000, 0.92, samples_count=8), None),
        (line("eval_accuracy", 13_000, 0.93, samples_count=8), "the last evaluation is 0.93, not a loss from 0 to 0.925"),
        (line("eval_accuracy", 13_000, -1, samples_count=8), "the last evaluation is -1, not a loss"),
        (
            line("eval_accuracy", 12_000, 0.92, samples_count=8) + line("eval_accuracy", 13_000, math.inf, samples_count=16),
            "evaluation is inf",
        ),
    ],
)
def test_a_success_needs_a_last_evaluation_at_the_target(evaluation: str, said: str | None):
    log = read_run("log", make_log().replace(line("eval_accuracy", 13_000, 0.92, samples_count=8).encode(), evaluation.encode()))
    assert log.run is not None
    assert (log.run.status, log.run.time_to_target_s) == (("ok", 13.0) if said is None else ("missed", None))
    found = [str(problem) for problem in log.problems if "kept as a run that missed the target" in problem.reason]
    assert bool(found) == (said is not None)
    assert all((said or "") in text and re.match(r"log:\d+: run_stop says success", text) for text in found), found


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (b':::MLLOG {"key": "run_stop", "time_ms": 1', "log:1: not a whole MLLOG line"),
        (b"\n" + line("run_start", "soon").encode(), "log:2: time_ms of 'run_start' is 'soon'"),
        (b':::MLLOG {"key": "run_start", "time_ms": NaN}\n', "log:1: time_ms"),
        (make_log().replace(b"0.92", b'"low"'), "log:6: eval_accuracy is 'low'"),
        (b"\x00\xff\xfe" * 1_000, "log:1: has no run_start"),
        (b"one\ntwo\n", "log:2: has no run_start"),
        (b':::MLLOG {"key": "run_start", "x": "' + b"a" * 10_000_000 + b'"}\n', "log:1: an MLLOG line of 10,000,"),
    ],
)
def test_unreadable_lines_are_reported_with_file_and_line(broken: bytes, said: str):
    problems = read_run("log", broken).problems
    assert any(str(problem).startswith(said) for problem in problems), problems


@given(st.binary(max_size=2_000), st.integers(0, 2_000))
def test_any_bytes_are_judged_and_not_raised(noise: bytes, at: int):
    good = make_log(global_batch_size=8)
    log = read_run("log", good[:at] + noise + good[at:])
    assert log.run is None or log.run.file == "log"


# Entries ---------------------------------------------------------------------------------------------


def test_an_entry_has_its_machine_settings_and_runs(data: Path, facts: FactBase):
    found = read_entries([data / "mlperf"], facts)
    old, new = found.results
    assert (old.round, old.submitter, old.system.name) == ("v4.1", "Dell", "XE9680x8H100-SXM-80GB")
    assert new.id == "mlperf-v5.1-dell-1xxe9780x8b200-sxm-180gb"
    assert new.label == "MLPerf, unofficial conversion, not verified by MLCommons Association"
    assert (new.conditions.accelerator, new.conditions.accelerator_count, new.system.nodes) == ("nvidia-b200", 8, 1)
    assert (new.conditions.global_batch, new.conditions.gradient_accumulation, new.conditions.sequence_length) == (8, 1, 8_192)
    assert (new.conditions.settings["lora_rank"], new.conditions.settings["lora_alpha"], new.conditions.settings["optimizer"]) == (
        16,
        32,
        "adamw",
    )
    assert new.conditions.framework["framework"] == new.system.framework_printed
    assert [run.status for run in new.runs] == ["incomplete", "ok", "ok", "ok"]
    assert new.conditions.precision is None
    assert "sequence_length" in new.conditions.assumed


def test_an_archive_gives_what_its_folder_gives(tmp_path: Path, data: Path, facts: FactBase):
    files = {
        path.relative_to(data / "mlperf").as_posix(): path.read_bytes() for path in sorted((data / "mlperf").rglob("*")) if path.is_file()
    }
    for mode in ("w", "w:gz", "w:xz"):
        assert read_entries([made_archive(tmp_path, files, mode)], facts).results == read_entries([data / "mlperf"], facts).results


def test_spellings_of_accelerators_resolve(project: Path, facts: FactBase):
    printed = {(result.system.accelerator_printed, result.conditions.accelerator) for result in committed(project)}
    assert len(printed) > 15
    assert {(spelling, accelerator_key(spelling or "", facts)) for spelling, _ in printed} == printed


def test_a_target_missing_from_the_logs_is_that_of_the_rules_and_marked_as_assumed(tmp_path: Path, facts: FactBase):
    (silent,) = read_entries([made_archive(tmp_path, entry_files())], facts).results
    assert (silent.target_eval_loss, "target_eval_loss" in silent.conditions.assumed) == (0.925, True)
    said = {name: make_log(target_accuracy=0.95) if name.endswith(".txt") else content for name, content in entry_files().items()}
    (told,) = read_entries([made_archive(tmp_path, said)], facts).results
    assert (told.target_eval_loss, "target_eval_loss" in told.conditions.assumed) == (0.95, False)


def test_control_characters_of_an_archive_reach_no_terminal_and_no_page(tmp_path: Path, facts: FactBase):
    description = json.dumps({"system_name": "Box\x1b[2J\u202e", "number_of_nodes": "\x1b[31m", "accelerator_model_name": "A\x07B"})
    files = {name.replace("Some One", "Some\x1b]0;Evil"): content for name, content in entry_files().items()}
    files["v5.1/Some\x1b]0;Evil/systems/box.json"] = description.encode()
    found = read_entries([made_archive(tmp_path, files)], facts)
    (result,) = found.results
    texts = [result.submitter, result.folder, result.system.name, result.system.accelerator_printed or "", *map(str, found.problems)]
    assert all(text.isprintable() for text in texts), texts
    assert result.submitter == "Some ]0;Evil"


# Hostile archives -------------------------------------------------------------------------------------


def test_links_in_an_archive_are_passed_over(tmp_path: Path, facts: FactBase):
    path = tmp_path / "logs.tar"
    name = "v5.1/A/results/b/llama2_70b_lora/result_0.txt"
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(make_log(seed=1))
        archive.addfile(entry, io.BytesIO(make_log(seed=1)))
        link = tarfile.TarInfo("v5.1/A/results/b/llama2_70b_lora/result_5.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    found = read_entries([path], facts)
    assert [run.seed for run in found.results[0].runs] == [1]


@pytest.mark.parametrize("mode", ["w:gz", "w:xz"])
def test_a_truncated_archive_is_refused(tmp_path: Path, facts: FactBase, mode: str):
    path = made_archive(tmp_path, entry_files(8), mode)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(TunemarkError, match="not a whole tar archive"):
        read_entries([path], facts)


def test_a_file_that_is_not_an_archive_is_refused_with_the_fix(tmp_path: Path):
    (tmp_path / "x.tar.xz").write_bytes(b"no archive")
    for path in (tmp_path / "x.tar.xz", tmp_path / "missing"):
        with pytest.raises(TunemarkError, match=r"name a \.tar\.xz"):
            list(members(path))


# Statistics -------------------------------------------------------------------------------------------


def test_a_run_that_missed_the_target_counts_as_longer_than_any_other(tmp_path: Path, facts: FactBase):
    logs = [make_log(seed=n).replace(b"14000", str(14_000 + 1_000 * n).encode()) for n in range(4)]
    files = entry_files(0) | {f"v5.1/Some One/results/box/llama2_70b_lora/result_{n}.txt": log for n, log in enumerate(logs)}
    (all_there,) = read_entries([made_archive(tmp_path, files)], facts).results
    files["v5.1/Some One/results/box/llama2_70b_lora/result_0.txt"] = make_log(stop=None)
    (one_missing,) = read_entries([made_archive(tmp_path, files)], facts).results
    before, after = time_to_target(all_there), time_to_target(one_missing)
    assert before.median is not None
    assert after.median is not None
    assert (before.median.value, after.median.value) == (14.5, 15.5)
    assert (before.score_s, after.score_s, after.reached, after.runs) == (14.5, 15.5, 3, 4)
    for number in (1, 2):
        files[f"v5.1/Some One/results/box/llama2_70b_lora/result_{number}.txt"] = make_log(stop="aborted")
    (three_missing,) = read_entries([made_archive(tmp_path, files)], facts).results
    assert time_to_target(three_missing).median is None


# The committed results --------------------------------------------------------------------------------


def committed(project: Path) -> list[ConvertedResult]:
    records = [read_record(path.read_bytes()) for path in sorted((project / "data" / "converted" / "mlperf").rglob("*.json"))]
    return [record for record in records if isinstance(record, ConvertedResult)]


def test_the_committed_results_are_those_of_the_logs(archives: list[Path], project: Path, facts: FactBase):
    found = read_entries(archives, facts)
    assert {result.id: result for result in found.results} == {result.id: result for result in committed(project)}
    assert (found.logs, len(found.spellings)) == (1_710, 28)
    assert all(problem.noted for problem in found.problems)


FOLDER = "v5.1/Dell/results/box/llama2_70b_lora"


def power_log(*watts: float, start_ms: int = 1_000, every_ms: int = 1_000, **stated: object) -> bytes:
    readings = (line("power_reading", start_ms + every_ms * number, value) for number, value in enumerate(watts))
    return "".join([line("power_measurement_start", start_ms), line("conversion_eff", start_ms, 0.96, **stated), *readings]).encode()


def three_runs(stop_ms: tuple[int, ...] = (14_000, 15_000, 17_000)) -> dict[str, bytes]:
    logs = (make_log().replace(b'"time_ms": 14000', f'"time_ms": {stop}'.encode()) for stop in stop_ms)
    return {f"{FOLDER}/result_{number}.txt": log for number, log in enumerate(logs)}


def test_the_official_score_is_the_mean_without_the_extremes_times_the_scaling_factor(tmp_path, facts):
    runs = three_runs()
    (unscaled,) = read_entries([made_archive(tmp_path, runs)], facts).results
    (scaled,) = read_entries([made_archive(tmp_path, runs | {f"{FOLDER}/scaling.json": b'{"scaling_factor": 1.05}'})], facts).results
    assert (unscaled.scaling_factor, time_to_target(unscaled).score_s) == (None, 14.0)
    assert (scaled.scaling_factor, time_to_target(scaled).score_s) == (1.05, pytest.approx(14.7))
    assert time_to_target(scaled).median == time_to_target(unscaled).median


def test_an_entry_may_be_spread_over_two_archives_and_a_file_in_both_counts_once(tmp_path, facts):
    logs = made_archive(tmp_path, three_runs())
    (tmp_path / "more").mkdir()
    more = made_archive(tmp_path / "more", {f"{FOLDER}/scaling.json": b'{"scaling_factor": 1.5}', f"{FOLDER}/result_0.txt": make_log()})
    entries = read_entries([logs, more], facts)
    assert [(len(result.runs), result.scaling_factor) for result in entries.results] == [(3, 1.5)]
    assert any("result_0.txt: is there already" in str(problem) for problem in entries.problems)


def test_energy_is_mean_power_within_the_run_times_its_duration(tmp_path, facts):
    # 100 W before and after the run from 1 s to 14 s, 500 W within it.
    meter = power_log(100, *(500,) * 14, 100, start_ms=0, measurement_type="AC")
    (result,) = read_entries(
        [made_archive(tmp_path, {f"{FOLDER}/result_0.txt": make_log(), f"{FOLDER}/power/result_0/node_0.txt": meter})], facts
    ).results
    (reading,) = result.runs[0].power
    assert (reading.watts, reading.within_run, reading.measurement, reading.conversion_efficiency) == (500, True, "AC", 0.96)
    energy = run_energy(result)
    assert (energy.per_run_j, energy.per_sample_j, energy.runs) == (500 * 13, 500 * 13 / 8, 1)
    assert energy.scope == "1 node, no switch; AC, at the mains"


def test_the_command_writes_one_file_for_each_entry_and_a_bad_file_stops_no_other(tmp_path: Path, data: Path, tunemark: Tunemark):
    folder = "v5.1/Some One/results/box/llama2_70b_lora/"
    bad = {f"{folder}result_7.txt": b"\x00" * 5_000, f"{folder}result_8.txt": b"", "v5.1/Some One/systems/other.json": b"{"}
    said = tunemark("import", "mlperf", data / "mlperf", made_archive(tmp_path, entry_files() | bad), "--out", tmp_path / "out")
    assert said.code == 3
    assert [path.name for path in sorted((tmp_path / "out").rglob("*.json"))] == [
        "mlperf-v4.1-dell-xe9680x8h100-sxm-80gb.json",
        "mlperf-v5.1-dell-1xxe9780x8b200-sxm-180gb.json",
        "mlperf-v5.1-some-one-box.json",
    ]
    assert "ends without run_stop; kept as incomplete" in said.err
    assert all(f"{name.rpartition('/')[2]}:1: " in said.err for name in bad)
