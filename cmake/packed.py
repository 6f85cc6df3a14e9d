#!/usr/bin/env python3
"""Packs of large tables (cmake/packed.cmake unpacks them).

usage: cmake/packed.py FOLDER/NAME.tar.xz [FILE...]   packs FILEs of FOLDER (default: those that it holds),
                                                      tables of gzip unpacked, and writes FOLDER/.gitignore
       cmake/packed.py --check FOLDER...              exit 1 where a file is not what its pack holds
       cmake/packed.py --rows FILE.columns...         writes FILEs, whose tables were packed by columns

Tables and logs that tests alone read are packed by columns, which makes them a quarter to two thirds as large: what
configures the program itself needs no Python. A column's values stand one a line, a NUL between columns; numbers as
differences where that is shorter, since addresses, times and bytes in use hardly repeat, but their steps do.

A file that was edited is packed again by the first form; the same files give the same bytes."""

import collections
import gzip
import io
import itertools
import lzma
import pathlib
import re
import subprocess
import sys
import tarfile
import zlib

# Of xz's strongest preset for text, with a window that spans all versions of a recording.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 96 << 20, "lc": 4, "pb": 0}]
COLUMNS = ".columns"
ABOVE, LEFT = b"\1", b"\2"  # begin a column of differences; behind it the numbers' decimals and what stands before each
NUMBER, WHOLE = re.compile(rb"([^0-9]*?)-?[0-9]+(?:\.([0-9]{1,9}))?"), re.compile(rb"-?[0-9]+")
SEPARATORS = {".csv": b",", ".txt": b" ", ".json": b","}
ROOT = pathlib.Path(__file__).resolve().parent.parent


def held(pack):
    with tarfile.open(pack) as archive:
        members = {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}
    return {name.removesuffix(COLUMNS): by_rows(data, separator_of(name.removesuffix(COLUMNS))) if name.endswith(COLUMNS) else data
            for name, data in members.items()}


def separator_of(name):
    """Of the words of a file's lines; None where it is packed as it is."""
    return SEPARATORS.get(pathlib.PurePosixPath(name).suffix)


def kind_of(words):
    """What lines of one form share: how many words, and the letter that those of a log begin with."""
    return b"%d %s" % (len(words), words[0] if len(words[0]) == 1 and words[0].isalpha() else b"")


def value_of(word, prefix, places):
    """The number that word writes after prefix, in units of its last decimal; None where it is written in another way."""
    digits = word[len(prefix):].replace(b".", b"", 1)
    if not word.startswith(prefix) or not WHOLE.fullmatch(digits):
        return None
    value = int(digits)
    return value if word_of(value, prefix, places) == word else None


def word_of(value, prefix, places):
    if not places:
        return b"%s%d" % (prefix, value)
    whole, decimals = divmod(abs(value), 10**places)
    return b"%s%s%d.%0*d" % (prefix, b"-" if value < 0 else b"", whole, places, decimals)


def as_differences(column, left):
    """Numbers less those above them or, of the same row, left of them; the other words as they are. None where
    hardly any word is a number, or one of the others would be read as a difference."""
    forms = collections.Counter((found[1], len(found[2] or b"")) for found in map(NUMBER.fullmatch, column) if found)
    if not forms:
        return None
    (prefix, places), _ = forms.most_common(1)[0]
    above, words = 0, []
    for word, beside in zip(column, left or column):
        value = value_of(word, prefix, places)
        if value is None and WHOLE.fullmatch(word):
            return None
        less = (value_of(beside, prefix, places) or 0) if left else above
        words.append(word if value is None else b"%d" % (value - less))
        above = above if value is None else value
    return b"\n".join([b"%s%d%s" % (LEFT if left else ABOVE, places, prefix), *words])


def from_differences(column, left):
    form, *words = column.split(b"\n")
    base, places, prefix = form[:1], int(form[1:2]), form[2:]
    above = 0
    for row, word in enumerate(words):
        if WHOLE.fullmatch(word):
            above = int(word) + (above if base == ABOVE else value_of(left[row], prefix, places) or 0)
            words[row] = word_of(above, prefix, places)
    return words


def shortest(column, left):
    ways = [b"\n".join(column), as_differences(column, None), as_differences(column, left) if left else None]
    return min((way for way in ways if way is not None), key=lambda way: len(zlib.compress(way)))


def by_columns(text, separator):
    """The kind of each line, then the columns of each kind; None where text has one of the marks of columns or
    nothing ends its last line."""
    if any(mark in text for mark in (b"\0", ABOVE, LEFT)) or not text.endswith(b"\n"):
        return None
    lines, kinds = [line.split(separator) for line in text[:-1].split(b"\n")], {}
    for words in lines:
        kinds.setdefault(kind_of(words), []).append(words)
    packed = [b"\n".join(map(kind_of, lines))]
    for several in kinds.values():
        columns = list(zip(*several))
        packed += map(shortest, columns, [None, *columns])
    return b"\0".join(packed)


def by_rows(packed, separator):
    order, *packed = packed.split(b"\0")
    order, packed, lines = order.split(b"\n"), iter(packed), {}
    for kind in dict.fromkeys(order):
        columns = [None]
        for column in itertools.islice(packed, int(kind.split()[0])):
            differs = column.startswith((ABOVE, LEFT))
            columns.append(from_differences(column, columns[-1]) if differs else column.split(b"\n"))
        lines[kind] = zip(*columns[1:])
    return b"\n".join(separator.join(next(lines[kind])) for kind in order) + b"\n"


def alike(name):
    """Tables of one kind stand together, whatever folder they are in."""
    path = pathlib.PurePosixPath(name)
    return path.name, str(path.parent)


def files_of(folder, names):
    for name in names:
        path = folder / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                yield file


def write(pack, names):
    folder = pack.parent
    contents = {}
    for file in files_of(folder, names or held(pack)):
        data = file.read_bytes()
        name = file.relative_to(folder).as_posix()
        is_table = name.endswith((".csv.gz", ".trace.json.gz"))  # others are as they are for a reason
        contents[name.removesuffix(".gz") if is_table else name] = gzip.decompress(data) if is_table else data
    of_tests = pack.resolve().relative_to(ROOT).parts[0] == "tests"
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(contents, key=alike):
            separator = separator_of(name) if of_tests else None
            columns = by_columns(contents[name], separator) if separator else None
            member = tarfile.TarInfo(name if columns is None else name + COLUMNS)
            data = contents[name] if columns is None else columns
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    pack.write_bytes(lzma.compress(text.getvalue(), format=lzma.FORMAT_XZ, filters=FILTERS))
    ignored = ["# What the packs here hold (cmake/packed.py).", "/.*.unpacked"]
    for one in sorted(folder.glob("*.tar.xz")):
        names = held(one)
        tops = {name.split("/")[0] + ("/" if "/" in name else "") for name in names}
        ignored += sorted("/" + top for top in tops)
    (folder / ".gitignore").write_text("\n".join(ignored) + "\n", encoding="utf-8")
    print(f"{pack}: {len(contents)} files, {sum(map(len, contents.values()))} bytes in {pack.stat().st_size}")


def forgotten(root, packed):
    """Files that git ignores beside packs and that no pack holds: nobody else would ever see them."""
    listing = subprocess.run(["git", "ls-files", "--others", "--ignored", "--exclude-standard", "."], cwd=root,
                             capture_output=True, text=True, check=False)
    kept = (pathlib.Path(root) / name for name in listing.stdout.splitlines())
    return [file for file in kept if file not in packed and not file.name.endswith((".unpacked", ".pyc"))]


def check(roots):
    stale = []
    for root in roots:
        packed = set()
        for pack in sorted(pathlib.Path(root).rglob("*.tar.xz")):
            for name, data in held(pack).items():
                file = pack.parent / name
                packed.add(file)
                if not file.is_file() or file.read_bytes() != data:
                    stale.append(f"{file} is not what {pack} holds: pack it again with cmake/packed.py {pack}, "
                                 "or restore it with cmake -P cmake/packed.cmake")
        stale += [f"{file} is in no pack and is not tracked: name it to cmake/packed.py" for file in forgotten(root, packed)]
    print("\n".join(stale) or "every file is what its pack holds")
    return 1 if stale else 0


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    if sys.argv[1] == "--check":
        sys.exit(check(sys.argv[2:]))
    if sys.argv[1] == "--rows":
        for packed in map(pathlib.Path, sys.argv[2:]):
            rows = packed.with_suffix("")
            rows.write_bytes(by_rows(packed.read_bytes(), separator_of(rows.name)))
            packed.unlink()
        sys.exit(0)
    write(pathlib.Path(sys.argv[1]), sys.argv[2:])
