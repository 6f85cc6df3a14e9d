#!/usr/bin/env bash
# pack.sh BIN FILE: the carried build, for a machine with a GPU, LibTorch 2.11 in its python3, and no network.
#
# FILE is a .tar.gz of foreshard-gpu/: the programs of BIN, the plugin, the libraries they need that such a machine may
# lack (all but the C and C++ runtimes, LibTorch and CUDA), the scripts of the round, and run.sh.
set -euo pipefail
bin=$(realpath -- "$1")
file=$(realpath -m -- "$2")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
theirs='^(linux-vdso|ld-linux|libc\.|libm\.|libdl\.|libpthread\.|librt\.|libresolv\.|libutil\.|libstdc\+\+|libgcc_s|libgomp|libtorch|libc10|libcu|libnv|libshm)'

for program in foreshard foreshard-exec libforeshard_cuda.so; do
  if [[ ! -f $bin/$program ]]; then
    printf 'pack: there is no %s; %s\n' "$bin/$program" \
      "./x build says why (the plugin needs a CUDA 13 toolkit)" >&2
    exit 6
  fi
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=$work/foreshard-gpu
mkdir -p "$out"/{bin,lib,exec/gpu,interop/record,models/examples}
for program in foreshard foreshard-exec libforeshard_cuda.so; do
  strip --strip-unneeded -o "$out/bin/$program" "$bin/$program"
  chmod +x "$out/bin/$program"
done
# The programs look for LibTorch where it was when they were linked, before LD_LIBRARY_PATH: beside themselves instead.
python3 - "$out"/bin/* <<'PATCH'
import re, subprocess, sys
for file in sys.argv[1:]:
    text = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True).stdout
    for path in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", text):
        wanted = b"$ORIGIN/../lib"
        old = path.encode() + b"\0"
        if len(old) <= len(wanted):
            sys.exit(f"pack: {file}: no room for a path in {path}")
        data = open(file, "rb").read()
        if data.count(old) != 1:
            sys.exit(f"pack: {file}: {path} stands there {data.count(old)} times")
        open(file, "r+b").write(data.replace(old, wanted.ljust(len(old), b"\0")))
PATCH
for program in foreshard foreshard-exec; do
  while read -r name _ path _; do
    [[ $name =~ $theirs || $path != /* ]] || cp -L -- "$path" "$out/lib/$name"
  done < <(ldd "$bin/$program")
done
cp "$root"/exec/gpu/*.py "$root/exec/gpu/code_cases.json" "$root/exec/null/python/foreshard_reference.py" "$root/exec/gpu/README.md" "$out/exec/gpu/"
PYTHONDONTWRITEBYTECODE=1 python3 - "$root/exec/gpu" "$bin" >"$out/build.json" <<'FACTS'
import json, pathlib, sys
sys.path.insert(0, sys.argv[1])
from round_machine import build_facts
print(json.dumps(build_facts(pathlib.Path(sys.argv[2])), indent=1))
FACTS
cp "$root/interop/record/timed.py" "$out/interop/record/"
cp "$root/models/examples/llama-5m.json" "$out/models/examples/"
cat >"$out/run.sh" <<'RUN'
#!/usr/bin/env bash
# The round on this machine's GPU: ./run.sh [--minutes N] [--out DIR] [--bundle FILE.tar.gz] [--resume] [--stages NAME,...]
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec python3 "$here/exec/gpu/round.py" --bin "$here/bin" "$@"
RUN
chmod +x "$out/run.sh"
mkdir -p "$(dirname "$file")"
tar -C "$work" -czf "$file" foreshard-gpu
size=$(stat -c %s "$file")
printf 'packed %s: %d MiB; there: tar xzf %s && foreshard-gpu/run.sh --minutes 9\n' "$file" \
  "$(((size + (1 << 20) - 1) >> 20))" "$(basename "$file")"
if ((size > 64 << 20)); then
  printf 'pack: more than 64 MiB, which is too large to be carried\n' >&2
  exit 1
fi
