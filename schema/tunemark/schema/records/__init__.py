"""Records: what a submission, a published result and a converted result contain. Frozen and validated."""
