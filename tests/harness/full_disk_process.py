"""The command line where no file may grow beyond 400 kB: the record of a small run is smaller, its weights are not."""

import resource

from tunemark.cli import main

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
    main()
