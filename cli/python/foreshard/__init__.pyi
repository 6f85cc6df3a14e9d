import os
from typing import Any, Iterable, Mapping

import numpy as np
import numpy.typing as npt

__version__: str

_Path = str | os.PathLike[str]
_Plan = _Path | Mapping[str, Any] | None
_Document = dict[str, Any]

class ForeshardError(RuntimeError):
    exit_code: int
    def __init__(self, message: str, exit_code: int) -> None: ...

def command(*arguments: object) -> tuple[int, str, str]: ...
def predict(
    plan: _Plan = ...,
    *,
    model: _Path | None = ...,
    cluster: _Path | None = ...,
    runtime: str | None = ...,
    profile: _Path | None = ...,
    **keys: Any,
) -> _Document: ...
def explain(
    plan: _Plan = ...,
    *,
    model: _Path | None = ...,
    cluster: _Path | None = ...,
    runtime: str | None = ...,
    profile: _Path | None = ...,
    **keys: Any,
) -> _Document: ...
def schedule(
    plan: _Plan = ...,
    *,
    model: _Path | None = ...,
    cluster: _Path | None = ...,
    runtime: str | None = ...,
    profile: _Path | None = ...,
    **keys: Any,
) -> npt.NDArray[np.void]: ...
def search(
    plan: _Plan = ...,
    *,
    fix: Mapping[str, Any] | None = ...,
    global_batch: int | None = ...,
    objective: str | None = ...,
    max_memory: float | None = ...,
    deep: bool = ...,
    robust: bool = ...,
    vary: Iterable[str] | None = ...,
    threads: int | None = ...,
    model: _Path | None = ...,
    cluster: _Path | None = ...,
    runtime: str | None = ...,
    profile: _Path | None = ...,
    **keys: Any,
) -> _Document: ...
def pareto(found: Mapping[str, Any]) -> npt.NDArray[np.void]: ...
def compare(
    plan: _Plan = ...,
    *,
    with_: Mapping[str, Any] | None = ...,
    runtimes: Iterable[str] | None = ...,
    **job: Any,
) -> _Document: ...
def accuracy(*files: _Path, anchor: int | None = ...) -> _Document: ...
def recommend(
    model: _Path,
    *,
    tokens: str | float,
    deadline: str | None = ...,
    budget: str | float | None = ...,
    clusters: str | Iterable[_Path] | None = ...,
    gpus: Iterable[int] | None = ...,
    global_batch: int | None = ...,
    batch_tokens: str | int | None = ...,
    prices: _Path | None = ...,
    what_if: bool = ...,
    threads: int | None = ...,
    runtime: str | None = ...,
    **keys: Any,
) -> _Document: ...
def scale(
    model: _Path,
    cluster: str,
    *,
    gpus: Iterable[int] | None = ...,
    global_batch: int | None = ...,
    batch_tokens: str | int | None = ...,
    weak: int | None = ...,
    prices: _Path | None = ...,
    threads: int | None = ...,
    runtime: str | None = ...,
    **keys: Any,
) -> _Document: ...
def curve(scaled: Mapping[str, Any]) -> npt.NDArray[np.void]: ...
def export(
    to: str, plan: _Plan = ..., *, launcher: str | None = ..., program: str | None = ..., **job: Any
) -> _Document: ...
def launch(
    plan: _Plan = ..., *, launcher: str = ..., program: str | None = ..., **job: Any
) -> _Document: ...
def import_files(
    *files: _Path, model: _Path | None = ..., cluster: _Path | None = ...
) -> _Document: ...
def models(name: str | None = ...) -> _Document: ...
def machines(name: str | None = ...) -> _Document: ...
