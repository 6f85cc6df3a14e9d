#!/usr/bin/env python3
"""docs/plan-keys.md: every key of a plan with its type, range, default and what it says, from cli/schemas/plan.schema.json,
which a test holds to the reader.

usage: tools/plan_keys.py [--check]     writes the page; --check: exit 1 where it is not what would be written"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "plan-keys.md"


def word(value):
    """As a plan file has it."""
    return value if isinstance(value, str) else json.dumps(value)


def values_of(node, definitions):
    """What a key takes, in one cell."""
    if "$ref" in node:
        return values_of(definitions[node["$ref"].rsplit("/", 1)[1]], definitions)
    if "const" in node:
        return word(node["const"])
    if "enum" in node:
        return ", ".join(word(value) for value in node["enum"])
    for join in ("oneOf", "anyOf", "allOf"):
        if join in node:
            return "; ".join(dict.fromkeys(values_of(part, definitions) for part in node[join]))
    kind = node.get("type", "")
    low, high = node.get("minimum"), node.get("maximum", node.get("exclusiveMaximum"))
    if kind in ("integer", "number") and (low is not None or high is not None):
        below = " (below)" if "exclusiveMaximum" in node else ""
        return f"{kind}, {'' if low is None else low} .. {'' if high is None else high}{below}"
    if kind == "array":
        return "a list of " + values_of(node.get("items", {}), definitions)
    if kind == "object":
        return "{" + ", ".join(node.get("properties", {})) + "}"
    return {"boolean": "true, false", "string": "text"}.get(kind, kind)


def rows_of(node, definitions, path=""):
    for key, child in node.get("properties", {}).items():
        name = path + key
        if "properties" in child and "default" not in child:
            yield from rows_of(child, definitions, name + ".")
            continue
        default = word(child["default"]) if "default" in child else ""
        cells = [f"`{name}`", values_of(child, definitions), default, child.get("description", "")]
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def page():
    schema = json.loads((ROOT / "cli/schemas/plan.schema.json").read_text(encoding="utf-8"))
    rows = "\n".join(rows_of(schema, schema.get("definitions", {})))
    return ("# Keys of a plan\n\nWritten by `tools/plan_keys.py` from `foreshard schema plan`; what they mean together is in "
            f"[plan.md](plan.md).\n\n| key | takes | default | |\n| --- | --- | --- | --- |\n{rows}\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text(encoding="utf-8") != page():
            sys.exit(f"{PAGE} is not what the schema says; tools/plan_keys.py writes it")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        PAGE.write_text(page(), encoding="utf-8")
