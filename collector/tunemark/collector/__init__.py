"""The collector: checks records and stores them. The only package that writes the database."""

import os

# The matrices of the throughput model are small: threads of OpenBLAS mostly wait for each other. It reads this when numpy is imported first.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
