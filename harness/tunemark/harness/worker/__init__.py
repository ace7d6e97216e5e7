"""The process that trains: started fresh for each run, writes a log line by line, knows nothing of submissions."""
