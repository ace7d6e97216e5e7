"""Energy and telemetry of several machines cover every machine, or are null with the reason."""

import os
import socket
import subprocess
from datetime import UTC, datetime

import pytest
from harness_making import make_machine, only_submission, problems_of, warm

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.node_telemetry import NodeUse, Window, answer, ask_parent
from tunemark.harness.run.record import assemble
from tunemark.harness.run.run_log import RunLog
from tunemark.harness.run.run_outcome import Finished
from tunemark.harness.run.telemetry import DeviceSeries, Moment, Sample, Telemetry
from tunemark.harness.vendors.protocol import DeviceReading
from tunemark.schema.records.submission import MemoryReading, Utilisation
from tunemark.schema.records.trace import DeviceUse, Energy
from tunemark.schema.vocabulary import WarningKind

SMALL = ("--steps", "40", "--set", "probe=false", "--set", "gates=false", "--set", "data.sequence_length=32", "--set", "timeout=200")


def use_of(watts=100.0, **changes):
    energy = Energy(source="counter", joules=2 * watts, window_s=2.0, idle_w=watts / 10)
    plain = {"samples": 10, "interval_s": 0.2, "cpu_busy_mean": watts / 100, "cpu_busy_peak": watts / 50, "foreign_cpu_busy_mean": 0.0}
    devices = (DeviceUse(index=0, samples=10), DeviceUse(index=1, samples=10))
    return NodeUse(
        utilisation=Utilisation(**{**plain, "devices": devices, "energy": energy, **changes}),
        device_used=MemoryReading(reason="not reported"),
        host_rss_bytes=1,
        host_swap_bytes=None,
        foreign={},
    )


@pytest.mark.process
@pytest.mark.slow
def test_the_energy_of_two_machines_is_the_sum_of_their_counters(tmp_path, facts):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    shared = [
        "run",
        "smoke-full",
        *SMALL,
        "--devices",
        "2",
        "--set",
        "nodes=2",
        "--set",
        f"rendezvous=localhost:{port}",
        "--out",
        str(tmp_path),
    ]
    nodes = [
        subprocess.Popen(
            warm("node_process", *shared, "--set", f"node_rank={rank}"), stdout=subprocess.DEVNULL, env={**os.environ, "WATTS": watts}
        )
        for rank, watts in (("1", "50"), ("0", "200"))
    ]
    assert [node.wait(timeout=240) for node in nodes] == [0, 0]
    both = only_submission(tmp_path)
    use, energy = both.utilisation, both.utilisation.energy
    assert [(device.node, device.index, device.power_mean_w) for device in use.devices] == [(0, 0, 200.0), (1, 0, 50.0)]
    assert energy.source == "counter"
    assert energy.joules / energy.window_s == pytest.approx(250.0, rel=0.01)
    assert energy.idle_w == pytest.approx(250.0)
    trained_s = both.trace.completed_at_s[-1] - both.trace.completed_at_s[9]
    assert energy.window_s == pytest.approx(trained_s, abs=0.2)
    warnings = {warned.kind.value: warned.message for warned in both.warnings}
    # One of the two unknown processes is taken to be the worker.
    assert warnings["busy_device"].endswith("used device 0 of node 1; end them and repeat")
    assert "partial_telemetry" not in warnings
    # The scripted counters of energy and memory, which no CPU has, are the only strange thing about it.
    scripted = ("utilisation.", "memory.device_used.")
    assert [problem for problem in problems_of(tmp_path, facts) if not problem.field.startswith(scripted)] == []


def test_a_parent_answers_once_with_the_samples_of_the_window(tmp_path, monkeypatch):
    monkeypatch.setattr("tunemark.harness.run.node_telemetry.ANSWER_S", 0.0)
    moments = [Moment(0.1 * place, (DeviceReading(power_w=10.0),)) for place in range(100)]
    telemetry = Telemetry([Sample(0.2 * place, place, None, 1.0, 0.0) for place in range(50)], DeviceSeries(indexes=(0,), during=moments))
    answer(tmp_path, telemetry)
    assert not list(tmp_path.iterdir())
    assert ask_parent(tmp_path, Window(start_s=2.0, end_s=5.0)) is None
    answer(tmp_path, telemetry)
    monkeypatch.setattr("tunemark.harness.run.node_telemetry.ANSWER_S", 1.0)
    use = ask_parent(tmp_path, Window(start_s=2.0, end_s=5.0))
    assert use.utilisation.energy.joules == pytest.approx(30.0, rel=0.05)
    assert use.host_rss_bytes == 49


@pytest.mark.parametrize(("reported", "complete"), [((0, 1), True), ((0,), False)])
def test_a_record_of_two_machines_warns_if_one_of_them_did_not_report(facts, reported, complete):
    here = make_machine(packages={"torch": "2", "transformers": "5", "accelerate": "1"})
    resolved = resolve("smoke-full", facts, here, Options(max_steps=130, devices=2, nodes=2, rendezvous="head:29500"))
    counts = {"slot_tokens": 64, "real_tokens": 64, "supervised_tokens": 60, "documents": 4, "rows": 4, "loss": 2.0}
    log = RunLog(
        phases=[{"phase": "import", "at_s": 0.0}, {"phase": "train", "at_s": 1.0}],
        started_at_s=1.0,
        steps=[{"completed_at_s": 1.0 + 0.1 * step, **counts} for step in range(1, 131)],
        nodes=[{"node": node, "use": use_of(100.0).model_dump(mode="json")} for node in reported],
        ended=True,
    )
    # The samples of the first machine alone are never taken for those of all.
    moments = [Moment(0.1 * place, (DeviceReading(power_w=10.0),)) for place in range(200)]
    own = Telemetry([Sample(0.2 * place, 10, None, 1.0, 0.0) for place in range(90)], DeviceSeries(indexes=(0,), during=moments))
    finished = Finished(log, own, datetime(2026, 1, 2, tzinfo=UTC), wall_s=20.0, max_rss_bytes=10**9)
    record = assemble(resolved, here, finished)
    assert record.utilisation.energy.joules == (400.0 if complete else None)
    assert len(record.utilisation.devices) == (4 if complete else 0)
    warned = [warned.message for warned in record.warnings if warned.kind is WarningKind.PARTIAL_TELEMETRY]
    assert warned == ([] if complete else ["no samples from node 1 of 2, so the energy of all devices is unknown"])
    assert ("of the first machine" in record.memory.host_rss.method) is not complete
