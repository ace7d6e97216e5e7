"""Facts of data/: cards of accelerators, models, workloads and prices, and the fact base that loads them."""
