"""The collector: checks records and stores them. The only package that writes the database."""
