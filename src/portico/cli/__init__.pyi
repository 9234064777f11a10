from portico.cli.app import main as main
from portico.cli.compose import compose as compose
