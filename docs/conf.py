"""Settings of the documentation."""

import runpy
import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

# Sphinx reads what is below its own folder only, and the tutorials are not: they get here as copies, newer or not.
HERE = Path(__file__).parent
shutil.rmtree(HERE / "tutorials", ignore_errors=True)
shutil.copytree(HERE.parent / "tutorials", HERE / "tutorials", ignore=shutil.ignore_patterns("_*"))

project = "keras_odgp"
author = "the keras_odgp developers"
version = release = runpy.run_path(str(HERE.parent / "keras_odgp" / "_version.py"))["__version__"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "conf.py"]  # of which the second would be a notebook

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_output_stderr = "remove"  # TensorFlow's greetings

html_theme = "furo"
html_title = "keras_odgp"
html_math_renderer = "mathml"
html_show_copyright = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_inherit_docstrings = False
napoleon_use_ivar = True


def inline_math(writer: Any, node: nodes.Element) -> None:
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def display_math(writer: Any, node: nodes.Element) -> None:
    writer.body.append(tex2mathml(node.astext(), as_block=True))
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """Formulas as MathML, which browsers draw by themselves: pages can be read without a network."""
    app.add_html_math_renderer("mathml", (inline_math, None), (display_math, None))
