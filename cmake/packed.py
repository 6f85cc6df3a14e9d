#!/usr/bin/env python3
"""Packs of large tables (cmake/packed.cmake unpacks them).

usage: cmake/packed.py FOLDER/NAME.tar.xz [FILE...]   packs FILEs of FOLDER (default: those that it holds),
                                                      tables of gzip unpacked, and writes FOLDER/.gitignore
       cmake/packed.py --check FOLDER...              exit 1 where a file is not what its pack holds
       cmake/packed.py --rows FILE.columns...         writes the files that FILE holds by columns, and their names

The files are one member, NAME.columns, which makes them a quarter to nine tenths as large. It begins with a line of JSON, which says how to read the rest. Files of
one name (or else suffix) are a table: its lines are of kinds (how many words), and of each kind the columns stand one
after the other. Numbers are differences to those above or left of them where that is shorter, since addresses, times
and bytes in use hardly repeat, but their steps do. Columns that go together (an event's kind, unit, stream and bytes)
are the numbers of their distinct rows, which are written once.

A file that was edited is packed again by the first form; the same files give the same bytes."""

import array
import collections
import functools
import gzip
import io
import itertools
import json
import lzma
import pathlib
import re
import subprocess
import sys
import tarfile

# Of xz's strongest preset for text and for numbers of two bytes, with a window that spans all versions of a recording.
FILTERS = [[{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 96 << 20, "lc": lc, "lp": lp, "pb": pb}]
           for lc, lp, pb in ((4, 0, 0), (0, 0, 0), (0, 1, 1), (3, 0, 1), (3, 0, 0))]
QUICK = [{"id": lzma.FILTER_LZMA2, "preset": 1, "lc": 4, "pb": 0}]
COLUMNS = ".columns"
ABOVE, LEFT = "above", "left"
NUMBER, WHOLE = re.compile(rb"([^0-9]*?)-?[0-9]+(?:\.([0-9]{1,9}))?"), re.compile(rb"-?[0-9]+")
SEPARATORS = {".csv": b",", ".txt": b" ", ".json": b","}
# A list of lists in a line of JSON, which holds their number where they are a table.
LISTS, PLACE = re.compile(rb"\[\[([^\[\]\n]*(?:\], \[[^\[\]\n]*)*)\]\]"), re.compile(rb"\[\[#([0-9]+)\]\]")
QUOTED = re.compile(rb' ?"(?:[^"\\]|\\.)*"|[^,"]+')  # words in quotes are whole
LEAST_ROWS = 64  # of a kind that is worth a look at which of its columns say the same


def held(pack):
    with tarfile.open(pack) as archive:
        members = {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}
    files = {}
    for name, data in members.items():
        files.update(files_in(data) if name.endswith(COLUMNS) else {name: data})
    return files


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
    """How, and numbers less those above them or, of the same row, left of them; the other words as they are. None where
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
    return [LEFT if left else ABOVE, prefix.decode(), places], words


def from_differences(form, words, left):
    if not form:
        return words
    base, prefix, places = form[0], form[1].encode(), form[2]
    above, column = 0, []
    for row, word in enumerate(words):
        if WHOLE.fullmatch(word):
            above = int(word) + (above if base == ABOVE else value_of(left[row], prefix, places) or 0)
            word = word_of(above, prefix, places)
        column.append(word)
    return column


def numbers_for(distinct, numbers):
    return array.array("B" if distinct <= 256 else "H", numbers)


def rows_once(columns):
    """How long columns are then; how many distinct rows they have (0: one column as it is, where that is shorter); these, a
    column after the other; the number of each row. Of columns whose rows hardly repeat only a length: too long."""
    distinct, ways = {}, [(0, b"\n".join(columns[0]), b"")] if len(columns) == 1 else []
    numbers = [distinct.setdefault(row, len(distinct)) for row in zip(*columns)]
    if 2 * len(distinct) <= len(numbers) and len(distinct) <= 65536:
        ways.append((len(distinct), b"\0".join(map(b"\n".join, zip(*distinct))), numbers_for(len(distinct), numbers).tobytes()))
    return min(((quick_size(*way[1:]), *way) for way in ways), default=(sys.maxsize,))


def quick_size(*data):
    return len(lzma.compress(b"".join(data), format=lzma.FORMAT_RAW, filters=QUICK))


def sets_of(columns):
    """Which columns stand together: the two sets that save most become one, as long as some do."""
    sets = [(i,) for i in range(len(columns))]
    if len(columns[0]) < LEAST_ROWS:
        return sets
    size = functools.cache(lambda members: rows_once([columns[i] for i in members])[0])
    while len(sets) > 1:
        saved, *two = max((size(a) + size(b) - size(a + b), a, b) for a, b in itertools.combinations(sets, 2))
        if saved <= 0:
            break
        sets = [one for one in sets if one not in two] + [sum(two, ())]
    return sets


def by_columns(rows):
    """Rows of one kind: how to read them, and their bytes."""
    columns, forms, sets, data = list(zip(*rows)), [], [], b""
    for i, (column, left) in enumerate(zip(columns[:], [None, *columns])):
        ways = [((), column), as_differences(column, None), as_differences(column, left) if left else None]
        form, columns[i] = min(filter(None, ways), key=lambda way: rows_once([way[1]])[0])
        forms.append(form)
    for members in sets_of(columns):
        _, distinct, words, numbers = rows_once([columns[i] for i in members])
        sets.append([members, distinct, len(words)])
        data += words + numbers
    return [len(rows), forms, sets], data


def from_columns(rows, forms, sets, data):
    columns = [()] * len(forms)
    for members, distinct, size in sets:
        words = [column.split(b"\n") for column in data.read(size).split(b"\0")]
        if distinct:
            numbers = numbers_for(distinct, data.read(rows * numbers_for(distinct, []).itemsize))
            words = [[column[number] for number in numbers] for column in words]
        for member, column in zip(members, words):
            columns[member] = column
    for i, form in enumerate(forms):
        columns[i] = from_differences(form, columns[i], columns[i - 1])
    return zip(*columns)


def words_of(line, separator):
    words = QUOTED.findall(line) if separator == b"," and line.startswith(b'"') else []
    return words if words and separator.join(words) == line else line.split(separator)


def as_table(texts, separator):
    """Files of like names: the lines of each, how to read these, and their bytes; None where text is shorter."""
    if not separator:
        return None
    lines, rows = [words_of(line, separator) for text in texts for line in text[:-1].split(b"\n")], {}
    # What lines of one form share: how many words, and the letter that those of a log begin with.
    kinds = [(len(words), words[0] if len(words[0]) == 1 and words[0].isalpha() else b"") for words in lines]
    for kind, words in zip(kinds, lines):
        rows.setdefault(kind, []).append(words)
    numbers = dict(zip(rows, itertools.count()))
    ways, data = zip(*map(by_columns, rows.values()))
    data = b"".join([numbers_for(len(rows), [numbers[kind] for kind in kinds]).tobytes(), *data])
    if quick_size(data, json.dumps(ways).encode()) >= quick_size(*texts):
        return None
    return [text.count(b"\n") for text in texts], [separator.decode(), ways], data


def from_table(counts, separator, ways, data):
    order = numbers_for(len(ways), data.read(sum(counts) * numbers_for(len(ways), []).itemsize))
    rows = [from_columns(*way, data) for way in ways]
    lines = (separator.encode().join(next(rows[kind])) + b"\n" for kind in order)
    return [b"".join(itertools.islice(lines, count)) for count in counts]


def lists_apart(text):
    """Text without its lists of lists, and these, one a line."""
    lists = [found.split(b"], [") for found in LISTS.findall(text)]
    counts = iter(lists)
    return LISTS.sub(lambda _: b"[[#%d]]" % len(next(counts)), text), b"".join(row + b"\n" for row in itertools.chain(*lists))


def lists_back(text, lists):
    rows = iter(lists.splitlines())
    return PLACE.sub(lambda found: b"[[%s]]" % b"], [".join(itertools.islice(rows, int(found[1]))), text)


def file_of(contents):
    """The one member of a pack: how to read it, and all files by their names, those of one name together."""
    index, data = [], b""
    often = collections.Counter(pathlib.PurePosixPath(name).name for name in contents)
    groups = {}
    for name in sorted(contents, key=by_name):
        path = pathlib.PurePosixPath(name)
        is_lines = contents[name].endswith(b"\n") and b"\0" not in contents[name]
        groups.setdefault((path.suffix if is_lines else "", path.name if often[path.name] > 1 else ""), []).append(name)
    for (suffix, _), names in groups.items():
        texts = [contents[name] for name in names]
        lists = None
        if suffix == ".jsonl" and not any(map(PLACE.search, texts)):
            parts, rows = zip(*map(lists_apart, texts))
            lists = as_table([b"".join(rows)], b",") if any(rows) else None
            texts = parts if lists else texts
        counts, ways, text = as_table(texts, SEPARATORS.get(suffix)) or (list(map(len, texts)), [], b"".join(texts))
        index.append([names, counts, ways, *(lists or [])[:2]])
        data += text + (lists[2] if lists else b"")
    return json.dumps(index, separators=(",", ":")).encode() + b"\n" + data


def files_in(member):
    data = io.BytesIO(member)
    for names, counts, ways, *lists in json.loads(data.readline()):
        texts = list(from_table(counts, *ways, data) if ways else map(data.read, counts))
        if lists:
            rows, begin = from_table(lists[0], *lists[1], data)[0].splitlines(keepends=True), 0
            for i, text in enumerate(texts):
                end = begin + sum(map(int, PLACE.findall(text)))
                texts[i], begin = lists_back(text, b"".join(rows[begin:end])), end
        yield from zip(names, texts)


def by_name(name):
    """Tables of one kind stand together, whatever folder they are in."""
    path = pathlib.PurePosixPath(name)
    return path.name, str(path.parent)


def write(pack, names):
    folder = pack.parent
    contents = {}
    named = [folder / name for name in names or held(pack)]
    for file in (file for path in named for file in [path, *sorted(path.rglob("*"))] if file.is_file()):
        data = file.read_bytes()
        name = file.relative_to(folder).as_posix()
        is_table = name.endswith((".csv.gz", ".trace.json.gz"))  # others are as they are for a reason
        contents[name.removesuffix(".gz") if is_table else name] = gzip.decompress(data) if is_table else data
    members = {pack.name.removesuffix(".tar.xz") + COLUMNS: file_of(contents)}
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(members, key=by_name):
            member = tarfile.TarInfo(name)
            member.size = len(members[name])
            archive.addfile(member, io.BytesIO(members[name]))
    ways = (lzma.compress(text.getvalue(), format=lzma.FORMAT_XZ, filters=filters) for filters in FILTERS)
    pack.write_bytes(min(ways, key=len))
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
        for columns in map(pathlib.Path, sys.argv[2:]):
            for name, data in files_in(columns.read_bytes()):
                (columns.parent / name).parent.mkdir(parents=True, exist_ok=True)
                (columns.parent / name).write_bytes(data)
                print(name)
            columns.unlink()
        sys.exit(0)
    write(pathlib.Path(sys.argv[1]), sys.argv[2:])
