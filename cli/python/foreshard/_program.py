"""The program beside this package: where it is, how it is called, and what its exit codes are here."""

import os
import pathlib
import subprocess
import sys
import tempfile

PROGRAM = pathlib.Path(__file__).resolve().parent / "bin" / "foreshard"


class ForeshardError(RuntimeError):
    """What the program refused, in its own sentence; `exit_code` as of the program."""

    exit_code = 1

    def __init__(self, message, exit_code=None, answer=None):
        super().__init__(message)
        self.exit_code = type(self).exit_code if exit_code is None else exit_code
        self.answer = answer


class UsageError(ForeshardError):
    """A verb or an option that is not there."""

    exit_code = 2


class InvalidInput(ForeshardError):
    """A name, a key or a file that cannot be read as what it should be."""

    exit_code = 3


class Infeasible(ForeshardError):
    """Does not fit, or the terms are not met; `answer` is what the program found all the same."""

    exit_code = 4


class OutsideTolerance(ForeshardError):
    """Forecast and measurement differ by more than was allowed; `answer` has the comparison."""

    exit_code = 5


class MissingCapability(ForeshardError):
    """What this installation cannot do, with the way to it."""

    exit_code = 6


class LaunchFailure(ForeshardError):
    """Ranks that did not start or did not meet."""

    exit_code = 7


BY_CODE = {
    kind.exit_code: kind
    for kind in (UsageError, InvalidInput, Infeasible, OutsideTolerance, MissingCapability, LaunchFailure)
}


def failure(code, message, answer=None):
    return BY_CODE.get(code, ForeshardError)(message, code, answer)


def command(*arguments):
    """`foreshard ARGUMENTS`: (exit code, standard output, standard error).

    Ctrl-C ends the program at once and is a KeyboardInterrupt here."""
    words = [os.fspath(a) if isinstance(a, os.PathLike) else str(a) for a in arguments]
    # A file for what it says beside, so that the answer is the only pipe to read.
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                [str(PROGRAM), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said
            )
        except FileNotFoundError:
            raise MissingCapability(
                f"{PROGRAM} is not there: install the wheel that ./x wheel makes, or pip install ."
            ) from None
        with process:
            try:
                answer = process.stdout.read()
            except BaseException:
                process.kill()
                raise
        said.seek(0)
        errors = said.read().decode(errors="replace")
    if process.returncode == 130:  # the terminal's Ctrl-C reached it first
        raise KeyboardInterrupt
    if process.returncode < 0:
        errors += f"foreshard was ended by signal {-process.returncode}"
    return process.returncode, answer.decode(errors="replace"), errors


def main():
    """The command `foreshard`: the program takes this process's place."""
    try:
        os.execv(PROGRAM, ["foreshard", *sys.argv[1:]])
    except OSError as error:
        print(f"foreshard: {PROGRAM}: {error.strerror}", file=sys.stderr)
        return MissingCapability.exit_code
