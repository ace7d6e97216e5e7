"""Scripts that run a workload on other machines: a SLURM batch script, a SkyPilot task. Made from what was asked, not from this machine."""
