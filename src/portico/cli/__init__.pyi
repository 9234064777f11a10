from portico.cli.app import main as main
from portico.cli.composition import compose as compose
