"""Writes what a wheel or a carried build holds of others, as SPDX 2.3 in JSON: `sbom.py OUT ARTEFACT...`.

An artefact is a wheel (.whl) or what `./x gpu --pack` made (.tar.gz). Two kinds of packages are in one:
libraries whose files it carries (found by their names among this machine's packages), and what is compiled
into the programs: headers and files of the packages that packages.txt marks [compiled in]. Versions are
those installed here; licences are those of the package's copyright file (Debian's DEP-5).
"""

import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Debian's short names that SPDX writes otherwise: https://spdx.org/licenses/
SPDX_NAME = {
    "Expat": "MIT", "Apache-2": "Apache-2.0", "Apache-2.0": "Apache-2.0", "Apache-2.0-with-LLVM-exception":
    "Apache-2.0 WITH LLVM-exception", "BSD-2-clause": "BSD-2-Clause", "BSD-3-clause": "BSD-3-Clause",
    "BSD-3-Clause": "BSD-3-Clause", "BSL-1.0": "BSL-1.0", "Boost-1.0": "BSL-1.0", "MPL-2": "MPL-2.0", "MPL-2.0": "MPL-2.0",
    "Zlib": "Zlib", "zlib": "Zlib", "ISC": "ISC", "MIT": "MIT", "public-domain": "blessing",
}
# Whose copyright file is no DEP-5, read by a person: name of the source package -> licence.
READ = {
    "gcc-12": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "gcc-13": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "gcc-14": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "boost-defaults": "BSL-1.0",
    "yaml-cpp": "MIT",
    "zlib": "Zlib",
}


def run(*command):
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout


def license_of(package, source):
    if source in READ:
        return READ[source]
    path = pathlib.Path(f"/usr/share/doc/{package}/copyright")
    text = path.read_text(errors="replace") if path.exists() else ""
    # The stanza of all files comes first.
    found = re.search(r"^Files:\s*\*\s*$(.*?)(?=^\S*Files:|\Z)", text, re.M | re.S)
    name = re.search(r"^License:\s*(\S+)", found.group(1), re.M) if found else None
    return SPDX_NAME.get(name.group(1), "NOASSERTION") if name else "NOASSERTION"


def installed(package):
    """(version, source package) of an installed package; None where it is not."""
    told = run("dpkg-query", "--show", "--showformat=${Version}\t${source:Package}\t${Homepage}", package)
    return told.split("\t") if told else None


def package_of_file(name):
    """The installed package that has a library of this name."""
    for line in run("dpkg-query", "--search", f"*/{name}").splitlines():
        package, _, path = line.partition(": ")
        if pathlib.PurePath(path).name == name:
            return package.partition(":")[0]
    # A link's target has another name than the link: ldconfig knows the link.
    for line in run("/sbin/ldconfig", "-p").splitlines():
        found = re.match(rf"\s*{re.escape(name)} .*=> (\S+)", line)
        if found and os.path.basename(os.path.realpath(found.group(1))) != name:
            return package_of_file(os.path.basename(os.path.realpath(found.group(1))))
    return None


def compiled_in():
    """Packages of packages.txt whose headers or files become part of the programs."""
    for line in (ROOT / "packages.txt").read_text().splitlines():
        words = line.split(None, 3)
        if len(words) == 4 and not line.startswith("#") and words[1] == "build" and "[compiled in]" in words[3]:
            yield words[0]


def carried(artefact):
    """Names of the shared libraries that lie in the artefact."""
    if artefact.suffix == ".whl":
        with zipfile.ZipFile(artefact) as archive:
            names = archive.namelist()
    else:
        with tarfile.open(artefact) as archive:
            names = archive.getnames()
    return sorted(os.path.basename(name) for name in names if "/lib/" in name and ".so" in name)


def spdx_id(name):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def package(name, version, source, homepage, how):
    license_name = license_of(name, source)
    return {
        "SPDXID": spdx_id(name), "name": name, "versionInfo": version, "supplier": "Organization: Debian or Ubuntu",
        "downloadLocation": homepage or "NOASSERTION", "filesAnalyzed": False,
        "licenseConcluded": license_name, "licenseDeclared": license_name, "copyrightText": "NOASSERTION",
        "comment": how, "externalRefs": [{
            "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
            "referenceLocator": f"pkg:deb/{distribution()}/{name}@{version}"}],
    }


def distribution():
    with open("/etc/os-release", encoding="utf-8") as file:
        return re.search(r"^ID=\"?(\w+)", file.read(), re.M).group(1)


def document(artefact):
    data = artefact.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    version = re.search(r"project\(foreshard VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    parts = {}
    unknown = []
    for name in compiled_in():
        if facts := installed(name):
            parts[name] = package(name, *facts, "compiled into the programs")
    libraries = {}
    for library in carried(artefact):
        if owner := package_of_file(library):
            libraries.setdefault(owner, []).append(library)
        else:
            unknown.append(library)
    for owner, names in libraries.items():
        parts[owner] = package(owner, *installed(owner), f"carried: {', '.join(names)}")
    if unknown:
        raise SystemExit(f"sbom: no installed package has {', '.join(unknown)}")
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ",
                          time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    own = {
        "SPDXID": "SPDXRef-artefact", "name": "foreshard", "versionInfo": version,
        "packageFileName": artefact.name, "supplier": "NOASSERTION", "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False, "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0",
        "copyrightText": "NOASSERTION", "checksums": [{"algorithm": "SHA256", "checksumValue": digest}],
    }
    return {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": artefact.name,
        "documentNamespace": f"https://spdx.org/spdxdocs/{artefact.name}-{digest}",
        "creationInfo": {"created": stamp, "creators": [f"Tool: foreshard-sbom-{version}"]},
        "packages": [own, *(parts[name] for name in sorted(parts))],
        "relationships": [
            {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
             "relatedSpdxElement": "SPDXRef-artefact"},
            *({"spdxElementId": "SPDXRef-artefact", "relationshipType": "CONTAINS",
               "relatedSpdxElement": parts[name]["SPDXID"]} for name in sorted(parts)),
        ],
    }


def main():
    if len(sys.argv) < 3:
        raise SystemExit("usage: sbom.py OUT ARTEFACT...")
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:]:
        artefact = pathlib.Path(name)
        file = out / f"{artefact.name}.spdx.json"
        file.write_text(json.dumps(document(artefact), indent=2) + "\n")
        print(file)


main()
