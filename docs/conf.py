"""Sphinx: the documents beside this file, the API from its docstrings, commands and error tables made anew."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

from generated import OUTSIDE, write_generated

import attnsim

project = "attnsim"
author = "The attnsim authors"
release = version = attnsim.__version__
copyright = "the attnsim authors, Apache-2.0"

extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "mathml"]
html_math_renderer = "mathml"
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "conf.py"]
html_theme = "furo"
html_title = f"attnsim {release}"
html_static_path = ["static"]
html_css_files = ["formulas.css", "commands.css"]
smartquotes = False  # --mask is two hyphens, in prose too
autosummary_generate = True
autodoc_typehints = "none"  # numpydoc has them in words
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
nitpicky = False

write_generated(Path(__file__).parent / "_generated")


def setup(app: Sphinx) -> None:
    """Links to documents beside the README lead to their pages here."""
    app.connect("source-read", _to_pages)


def _to_pages(app: Sphinx, name: str, source: list[str]) -> None:
    up = "../" * name.count("/")
    for document, page in OUTSIDE.items():
        source[0] = source[0].replace(f"]({up}../{document}", f"]({up}_generated/{page}.md")
