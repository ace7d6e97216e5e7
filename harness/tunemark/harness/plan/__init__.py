"""Turn a workload card, options and a machine into a plan."""
