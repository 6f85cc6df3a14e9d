"""Writes JSON Schemas from the notation of cli/schemas/*.txt: schemas.py FOLDER FILES..., into FOLDER/NAME.schema.json.

A file begins with the title and what it describes; then a line a key, indented by one more space inside another:

  KEY: SHAPE # what it is         KEY?: it may be missing         - SHAPE: of a list, of a map, or an alternative
  text, integer, number, boolean, object, null, or several: "number or null"; any has no schema of its own
  1..64, 1.., ..3                 bounds: of a number, a text's length, a list's length
  /PATTERN/   "word"   a|b|c      a text like that, that word, one of these
  [SHAPE]   {SHAPE}               a list; a map by names
  {}   {only}                     the keys that follow; no others
  $NAME   &NAME                   the definition of that name; the shape that a line "NAME := SHAPE" gave
  any of, one of                  the lines "- SHAPE" that follow
  SHAPE = JSON   SHAPE e.g. JSON  what is meant without it; examples
  {"...": ...}                    JSON Schema itself; a line "+ JSON" adds its keys
"""

import json
import re
import sys
from pathlib import Path

TYPES = {"text": "string", **{word: word for word in "integer number boolean null array object".split()}}
BOUNDS = {"array": "Items", "string": "Length", "object": "Properties"}


class Line:
    def __init__(self, text):
        self.depth = len(text) - len(text.lstrip(" "))
        text, _, self.says = text.strip().partition(" # ")
        name = re.match(r"(-|\+|[$\w]+\??:=?|\w+ :=)(?: |$)", text)
        self.name = name[1].rstrip(":") if name else ""
        self.shape = text[name.end():] if name else text
        self.lines = []


def tree(lines):
    root = Line("")
    open_lines = [root]
    for line in map(Line, lines):
        while len(open_lines) > 1 and open_lines[-1].depth >= line.depth:
            open_lines.pop()
        open_lines[-1].lines.append(line)
        open_lines.append(line)
    return root.lines


def bounds(text, of=None):
    least, _, most = text.partition("..")
    names = ("min" + of, "max" + of) if of else ("minimum", "maximum")
    return {name: json.loads(value) for name, value in zip(names, (least, most)) if value}


class Schema:
    def __init__(self):
        self.shapes = {}

    def keys(self, lines, is_strict):
        out = {"additionalProperties": False} if is_strict else {}
        keys = [line for line in lines if line.name not in ("+", "-")]
        required = [line.name for line in keys if not line.name.endswith("?")]
        properties = {line.name.rstrip("?"): self.shape(line) for line in keys if line.shape != "any"}
        out.update({"required": required} if required else {})
        out.update({"properties": properties} if properties else {})
        for line in lines:
            if line.name == "+":
                out.update(json.loads(line.shape))
        return out

    def shape(self, line):
        if line.shape == "true":
            return True
        says = {"description": line.says} if line.says else {}
        if line.shape[0] == "$" and says:
            return {**says, "allOf": [self.of(line.shape, line.lines)]}
        return {**says, **self.of(line.shape, line.lines)}

    def of(self, text, lines):
        more = {}
        if text[:2] != '{"':
            for word, key in ((" e.g. ", "examples"), (" = ", "default")):
                text, _, value = text.partition(word)
                more.update({key: json.loads(value)} if value else {})
            text, _, size = re.fullmatch(r"(.*?)( (\S*\.\.\S*))?", text).groups()
        keyed = re.fullmatch(r"\{(only)?\}( or null)?", text)
        inner = re.fullmatch(r"([\[{])(.*)[\]}]", text)
        if text[:2] == '{"':
            out = json.loads(text)
        elif text == "anything":
            out = {}
        elif text[0] == "&":
            out = self.of(self.shapes[text[1:]].shape, self.shapes[text[1:]].lines)
        elif text[0] == "$":
            out = {"$ref": "#/definitions/" + text[1:]}
        elif text[0] == '"':
            out = {"const": json.loads(text)}
        elif text[0] == "/":
            out = {"type": "string", "pattern": text[1:-1]}
        elif text in ("any of", "one of"):
            out = {text[:3] + "Of": [self.shape(line) for line in lines if line.name == "-"]}
        elif "|" in text:
            out = {"enum": text.split("|")}
        elif keyed:
            out = {"type": ["object", "null"] if keyed[2] else "object", **self.keys(lines, keyed[1])}
        elif inner:
            kind, key = ("array", "items") if inner[1] == "[" else ("object", "additionalProperties")
            each = self.of(inner[2], lines) if inner[2] != "-" else self.shape(lines[0])
            out = {"type": kind, **(bounds(size, BOUNDS[kind]) if size else {}), key: each}
        else:
            types = [TYPES[word] for word in text.split(" or ")]
            out = {"type": types if len(types) > 1 else types[0]}
            out.update(bounds(size, BOUNDS.get(types[0])) if size else {})
        return {**out, **more}


def schema_of(text):
    title, says, *rest = text.rstrip("\n").split("\n")
    schema = Schema()
    lines = tree(rest)
    schema.shapes = {line.name[:-3]: line for line in lines if line.name.endswith(" :=")}
    definitions = {line.name[1:]: schema.shape(line) for line in lines if line.name.startswith("$")}
    body = [line for line in lines if not line.name.endswith(" :=") and not line.name.startswith("$")]
    alone = len(body) == 1 and not body[0].name
    root = schema.shape(body[0]) if alone else {"type": "object", **schema.keys(body, False)}
    out = {"$schema": "http://json-schema.org/draft-07/schema#", "title": title, "description": says, **root}
    return {**out, "definitions": definitions} if definitions else out


def written(value, depth=0):
    """On one line where that is short, or where nothing is inside."""
    line = json.dumps(value, ensure_ascii=False)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    if len(line) <= 295 or not any(isinstance(part, (dict, list)) for part in parts):
        return line
    begin = "\n" + " " * (depth + 1)
    is_map = isinstance(value, dict)
    items = [json.dumps(key) + ": " + written(each, depth + 1) for key, each in value.items()] if is_map else [
        written(each, depth + 1) for each in value]
    return "{["[not is_map] + begin + ("," + begin).join(items) + "\n" + " " * depth + "}]"[not is_map]


def main(folder, *files):
    Path(folder).mkdir(parents=True, exist_ok=True)
    for file in map(Path, files):
        path = Path(folder) / (file.stem + ".schema.json")
        text = written(schema_of(file.read_text(encoding="utf-8"))) + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
