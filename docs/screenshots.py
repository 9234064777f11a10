"""The pictures of the report on the pages: ``python docs/screenshots.py [RUN]``, in a headless Chromium.

``RUN`` is the folder of a run of ``portico train +experiment=mrc``; without it one is trained, which takes minutes.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

FOLDER = Path(__file__).parent / "assets" / "screenshots"
# What a picture leaves out of the page, and its height in pixels. The times are those of the machine that trained.
PICTURES = {
    "report_scores": ("#questions, .fact:nth-last-child(-n+2)", 900),
    "report_question": ("header, section:not(#questions)", 900),
}
MAX_BYTES = 150_000


def take(report: Path, left_out: str, height: int, target: Path) -> None:
    """Write a picture of 1280 pixels in width."""
    with tempfile.TemporaryDirectory() as folder:
        page, raw = Path(folder) / "page.html", Path(folder) / "raw.png"
        hidden = f"<style>{left_out} {{ display: none }}</style></head>"
        page.write_text(report.read_text(encoding="utf-8").replace("</head>", hidden, 1), encoding="utf-8")
        command = [shutil.which("chromium") or "google-chrome", "--headless", "--no-sandbox", "--disable-gpu"]
        command += [
            "--hide-scrollbars",
            "--blink-settings=preferredColorScheme=1",
            f"--user-data-dir={folder}/profile",
        ]
        command += [f"--window-size=1280,{height}", "--virtual-time-budget=4000", f"--screenshot={raw}"]
        subprocess.run([*command, page.as_uri()], check=True, capture_output=True)
        Image.open(raw).convert("RGB").save(target, quality=80, method=6)
    if target.stat().st_size > MAX_BYTES:
        raise SystemExit(f"{target} has {target.stat().st_size} bytes, more than {MAX_BYTES}; lower its height.")


def main() -> None:
    """Take all pictures."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "run"
        if len(sys.argv) == 1:
            command = [sys.executable, "-m", "portico", "train", "+experiment=mrc", f"paths.output_dir={run}"]
            subprocess.run(command, check=True)
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name, (left_out, height) in PICTURES.items():
            take(run / "report.html", left_out, height, FOLDER / f"{name}.webp")


if __name__ == "__main__":
    main()
