"""A model, a card and options of the user's own, by path or by the name of a model on the hub; what becomes a submission, and trackers."""

import http.server
import json
import threading
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS
from harness_making import FACTS, tunemark
from study_making import ScriptedBench, make_run

from tunemark.harness.commands.run import with_own_cards
from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.record import is_submission, write
from tunemark.harness.run.show import refuse_missing_tracker, report, steps_of
from tunemark.harness.studies.search import run_frontier
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.any_model import any_model
from tunemark.schema.vocabulary import Phase, Status

SMALL = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 512, "tie_word_embeddings": False}


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "my-llama"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(SMALL))
    return made


def test_rows_beyond_the_context_of_a_model_are_pointed_out(folder):
    assert (
        "1,024 tokens are longer than the context of my-llama, 512"
        in tunemark("plan", "smoke-lora", "--model", folder, "--seq", 1024).stderr
    )


@pytest.mark.usefixtures("folder")
def test_options_may_stand_in_a_file_with_paths_beside_it_and_the_command_line_counts_more(tmp_path):
    file = tmp_path / "mine.yml"
    file.write_text("workload: smoke-lora\nmodel: ./my-llama\nseq: 64\nsteps: 40\nset:\n  lora: {rank: 4}\nbatch.micro_batch: 2\n")
    workload, options = with_own_cards(str(file), None, Options(max_steps=20))
    assert (workload, options.max_steps) == ("smoke-lora", 20)
    assert options.overrides == ("model=my-llama", "lora.rank=4", "data.sequence_length=64", "batch.micro_batch=2")


@pytest.mark.parametrize(
    ("content", "said"),
    [("seq: 64", "name the workload"), ("a: [", "cannot be read"), ("workload: smoke-lora\nsteps: yes", "whole number|integer")],
)
def test_a_file_without_a_workload_or_with_a_wrong_value_is_refused(tmp_path, content, said):
    (tmp_path / "mine.yml").write_text(content)
    with pytest.raises(TunemarkError, match=said):
        with_own_cards(str(tmp_path / "mine.yml"), None, Options())


def test_a_card_by_path_is_planned_by_its_file(tmp_path, machine):
    own = tmp_path / "mine.toml"
    own.write_text((FACTS.root / "workloads" / "smoke-lora.toml").read_text().replace('key = "smoke-lora"', 'key = "mine"'))
    workload, options = with_own_cards(str(own), None, Options())
    plan = resolve(workload, options.facts, machine, options).plan
    assert (plan.workload, plan.workload_sha256) != ("mine", FACTS.workload_sha256("smoke-lora"))
    assert plan.batch == resolve("smoke-lora", FACTS, machine, Options()).plan.batch


def test_a_model_with_the_name_of_another_one_gets_a_name_of_its_own(folder):
    own = folder.rename(folder.with_name("llama-3.1-8b"))
    _, options = with_own_cards("smoke-lora", str(own), Options())
    assert options.overrides == ("model=own-llama-3.1-8b",)


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers as the hub does: the configuration of one model, and 404 for others."""

    def do_GET(self):
        known = self.path == "/me/my-llama/resolve/main/config.json"
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(json.dumps(SMALL).encode() if known else b"")

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield
        server.shutdown()


@pytest.mark.usefixtures("hub")
def test_a_model_of_the_hub_needs_no_card_and_a_wrong_name_is_refused_with_what_to_do():
    card = any_model(FACTS, "me/my-llama")
    assert (card.key, card.hub_id, card.layers) == ("my-llama", "me/my-llama", 2)
    with pytest.raises(TunemarkError, match=r"404.*give a folder with its config\.json"):
        any_model(FACTS, "me/my-lama")


# What becomes a submission


@pytest.mark.parametrize(
    ("ending", "kept"),
    [
        ({"status": Status.OK}, True),
        ({"status": Status.OOM_HOST}, True),
        ({"status": Status.OOM_DEVICE}, True),
        ({"status": Status.CRASH, "phase": Phase.LOAD}, False),
        ({"status": Status.INTERRUPTED}, False),
    ],
)
def test_a_run_that_trained_or_ran_out_of_memory_is_a_submission_and_a_typing_error_is_not(ending, kept, machine, tmp_path):
    record = make_run(resolve("smoke-lora", FACTS, machine, Options()), **ending)
    path = write(record, tmp_path / "submissions")
    assert is_submission(record) is kept
    assert path.parts[len(tmp_path.parts)] == ("submissions" if kept else "build")


def test_tries_are_kept_outside_the_submissions_and_continue_a_search(tmp_path):
    scripted = ScriptedBench(tmp_path / "submissions")
    run_frontier("smoke-lora", Options(), scripted.bench)
    ran = len(scripted.ran)
    run_frontier("smoke-lora", Options(), scripted.bench)
    assert ran == len(scripted.ran) > 0
    assert not list((tmp_path / "submissions").rglob("*.json"))


def test_runs_lists_what_is_not_committed_and_removes_it(machine, tmp_path):
    submitted = tmp_path / "submissions"
    plan = resolve("smoke-lora", FACTS, machine, Options())
    good, bad = write(make_run(plan), submitted), write(make_run(plan, status=Status.CRASH, phase=Phase.LOAD), submitted)
    listed = json.loads(tunemark("runs", "--out", str(submitted), "--json").stdout)
    assert {(Path(row["file"]), row["try"]) for row in listed} == {(good, False), (bad, True)}
    tunemark("runs", "--out", str(submitted), "--remove", "tries")
    assert (good.exists(), bad.exists()) == (True, False)
    refused = tunemark("runs", "--out", str(submitted), "--remove", "nosuch")
    assert (refused.returncode, "no run that git does not track has this id" in refused.stderr) == (2, True)


@pytest.fixture
def record(machine):
    return make_run(resolve("smoke-lora", FACTS, machine, Options()), steps=30)


@pytest.mark.parametrize(("tracker", "place"), [("wandb", "tunemark"), ("tensorboard", "a run")])
def test_every_step_and_the_headline_numbers_are_sent(monkeypatch, record, tracker, place):
    kind = MagicMock(requires_logging_directory=False)
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, tracker, kind)
    monkeypatch.setattr("accelerate.accelerator.filter_trackers", lambda name, _: [name])
    report(record, tracker, "a run")
    assert kind.call_args.args == (place,)
    sent = [(call.kwargs["step"], call.args[0]) for call in kind.return_value.log.call_args_list]
    assert sent[:-1] == list(enumerate(steps_of(record), start=1))
    assert {"run/tokens_per_s", "run/wall_s"} <= sent[-1][1].keys()


def test_a_missing_tracker_is_refused_with_its_package_before_the_run():
    with pytest.raises(TunemarkError, match="pip install wandb"):
        refuse_missing_tracker("wandb")
