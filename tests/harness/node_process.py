"""The command line on one of two machines that test_node_telemetry.py plays: its CPU has a power meter that shows WATTS."""

import os
import sys
import time
from dataclasses import replace

from tunemark.cli import main
from tunemark.harness.vendors import cpu
from tunemark.harness.vendors.protocol import DeviceMonitor, DeviceReading, FoundDevice

WATTS = float(os.environ["WATTS"])


class Meter(DeviceMonitor):
    interval_s = 0.02
    memory_method = "scripted"
    energy_reason = "no reason"

    def __init__(self, indexes):
        assert indexes == (0,)

    def read(self):
        return (DeviceReading(busy=0.5, power_w=WATTS, energy_j=WATTS * time.monotonic(), memory_used_bytes=int(WATTS) << 20),)

    def processes(self):
        return (frozenset({999_999_999, 999_999_998}),) if WATTS < 100 else (frozenset(),)

    def close(self):
        pass


if __name__ == "__main__":
    cpu.VENDOR = replace(cpu.VENDOR, find=lambda: [FoundDevice(0, cpu.find()[0].facts)], monitor=Meter)
    sys.argv = ["tunemark", *sys.argv[1:]]
    main()
