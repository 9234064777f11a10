"""``python -m portico.mrc.report``, the same as the command ``portico-report``."""

from portico.mrc.report.command import main

if __name__ == "__main__":
    main()
