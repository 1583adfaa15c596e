"""`python -m loadgen` is `loadgen`."""

from loadgen.cli import main

if __name__ == "__main__":
    main()
