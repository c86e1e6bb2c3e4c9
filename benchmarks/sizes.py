"""Lines of Python in `attnsim/`: `python benchmarks/sizes.py`, by part, and the longest files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "attnsim"
BEFORE = 52_687
"""Lines before the tree was reshaped (commit ce82554)."""
LONGEST = 12


def main() -> None:
    """Print the table."""
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    parts: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path, count in lines.items():
        part, *inner = path.relative_to(PACKAGE).parts[:-1] or (".",)
        for name in (part, f"{part}/{inner[0]}" if inner else ""):
            parts[name] += count if name else 0
            files[name] += 1
    for name in sorted(filter(None, parts)):
        print(f"{parts[name]:7,}  {files[name]:4} files  {'    ' * name.count('/')}{name}")
    total = sum(lines.values())
    print(f"{total:7,}  {len(lines):4} files  all; {total - BEFORE:+,} beside {BEFORE:,}\n")
    for path in sorted(lines, key=lambda path: -lines[path])[:LONGEST]:
        print(f"{lines[path]:7,}  {path.relative_to(PACKAGE)}")


if __name__ == "__main__":
    main()
