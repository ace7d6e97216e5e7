"""Real runs in real processes: whatever happens, a valid submission with its status is left."""

import json
import os
import signal
import subprocess

import psutil
import pytest
import transformers
from harness_making import ROOT, cold, only_submission, run_json, run_of, tunemark, warm, writer_of

from tunemark.harness.worker.models import config_of
from tunemark.harness.worker.sample_files import read_split, word_level_tokenizer
from tunemark.schema.derive import derive
from tunemark.schema.vocabulary import Division, Phase, Status

TEXT = ROOT / "tests" / "harness" / "data" / "emotions"
QUICK = ("probe=false", "gates=false")
SMALL = ("data.sequence_length=16", "batch.micro_batch=2")
TRACE = """
import sys, threading
seen = set()
def note(frame, event, _):
    file = frame.f_code.co_filename
    if event == "call" and frame.f_code.co_name != "<module>" and "/tunemark/" in file and file not in seen:
        seen.add(file)
        open(__file__ + ".log", "a").write(file + "\\n")
sys.setprofile(note), threading.setprofile(note)
"""


def started(out, *settings, env=None):
    """Start a run of many steps and return its process once the worker has done some."""
    sets = [word for each in (*SMALL, "probe=false", *settings) for word in ("--set", each)]
    command = warm("tunemark", "run", "smoke-lora", "--steps", 5000, *sets, "--out", out)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
    for line in process.stderr:
        if "train, " in line:
            return process
    pytest.fail(f"the run ended before it trained: {process.communicate()}")


def test_a_short_run_is_ok_and_answers_in_json(tmp_path):
    done, submission = run_of(tmp_path, "smoke-lora", *SMALL, steps=3, json=True)
    assert done.returncode == 0, done.stderr
    answer = run_json(done)
    assert (answer["status"], answer["steps"]) == ("ok", 3)
    assert submission.plan.model.loss == submission.effective.loss == "chunked"
    assert submission.model.trainable_parameters < submission.model.parameters
    assert submission.model.adapter_bytes == 4 * submission.model.trainable_parameters > 0
    assert submission.process.user_s > 0


@pytest.mark.nightly
def test_a_run_calls_code_of_at_most_45_files(tmp_path):
    """Bodies of classes count as calls, those of modules do not."""
    (tmp_path / "sitecustomize.py").write_text(TRACE)
    run_of(tmp_path / "out", "smoke-lora", steps=2, start=cold, env={"PYTHONPATH": str(tmp_path)})
    files = {line.rpartition("/tunemark/")[2] for line in (tmp_path / "sitecustomize.py.log").read_text().splitlines()}
    assert files >= {"harness/run/launch.py", "harness/worker/loop.py"}
    assert len(files) <= 45, sorted(files)


@pytest.mark.process
def test_a_killed_worker_leaves_its_steps_and_status_crash(tmp_path):
    process = started(tmp_path, env={"TMPDIR": str(tmp_path)})
    writer_of(tmp_path).kill()
    _, said = process.communicate(timeout=60)
    submission = only_submission(tmp_path)
    assert submission.outcome.status is Status.CRASH
    assert "SIGKILL" in submission.outcome.message
    assert submission.outcome.last_good_step == len(submission.trace) > 0
    assert submission.outcome.phase is Phase.TRAIN
    assert process.returncode == 6, said


@pytest.mark.process
def test_a_worker_that_hangs_is_ended_by_force_with_status_timeout(tmp_path):
    process = started(tmp_path, "no_step_timeout=8", env={"TMPDIR": str(tmp_path)})
    worker = writer_of(tmp_path)
    worker.suspend()
    process.communicate(timeout=120)
    assert only_submission(tmp_path).outcome.status is Status.TIMEOUT
    assert not worker.is_running()


@pytest.mark.process
def test_a_closed_terminal_leaves_the_steps_and_status_interrupted(tmp_path):
    """As Ctrl-C does, which test_studies_runs.py sends to a sweep."""
    process = started(tmp_path)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    submission = only_submission(tmp_path)
    assert submission.outcome.status is Status.INTERRUPTED
    assert len(submission.trace) > 0
    assert not [child for child in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(child.info["cmdline"] or [])]


def test_a_diverging_run_is_nan_with_the_step_where_it_happened(tmp_path):
    diverging = ("optimizer.learning_rate=1e30", "optimizer.max_grad_norm=null")
    done, submission = run_of(tmp_path, "smoke-full", *SMALL, *diverging, "probe=false", steps=50)
    assert submission.outcome.status is Status.NAN, done.stderr
    assert submission.trace.loss[-1] is None
    assert "learning_rate" in submission.outcome.fix


@pytest.mark.nightly
def test_a_loss_that_is_finite_in_training_and_not_in_evaluation_is_nan(tmp_path):
    _, submission = run_of(tmp_path, "smoke-bert", "probe=false", "optimizer.learning_rate=1e30", steps=1)
    assert submission.outcome.status is Status.NAN
    assert submission.evaluation.loss is None


def test_too_large_a_batch_is_out_of_memory_with_exit_code_5(tmp_path):
    done, submission = run_of(tmp_path, "smoke-full", "batch.micro_batch=300000", "data.name=random-tokens", "force=true", steps=2)
    assert submission.outcome.status is Status.OOM_HOST, submission.outcome
    assert done.returncode == 5
    assert "batch.micro_batch" in submission.outcome.fix


def test_what_is_not_supported_is_recorded_without_starting_a_worker(tmp_path):
    done, submission = run_of(tmp_path, "smoke-lora", "attention=flash_attention_2")
    assert done.returncode == 4
    assert submission.outcome.status is Status.UNSUPPORTED
    assert submission.process.wall_s == 0


def test_real_text_trains_a_classifier_and_evaluates_it_on_the_test_file(tmp_path):
    done, submission = run_of(tmp_path, "smoke-bert", "probe=false", "labels=3", steps=60, data=f"file:{TEXT}", json=True)
    assert done.returncode == 0, done.stderr
    assert submission.division is Division.OPEN
    assert submission.evaluation.rows == 60
    assert submission.evaluation.split == "all rows of file test.txt"
    assert submission.evaluation.loss_standard_error > 0
    assert run_json(done)["accuracy_standard_error"] == pytest.approx(derive(submission).accuracy_standard_error)
    assert submission.evaluation.accuracy > 0.6
    assert sum(submission.trace.real_tokens) < sum(submission.trace.slot_tokens)
    lengths = submission.row_lengths
    assert lengths.rows == len((TEXT / "train.txt").read_text().splitlines())
    assert lengths.minimum <= lengths.median <= lengths.maximum <= submission.plan.data.sequence_length
    assert submission.environment.swap_bytes is not None


@pytest.mark.process
@pytest.mark.parametrize(
    ("train", "test", "said"),
    [
        (b"a b;x\nc d;y\n", b"a b;my-private-label\n", "1 labels of the evaluation rows are not in the training rows"),
        (b"a b;x\nc d\n", b"a b;x\n", "1 of 2 training rows have no label, the first is row 2"),
        (b"a b;x\n", None, "has no evaluation rows; give a folder with test.txt"),
        (b"caf\xe9;x\n", b"a b;x\n", "not UTF-8"),
        (b"", b"a b;x\n", "has no train rows"),
    ],
)
def test_text_that_cannot_be_used_is_refused_before_anything_runs(tmp_path, train, test, said):
    folder, out = tmp_path / "texts", tmp_path / "out"
    folder.mkdir()
    (folder / "train.txt").write_bytes(train)
    if test is not None:
        (folder / "test.txt").write_bytes(test)
    done = tunemark("run", "smoke-bert", "--steps", 2, "--data", f"file:{folder}", "--out", out)
    assert done.returncode == 2
    assert said in done.stderr
    assert "private" not in done.stderr
    assert not out.exists()


def test_pretrained_weights_load_from_a_directory_and_data_through_the_hub_library(tmp_path, facts):
    weights, rows, out = tmp_path / "weights", tmp_path / "rows", tmp_path / "out"
    tokenizer = word_level_tokenizer(read_split("file", str(TEXT), "train")[1], 300)
    tokenizer.save_pretrained(weights)
    config = config_of(facts.model("tiny-bert"), labels=3, vocabulary=len(tokenizer))
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(weights)
    rows.mkdir()
    for split in ("train", "test"):
        lines = [line.rpartition(";") for line in (TEXT / f"{split}.txt").read_text().splitlines()]
        (rows / f"{split}.jsonl").write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, _, label in lines))
    places = {"weights": f"pretrained:{weights}", "data": f"hub:{rows}"}
    env = {"HF_DATASETS_CACHE": str(tmp_path / "cache")}
    done, submission = run_of(out, "smoke-bert", "probe=false", "labels=3", steps=3, env=env, **places)
    assert submission.outcome.status is Status.OK, done.stderr
    assert submission.plan.model.local
    assert str(tmp_path) not in next(out.rglob("*.json")).read_text()


def test_weights_that_are_nowhere_are_refused_before_anything_is_loaded(tmp_path):
    words = ("--steps", 2, "--weights", "pretrained:nobody/nothing", "--out", tmp_path / "out")
    done = tunemark("run", "smoke-lora", *words, env={"HF_HUB_OFFLINE": "1"})
    assert (done.returncode, (tmp_path / "out").exists()) == (2, False)
    assert "model hub: 'offline (HF_HUB_OFFLINE is set)': not all weights and data are in the cache of this machine; give" in done.stderr


@pytest.mark.process
def test_a_submission_that_cannot_be_written_is_printed_instead(tmp_path):
    (tmp_path / "smoke-full").write_text("not a folder")
    done = tunemark("run", "smoke-full", "--steps", 2, "--set", "probe=false", "--seq", 16, "--out", tmp_path)
    assert done.returncode == 1
    assert json.loads(done.stdout)["outcome"]["status"] == "ok"
    assert "--out" in done.stderr


@pytest.mark.process
def test_a_disk_that_is_full_when_weights_are_saved_leaves_the_steps_and_says_what_to_do(tmp_path):
    sets = [word for each in (*QUICK, *SMALL, "save=true") for word in ("--set", each)]
    command = warm("full_disk_process", "run", "smoke-full", "--steps", 2, *sets, "--out", tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    submission = only_submission(tmp_path)
    assert (submission.outcome.status, submission.outcome.phase) == (Status.CRASH, Phase.SAVE), done.stderr
    assert submission.outcome.last_good_step == len(submission.trace) == 2
    assert submission.saved_bytes is None
    assert "TMPDIR" in submission.outcome.fix
