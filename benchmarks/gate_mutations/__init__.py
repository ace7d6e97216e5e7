"""An examination of the gate: submissions, files, texts and facts that it must refuse, and honest ones that it must accept.

Written without reading the gate's code, from the formats and from what the harness writes.
"""
