"""A file system of fsspec whose URLs have a user and a password, as SFTP's: in memory, and it says
what it was asked with.
"""

from __future__ import annotations

from typing import Any, ClassVar

import fsspec  # type: ignore[import-untyped]
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]
from fsspec.utils import infer_storage_options  # type: ignore[import-untyped]

SECRET = "s3cr3t-Planted"


class GuardedFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Admits clients that know the password; what it refuses it quotes, as servers and libraries
    do.
    """

    protocol = "guarded"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    away: ClassVar[bool] = False

    def __init__(
        self, host: str, username: str = "", password: str = "", *, color: str = "", **kwargs: Any
    ) -> None:
        self._asked = f"guarded://{username}:{password}@{host}/?color={color}"
        super().__init__(**kwargs)
        if password != SECRET:
            raise PermissionError(f"wrong password in {self._asked}")

    @classmethod
    def _strip_protocol(cls, path: str) -> Any:
        return str(infer_storage_options(path)["path"]).rstrip("/") if "://" in path else path

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        options: dict[str, Any] = infer_storage_options(path)
        return {
            key: value for key, value in options.items() if key in {"host", "username", "password"}
        }

    def info(self, path: str, **kwargs: Any) -> Any:
        self._answer()
        return super().info(path, **kwargs)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        self._answer()
        super().pipe_file(path, value, mode, **kwargs)

    def _answer(self) -> None:
        if self.away:
            raise OSError(f"no answer to {self._asked}")


def register() -> None:
    """Make the scheme known to fsspec, and its places empty."""
    GuardedFileSystem.store.clear()
    GuardedFileSystem.pseudo_dirs[:] = [""]
    fsspec.register_implementation("guarded", GuardedFileSystem, clobber=True)
