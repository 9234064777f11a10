"""The drawings of the site: Mermaid in the pages as SVG files, so that no reader's browser fetches a script.

``python docs/diagrams.py mermaid.min.js`` draws those that are new, in a headless Chromium, and deletes those that no
page has; ``npm pack mermaid`` gets the script. GitHub and editors draw the same blocks themselves.
"""

import hashlib
import html
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
FOLDER = DOCS / "assets" / "diagrams"
BLOCK = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)

# Mermaid takes no variables for colours: it draws with these, which are then replaced by those of the page's scheme.
_COLOURS = {
    "#fafa01": "var(--md-code-bg-color)",
    "#0101fa": "var(--md-default-fg-color)",
    "#01fafa": "var(--md-default-fg-color--light)",
    "#fa01fa": "var(--md-default-bg-color)",
    "#fa0101": "var(--md-default-fg-color--lightest)",
}

_PAGE = """<!doctype html><body><script src="SCRIPT"></script><script>
const [fill, text, line, page, faint] = COLOURS;
mermaid.initialize({startOnLoad: false, theme: "base", fontFamily: "sans-serif", htmlLabels: false,
  flowchart: {htmlLabels: false, wrappingWidth: 420, rankSpacing: 32, padding: 12}, themeVariables: {
  primaryColor: fill, mainBkg: fill, actorBkg: fill, primaryTextColor: text, textColor: text, nodeTextColor: text,
  actorTextColor: text, signalTextColor: text, labelTextColor: text, loopTextColor: text, noteTextColor: text,
  titleColor: text, primaryBorderColor: line, nodeBorder: line, actorBorder: line, actorLineColor: line,
  lineColor: line, signalColor: line, labelBoxBorderColor: line, noteBorderColor: line, clusterBorder: line,
  edgeLabelBackground: page, labelBoxBkgColor: fill, noteBkgColor: fill, clusterBkg: faint, arrowheadColor: line}});
mermaid.render("NAME", SOURCE).then(({svg}) => {
  document.body.innerHTML = "<output id=drawn></output>"; document.getElementById("drawn").textContent = svg;
}).catch((error) => { document.body.innerHTML = `<output id=drawn>${error}</output>`; });
</script></body>"""


def drawing(source: str) -> Path:
    """Return the file of a block's drawing."""
    return FOLDER / f"{hashlib.sha256(source.encode()).hexdigest()[:12]}.svg"


def sources() -> list[str]:
    """Return the Mermaid blocks of all pages."""
    return [block for page in sorted(DOCS.rglob("*.md")) for block in BLOCK.findall(page.read_text(encoding="utf-8"))]


def draw(source: str, script: Path) -> str:
    """Return the SVG that Mermaid draws, with the colours of the page that it will stand in."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        text = _PAGE.replace("SCRIPT", script.resolve().as_uri(), 1).replace("COLOURS", str(list(_COLOURS)))
        page.write_text(text.replace("NAME", f"d{drawing(source).stem}").replace("SOURCE", repr(source)), "utf-8")
        command = [shutil.which("chromium") or "google-chrome", "--headless", "--no-sandbox", "--disable-gpu"]
        command += [f"--user-data-dir={folder}", "--virtual-time-budget=8000", "--dump-dom", page.as_uri()]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r'<output id="drawn">(.*?)</output>', shown, re.DOTALL)
    svg = html.unescape(found[1]) if found else shown
    if not svg.startswith("<svg"):
        raise SystemExit(f"Mermaid could not draw this block: {svg[:300]}\n{source}")
    for colour, variable in _COLOURS.items():
        numbers = ", ".join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))
        svg = svg.replace(colour, variable).replace(f"rgb({numbers})", variable)
    return svg + "\n"


def main() -> None:
    """Draw the blocks that have no drawing yet."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = {drawing(source): source for source in sources()}
    for path in set(FOLDER.glob("*.svg")) - wanted.keys():
        path.unlink()
    for path, source in wanted.items():
        if not path.exists():
            path.write_text(draw(source, Path(sys.argv[1])), encoding="utf-8")


if __name__ == "__main__":
    main()
