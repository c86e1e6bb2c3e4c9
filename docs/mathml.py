"""Formulas as MathML, which browsers draw themselves: pages read the same without a network, and need no script.

docutils translates TeX; a command that it does not know is an error of the page that has it.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import MathError, tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

_log = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer, `html_math_renderer = "mathml"`."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(page: Any, node: nodes.math) -> None:
    page.body.append(_translated(node, as_block=False))
    raise nodes.SkipNode


def _block(page: Any, node: nodes.math_block) -> None:
    page.body.append(f'<div class="math notranslate nohighlight">{_translated(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def _translated(node: nodes.Element, as_block: bool) -> str:
    try:
        return str(tex2mathml(node.astext(), as_block=as_block))
    except MathError as error:
        _log.warning("a formula is no MathML: %s", error, location=node)
        return node.astext()
