"""Records: submissions, published results and converted results. Frozen and validated."""
