"""What tests of the storage writer may ask pytest for."""

from __future__ import annotations

from typing import cast

import pytest

from tests.storagewriter.fake_container import FakeContainer


@pytest.fixture(params=[False, True], ids=["active", "idle"])
def active_or_idle(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice: with all segments in memory, and with none that could leave it."""
    monkeypatch.setattr(FakeContainer, "evicts_by_default", cast("bool", request.param))
