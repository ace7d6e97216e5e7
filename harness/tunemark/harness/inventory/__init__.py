"""Which devices a machine has, asked of the vendors' own tools: no torch is imported, and a missing tool means no device."""
