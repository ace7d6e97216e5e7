"""Commands of the collector. They parse options and print; the other folders of the collector do the work."""
