"""Checks of arguments that several parts share."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raises unless the value is an integer, and large enough."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"Expected `{name}` to be an integer, at least {least}. Got: {value!r}.")
