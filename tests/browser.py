"""Pages in a headless browser: a script acts on a page, and says what it saw."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

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
