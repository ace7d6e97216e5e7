"""The site: database -> Markdown, charts, JSON -> MkDocs. Reads the database and writes nothing but the built site."""
