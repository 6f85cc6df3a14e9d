#!/usr/bin/env python3
"""README.md is short, links lead somewhere, and commands print what the pages show.

  tests/docs_test.py                      README.md has at most 8,192 bytes; every relative link of README.md,
                                          CONTRIBUTING.md and docs/*.md names a file of the repository
  tests/docs_test.py PROGRAM              runs every indented block that begins with `$ build/bin/foreshard` and
                                          compares what it prints, apart from how long it took
  tests/docs_test.py PROGRAM --write      puts what they print today into the pages
"""
import argparse
import difflib
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
README_BYTES = 8192
PROMPT = "    $ "
PROGRAM = "build/bin/foreshard "
LINK = re.compile(r"\]\(([^)\s]+)\)")
# "in 2.49 s": the only words of an answer that say how long it took
TOOK = re.compile(r"\bin [0-9.,]+ (?:us|ms|s|min)$")


def pages():
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def broken_links():
    for page in pages():
        for number, line in enumerate(page.read_text().split("\n"), 1):
            for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
                if re.match(r"[a-z]+:|#", target):
                    continue
                if not (page.parent / target.split("#")[0]).exists():
                    yield f"{page.relative_to(ROOT)}:{number}: {target}: no such file"


def blocks(lines):
    """(first, last, command): the lines of output below each prompt, first included, last not."""
    for i, line in enumerate(lines):
        if not line.startswith(PROMPT + PROGRAM):
            continue
        end = i + 1
        while end < len(lines) and (not lines[end] or lines[end].startswith("    ")):
            if lines[end].startswith(PROMPT):
                break
            end += 1
        while not lines[end - 1]:
            end -= 1
        yield i + 1, end, line[len(PROMPT):]


def printed(command, program):
    run = subprocess.run(["bash", "-c", command.replace(PROGRAM, f"{program} ")], cwd=ROOT,
                         capture_output=True, text=True, timeout=900)
    text = run.stdout or run.stderr
    return [("    " + line).rstrip() for line in text.rstrip("\n").split("\n")]


def check_blocks(program, write):
    differs = 0
    count = 0
    for page in pages():
        lines = page.read_text().split("\n")
        before = differs
        for first, last, command in reversed(list(blocks(lines))):
            count += 1
            shown, today = lines[first:last], printed(command, program)
            if [TOOK.sub("", l) for l in shown] == [TOOK.sub("", l) for l in today]:
                continue
            differs += 1
            lines[first:last] = today
            sys.stdout.writelines(f"{line}\n" for line in difflib.unified_diff(
                shown, today, f"{page.relative_to(ROOT)}:{first}", command, n=0, lineterm=""))
        if write and differs > before:
            page.write_text("\n".join(lines))
    print(f"{count} blocks, {differs} {'rewritten' if write else 'differ: tests/docs_test.py PROGRAM --write'}"
          if differs else f"{count} blocks print what is shown")
    return 0 if count and (write or not differs) else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.program:
        return check_blocks(arguments.program.resolve(), arguments.write)
    wrong = list(broken_links())
    size = (ROOT / "README.md").stat().st_size
    if size > README_BYTES:
        wrong.append(f"README.md: {size} bytes; at most {README_BYTES}: what is more belongs to docs/")
    print("\n".join(wrong) or f"README.md has {size} bytes; links lead somewhere")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
