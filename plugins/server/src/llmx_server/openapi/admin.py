"""The shapes of what administrators are answered."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

__all__ = [
    "AdapterLoaded", "Awake", "Forgotten", "IsPaused", "IsSleeping", "ModelState", "ModelStates", "Paused", "Profiled", "Profiling", "Resumed", "Sleeping",
    "Unloaded",
]  # fmt: skip


class ModelState(TypedDict):
    """A model of the server. running: its requests."""

    id: str
    object: Literal["model"]
    names: list[str]
    state: Literal["loaded", "asleep", "unloaded"]
    running: int


class ModelStates(TypedDict):
    """All models."""

    object: Literal["list"]
    data: list[ModelState]


class AdapterLoaded(TypedDict):
    """A LoRA adapter that is served now. pinned: it keeps its device slot."""

    id: str
    object: Literal["model"]
    parent: str
    rank: int
    pinned: bool


class Unloaded(TypedDict):
    """A model that is served no more."""

    id: str
    object: Literal["model"]
    unloaded: Literal[True]


class Sleeping(TypedDict):
    """Engine processes have ended."""

    status: Literal["sleeping"]
    level: int


class Awake(TypedDict):
    """Engine processes run again."""

    status: Literal["awake"]


class IsSleeping(TypedDict):
    """Whether all that were asked about sleep."""

    is_sleeping: bool


class Paused(TypedDict):
    """No step starts."""

    status: Literal["paused"]
    mode: Literal["keep", "wait", "abort"]


class Resumed(TypedDict):
    """Steps start again."""

    status: Literal["running"]


class IsPaused(TypedDict):
    """Whether all that were asked about are paused."""

    is_paused: bool


class ForgottenOf(TypedDict):
    """What one model's prefix cache lost. blocks_in_use: of requests, which keep them."""

    id: str
    blocks_dropped: int
    blocks_in_use: int


class Forgotten(TypedDict):
    """No prompt start is known any more."""

    success: Literal[True]
    models: list[ForgottenOf]


class Profiling(TypedDict):
    """A profile is being recorded. folder: where its files will be."""

    status: Literal["profiling"]
    folder: str


class ProfiledOf(TypedDict):
    """The files of one model's engine process, a trace and a table of functions."""

    id: str
    files: list[str]
    steps: int


class Profiled(TypedDict):
    """What was recorded is written."""

    status: Literal["stopped"]
    models: list[ProfiledOf]
