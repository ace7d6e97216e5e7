"""Turn a request and a machine into a plan. Pure: the harness, the gate and the site share it."""
