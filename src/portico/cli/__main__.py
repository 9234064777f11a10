"""``python -m portico.cli``, the same as ``portico train``; the processes of a run are started like this."""

from portico.cli.app import main

if __name__ == "__main__":
    main()
