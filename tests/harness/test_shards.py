"""FSDP2 distributes the model block by block: no process but the first holds more than one block besides its shards."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from harness_making import warm
from sharding_process import OF_FAMILY, plan_of, small

from tunemark.harness.vendors.cpu import Cpu
from tunemark.harness.worker.engines import shapes_only
from tunemark.harness.worker.models import build_model


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """What each of two processes saw while it sharded a model of each family, the second one's first."""
    folder = tmp_path_factory.mktemp("shards")
    build_model(plan_of("gpt2", None), small("llama"), None, None, folder, Cpu()).save_pretrained(folder / "weights")
    done = subprocess.run(
        warm("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "sharding_process", folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (1, 0)]


CASES = [*(f"{family}, random" for family in OF_FAMILY), "llama, pretrained"]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_process_that_receives_its_weights_holds_one_block_at_a_time(two_processes, case):
    second = two_processes[0][case]
    assert second["before"] == 0
    assert second["at_once"] == second["units"]
    assert second["after"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_first_process_gives_each_block_away_before_the_next_one_is_touched(two_processes, case):
    first = two_processes[1][case]
    left = [sum(first["units"][unit:]) for unit in range(len(first["units"]))]
    assert (first["at_once"], first["after"]) == (left, 0)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_sharded_model_computes_what_the_whole_one_does_in_every_process(two_processes, case):
    for seen in two_processes:
        assert not seen[case]["meta_left"]
        assert seen[case]["difference"] <= 1e-5 < seen[case]["moved"]


@pytest.mark.slow
@pytest.mark.parametrize("family", OF_FAMILY)
def test_processes_that_draw_their_weights_hold_one_block_at_a_time_and_shards_of_the_same_model(two_processes, family):
    second, first = (seen[f"{family}, drawn"] for seen in two_processes)
    units = two_processes[0][f"{family}, random"]["units"]
    assert (first["before"], first["at_once"]) == (0, units)
    assert first["sums"] == second["sums"]
    # No shard repeats another one.
    assert first["repeated"] == 0


@pytest.mark.slow
def test_a_process_that_built_another_model_fails_instead_of_waiting(two_processes):
    second, first = two_processes
    assert "process 1" in second["refused"]
    assert "bias" in second["refused"]
    assert "refused" not in first


@pytest.mark.parametrize("family", OF_FAMILY)
def test_a_model_without_weights_has_nothing_else_that_holds_numbers(family):
    """What is neither a parameter nor a buffer would be handed out by nobody."""
    plan = plan_of(family, None)
    assert [shapes_only(plan, rank, drawn=False) for rank in (0, 1, 2)] == [False, True, True]
    assert shapes_only(plan, 0, drawn=True)
    model = build_model(plan, small(family), None, None, Path(), Cpu(), empty=True)
    tensors = [*model.parameters(), *model.buffers()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    known = {id(tensor) for tensor in tensors}
    held = [value for module in model.modules() for value in vars(module).values() if isinstance(value, torch.Tensor)]
    assert all(id(tensor) in known for tensor in held)
