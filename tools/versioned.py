"""Keep the site of every version: `python tools/versioned.py [PUBLIC]` builds this version into PUBLIC/VERSION/.

PUBLIC (by default `public/`) is what a web server shows: a folder for each version, `versions.json` for the menu of
versions on each page, and an `index.html` that leads to the newest. Copy what is published to PUBLIC first; only the
folder of this version is replaced.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from release import ROOT, version


def order(name: str) -> tuple[int, ...]:
    """A version as numbers: 0.10 is newer than 0.9."""
    return tuple(int(part) for part in re.findall(r"\d+", name))


def publish(built: Path, public: Path, name: str) -> None:
    """Put a built site into its place, and rewrite the list of versions."""
    public.mkdir(parents=True, exist_ok=True)
    if (public / name).exists():
        shutil.rmtree(public / name)
    shutil.copytree(built, public / name)
    known = sorted((path.parent.name for path in public.glob("*/index.html")), key=order, reverse=True)
    menu = [{"version": n, "title": n, "aliases": ["latest"] if n == known[0] else []} for n in known]
    (public / "versions.json").write_text(json.dumps(menu, indent=1) + "\n", "utf-8")
    page = f'<!doctype html><title>fedscape</title><meta http-equiv="refresh" content="0; url={known[0]}/index.html">\n'
    (public / "index.html").write_text(page, "utf-8")


def main() -> None:
    public = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "public"
    with tempfile.TemporaryDirectory() as folder:
        call = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
        subprocess.run(call, cwd=ROOT, check=True, env={**os.environ, "FEDSCAPE_VERSIONS": "1"})
        publish(Path(folder), public, version())


if __name__ == "__main__":
    main()
