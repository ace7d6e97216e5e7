"""Device families, one module each: what they are, how they are found and monitored, what they cannot do."""
