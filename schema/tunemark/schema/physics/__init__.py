"""FLOPs, memory, bounds and utilisation: pure functions of shapes."""
