"""Pages of runs and sweeps: made-up results, a parser, and a headless browser that runs scripts in them."""

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from portico.mrc.report import Candidate, QuestionResult, RunRecord, Scores, write_comparison
from portico.mrc.report.run_page import run_page

# ---- Results of reading comprehension ----

VOID = {"meta", "input", "path", "wbr", "br"}
HOSTILE = "</p><script>alert('x')</script><img src=http://example.org/x onerror=y>\"'&"
CONTEXT = f"Zoë Łuk \U0001f600 {HOSTILE} was born in Turku, تورکو, in 1901."


def result(number=0, *, gold="Turku", predicted="Turku", f1=None, context=CONTEXT, **changes):
    """Return one question; the gold and the predicted text must stand in the context."""
    start = context.index(predicted) if predicted else None
    exact = float(gold == predicted)
    fields = {
        "id": f"q{number}",
        "title": "",
        "question": "Where was Zoë born?",
        "context": context,
        "golds": ((gold, context.index(gold)),) if gold else (),
        "predicted_text": predicted,
        "predicted_span": None if start is None else (start, start + len(predicted)),
        "probability": 0.9,
        "null_odds": -1.5,
        "exact": exact,
        "f1": exact if f1 is None else f1,
        "nbest": (Candidate(predicted, 0.9, 3.5), Candidate("", 0.1, 1.0)),
        "if_answered": Scores(exact, exact if f1 is None else f1),
    }
    return QuestionResult(**{**fields, **changes})


RESULTS = [
    result(0),
    result(1, predicted="Łuk"),
    result(2, predicted="in Turku", f1=0.67),
    result(3, predicted=""),
    result(4, gold="", predicted="1901"),
    result(5, gold="", predicted=""),
]
HISTORY = [
    {"step": 10, "loss": 2.0, "learning_rate": 1e-3},
    {"step": 20, "loss": 1.0, "learning_rate": 5e-4},
    {"step": 20, "eval_loss": 1.5, "eval_f1": 40.0, "eval_exact": 30.0},
    {"step": 20, "train_runtime": 200.0},
]


def record(results=RESULTS, **changes):
    """Return a run with these results."""
    return RunRecord(**{"title": "A title", "name": "/runs/a", "results": results, **changes})


class Page(HTMLParser):
    """Collects what a page is made of, and fails on tags that do not nest."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.text, self.data = [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.tags and self.tags[-1][1].get("id") == "explorer-data" and self.open[-1] == "script":
            self.data.append(data)
        elif self.open[-1:] != ["script"] and self.open[-1:] != ["style"]:
            self.text.append(data)

    def having(self, css_class):
        """Return the attributes of each element of a class."""
        return [attrs for _, attrs in self.tags if css_class in (attrs.get("class") or "").split()]

    @property
    def sections(self):
        """The identifiers of the parts of the page."""
        return [attrs["id"] for tag, attrs in self.tags if tag == "section" and "id" in attrs]


def comparison_page(*runs):
    """Return the page that compares runs."""
    with TemporaryDirectory() as folder:
        page = Path(folder, "comparison.html")
        write_comparison(page, *runs)
        return page.read_text(encoding="utf-8")


def shown(*arguments, **changes):
    """Return the parsed report of a run."""
    return Page(run_page(record(*arguments, **changes)))


# ---- Results of a sweep ----


def job(number, score, **changes):
    evaluations = [] if score is None else [[10, score - 10], [20, score]]
    return {
        "number": number,
        "status": "finished",
        "seconds": 61.0,
        "error": None,
        "is_feasible": True,
        "folder": str(number),
        "report": f"{number}/report.html",
        "values": {"args.learning_rate": 10.0 ** (number - 4), "model": "ab"[number % 2]},
        "objective": {"eval_f1": score},
        "evaluations": evaluations,
        "command": f"portico train +experiment=mrc args.learning_rate=1e-{4 - number}",
        **changes,
    }


def summary(**changes):
    return {
        "name": "found",
        "goals": {"eval_f1": "max"},
        "parameters": ["args.learning_rate", "model"],
        "space": [
            {"name": "args.learning_rate", "kind": "float", "range": "0.0001 to 0.01", "log": True},
            {"name": "model", "kind": "choice", "range": "a, b", "log": False},
        ],
        "method": {"sampler": "TPESampler(seed=1)", "pruner": "none", "trials": "4"},
        "fixed": ["+experiment=mrc", "args.seed=3"],
        "best": [2],
        "baselines": {},
        "importances": {"eval_f1": {"args.learning_rate": 0.75, "model": 0.25}},
        "without_importances": {},
        "jobs": [
            job(0, 60.0, values={"args.learning_rate": 1e-4, "model": "a"}),
            job(1, 40.0, status="pruned", values={"args.learning_rate": 1e-2, "model": "a"}),
            job(2, 81.5, values={"args.learning_rate": 1e-3, "model": "b"}),
            job(3, None, status="failed", error="InputError: no", report=None),
        ],
        **changes,
    }


# ---- A headless browser ----

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

DRIVER = """<script id="driver">
TOOLS
const act = async () => { SCRIPT };
addEventListener("load", () => setTimeout(async () => {
  const seen = await act().catch((error) => error.stack);
  const outcome = document.createElement("output");
  outcome.id = "outcome";
  outcome.textContent = JSON.stringify(seen);
  document.body.append(outcome);
}, 50));
</script></body>"""


def with_script(page: str, script: str, *, tools: str = "") -> str:
    """Return a page that runs the body of an asynchronous function once it is loaded."""
    return page.replace("</body>", DRIVER.replace("TOOLS", tools).replace("SCRIPT", script))


def browse(address: str, profile: Path, *options: str) -> Any:
    """Open the address of a page with a script and return what the script returns."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    command += ["--window-size=1200,900", "--virtual-time-budget=2000", "--dump-dom", *options, address]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return json.loads(html.unescape(re.search(r'<output id="outcome">(.*?)</output>', done.stdout, re.S)[1]))
