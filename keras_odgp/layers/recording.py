"""Lets a function see what reaches each GP layer while a model is called, or answer in its place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import tensorflow as tf

Visitor = Callable[[Any, tf.Tensor], None]
Substitute = Callable[[Any, tf.Tensor], tf.Tensor | None]

_visitor: ContextVar[Visitor | None] = ContextVar("layer_visitor", default=None)
_substitute: ContextVar[Substitute | None] = ContextVar("layer_substitute", default=None)
_dispersions: ContextVar[Mapping[int, tf.Tensor]] = ContextVar("layer_dispersions", default=MappingProxyType({}))


@contextlib.contextmanager
def visiting(visitor: Visitor) -> Iterator[None]:
    """Within it, every GP or likelihood layer that is called first gives itself and its inputs to the visitor.

    It works for every kind of model, because the model's own way of calling its layers is used.
    """
    token = _visitor.set(visitor)
    try:
        yield
    finally:
        _visitor.reset(token)


def is_visiting() -> bool:
    """Whether a visitor is active."""
    return _visitor.get() is not None


def visit(layer: Any, inputs: tf.Tensor) -> None:
    """Called by a layer at the start of its call."""
    visitor = _visitor.get()
    if visitor is not None:
        visitor(layer, inputs)


@contextlib.contextmanager
def substituting(substitute: Substitute) -> Iterator[None]:
    """Within it, every GP layer that is called passes on what the substitute makes of it and its inputs.

    Nothing is factorised then, and no divergence is added to the losses. Where the substitute answers None, the layer
    does its own work.
    """
    token = _substitute.set(substitute)
    try:
        yield
    finally:
        _substitute.reset(token)


def substituted(layer: Any, inputs: tf.Tensor) -> tf.Tensor | None:
    """What a substitute passes on in place of a layer; None if nothing does."""
    substitute = _substitute.get()
    return None if substitute is None else substitute(layer, inputs)


@contextlib.contextmanager
def providing(dispersions: Mapping[int, tf.Tensor]) -> Iterator[None]:
    """Within it, likelihood layers whose id is known take their dispersion from here, without its constraint."""
    token = _dispersions.set(dispersions)
    try:
        yield
    finally:
        _dispersions.reset(token)


def provided(layer: Any) -> tf.Tensor | None:
    """The dispersion that is provided for a layer; None if there is none."""
    return _dispersions.get().get(id(layer))
