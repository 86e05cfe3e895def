"""Lets a function see what reaches each GP layer while a model is called."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

Visitor = Callable[[Any, tf.Tensor], None]

_visitor: ContextVar[Visitor | None] = ContextVar("layer_visitor", default=None)


@contextlib.contextmanager
def visiting(visitor: Visitor) -> Iterator[None]:
    """Within it, every GP layer that is called first gives itself and its inputs to the visitor.

    It works for every kind of model, because the model's own way of calling its layers is used.
    """
    token = _visitor.set(visitor)
    try:
        yield
    finally:
        _visitor.reset(token)


def visit(layer: Any, inputs: tf.Tensor) -> None:
    """Called by a layer at the start of its call."""
    visitor = _visitor.get()
    if visitor is not None:
        visitor(layer, inputs)
