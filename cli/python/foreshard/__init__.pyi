import os
from typing import Any, Mapping, Protocol

import numpy as np
import numpy.typing as npt

__version__: str

_Path = str | os.PathLike[str]

class Document(dict[str, Any]):
    def __getattr__(self, name: str) -> Any: ...

class Answer(Document):
    exit_code: int
    notes: list[str]
    @property
    def verdict(self) -> str: ...
    def _repr_html_(self) -> str: ...

class ForeshardError(RuntimeError):
    exit_code: int
    answer: Answer | None

class UsageError(ForeshardError): ...
class InvalidInput(ForeshardError): ...
class Infeasible(ForeshardError): ...
class OutsideTolerance(ForeshardError): ...
class MissingCapability(ForeshardError): ...
class LaunchFailure(ForeshardError): ...

class _Verb(Protocol):
    # The options are the program's (help(foreshard.predict)); further keywords are keys of the plan.
    def __call__(
        self,
        model_or_plan: _Path | Mapping[str, Any] = ...,
        cluster: _Path = ...,
        /,
        *arguments: _Path,
        check: bool = ...,
        **options_and_keys: Any,
    ) -> Answer: ...

predict: _Verb
explain: _Verb
compare: _Verb
search: _Verb
recommend: _Verb
scale: _Verb
validate: _Verb
accuracy: _Verb
ask: _Verb
diagnose: _Verb
conform: _Verb
export: _Verb
launch: _Verb
import_: _Verb
models: _Verb
machines: _Verb
doctor: _Verb

def __getattr__(name: str) -> _Verb: ...  # what verbs come later
def command(*arguments: object) -> tuple[int, str, str]: ...
def schedule(*args: Any, **keys: Any) -> npt.NDArray[np.void]: ...
def pareto(found: Mapping[str, Any]) -> npt.NDArray[np.void]: ...
def curve(scaled: Mapping[str, Any]) -> npt.NDArray[np.void]: ...
