"""The collector: judges records and stores them. The only room that writes the database."""
