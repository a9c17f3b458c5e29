"""`python -m motet` is `motet`."""

from motet.cli.main import main

if __name__ == "__main__":
    main()
