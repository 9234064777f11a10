import argparse

from portico.cli.app import main as main
from portico.cli.composition import compose as compose

def option_parser() -> argparse.ArgumentParser: ...
