"""Settings of the documentation."""

from keras_odgp._version import __version__

project = "keras_odgp"
author = "the keras_odgp developers"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath"]
html_theme = "furo"
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_use_ivar = True
autodoc_inherit_docstrings = False
