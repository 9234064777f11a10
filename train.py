"""Train from a configuration: ``python train.py +experiment=mrc``; ``--help`` lists what can be chosen."""

from portico.cli import main

if __name__ == "__main__":
    main()
