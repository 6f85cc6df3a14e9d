"""A type of a namespace has one definition in the whole project: two of one name are one to the linker. type_names_test.py ROOT"""
import collections
import pathlib
import re
import sys

NAMESPACE = re.compile(r"namespace ?([\w:]*) \{")
TYPE = re.compile(r"(?:struct|class|enum class|union) (\w+)(?: final)?(?: : [^;{]*)?(?: ?\{.*)?$")
FOLDERS = ("calibration", "cli", "exec", "interop", "models", "planner", "reports", "sim", "tests", "tools")

places = collections.defaultdict(list)
for folder in FOLDERS:
    for file in sorted(pathlib.Path(sys.argv[1], folder).rglob("*")):
        if file.suffix not in (".h", ".cpp", ".cu", ".cuh"):
            continue
        names = []  # of the namespaces that are open, which begin and end at the margin as the layout has them
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if found := NAMESPACE.match(line):
                names.append(found[1])
            elif line.startswith("}  // namespace"):
                names.pop()
            elif names and "" not in names and (found := TYPE.match(line)):
                places["::".join([*names, found[1]])].append(f"{file}:{number}")
assert len(places) > 500, "types are not found any more"
twice = {name: found for name, found in places.items() if len(found) > 1}
for name, found in twice.items():
    print(name, *found, sep="\n  ")
sys.exit(bool(twice))
