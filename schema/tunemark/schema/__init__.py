"""What a result is: records, units, vocabulary, statistics, facts. Stands on pydantic, numpy and the standard library."""
