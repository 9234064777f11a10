"""The command ``portico demo``: a page on this machine on which a trained reader answers questions."""

import argparse
from collections.abc import Sequence

from portico.errors import CommandParser, command, naming_the_extra


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="portico demo",
        description="Serve a page on this machine: paste a text, ask, and see the answer highlighted, with its "
        'probability, the other candidates, and why there is "no answer".',
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run of +experiment=mrc, or a reader on the hub")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on, 0 for any (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:<number> or ort (default: auto)")
    return parser


@command
def main(arguments: Sequence[str]) -> None:
    given = build_parser().parse_args(arguments)
    with naming_the_extra("portico demo"):
        from portico.mrc.demo import serve

    serve(given.run, port=given.port, device=given.device)
