"""`python -m fedscape` is the command `fedscape`."""

from fedscape.cli import main

if __name__ == "__main__":
    main()
