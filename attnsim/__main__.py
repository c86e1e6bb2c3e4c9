"""`python -m attnsim`."""

from attnsim.cli import main

if __name__ == "__main__":
    main()
