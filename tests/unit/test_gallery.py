"""Every picture by its structure: what is written lies within the page and clear of other text, however it is drawn."""

import re
from functools import cache
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from attnsim.plots.sheet import Picture
from benchmarks import gallery
from benchmarks.gallery import GALLERY
from tests.unit.drawn import texts_of

PANELS = {"roofline-measured": 2, "scaling": 2, "scaling-set": 2, "step": 3, "traffic": 3, "waves": 3, "tornado": 3,
          "timeline": 3, "timeline-set": 2, "breakeven": 3, "density": 3, "density-set": 3}  # fmt: skip
"""How many a picture has, where not one."""
NAMED = {
    "roofline": ("flash-3: ", "datasheet 989 TFLOP/s", "kernels reach"),
    "roofline-set": ("flash*: ", "x (", "h100*: "),
    "roofline-levels": ("smem 30.9 TB/s", "HBM 3.08 of 3.35 TB/s", "L2 9.7 TB/s", "mma.sync fp16", "exp "),
    "roofline-gpus": ("flash, a100: ", "flash, h100: "),
    "roofline-measured": ("flash-attn.3", "predicted over measured time"),
    "scaling": ("naive: up to 32k", "linear (error 70 %)", "speedup over flash"),
    "scaling-set": ("flash*", "speedup over the unchanged GPU; band: 90 % range"),
    "units": ("flash-1: ", "share", "tensor cores", "HBM"),
    "units-set": ("as it is", "changed", "changed: "),
    "traffic": ("Q", "K", "V", "S", "P", "O", "from and to HBM, % of each total", "GB"),
    "waves": ("flash-2, 2 blocks per SM", "flash-2*", "empty part of the last wave, %"),
    "tornado": ("sm.exp_rate", "change of the time, %"),
    "split": ("l2.bandwidth", "all together", "after the others"),
    "whatif": ("hbm.bandwidth=6TB/s", "breaks a limit", "attention, seq=8k", "launch, "),
    "step": ("MLP", "80 x attention", "161 x all-reduce", "15.9 ms", "29.7 %"),
    "timeline": ("flash-3", "load K", "warpgroup 1", "softmax"),
    "timeline-set": ("flash, h100-sxm5-80gb*", "load V", "1 block an SM"),
    "breakeven": ("h100, 4k tokens", "flash-attn.4-sparse", "attnsim.sparse, never run", "visible pairs"),
    "density": ("a100-sxm4-80gb: predicted time", "transformers.gather", "flash-attn.4-sparse", "visible pairs"),
    "density-set": ("h100-sxm5-80gb*", "flash-attn.3", "l2.bandwidth = 19.4 TB/s"),
    "pareto": ("unchanged",),
    "check": ("h100",),
    "accuracy": ("predicted over measured", "vllm, decode", "flash-attn, training", "linear", "%"),
}
"""What must be read in a picture; parts of texts."""
TALLEST_INCHES = 10.0
"""Of a picture: a page has 11 inches, or 11.7."""
LOOKS = (("light", "page"), ("latex", "page"), ("light", "column"), ("latex", "column"))
"""Styles and widths; dark and print have the texts and places of light."""

Box = npt.NDArray[np.float64]


@cache
def picture(name: str) -> Picture:
    return gallery.picture_of(name)


def drawn(name: str, style: str, width: str) -> Figure:
    figure = picture(name).figure(style, width)
    FigureCanvasAgg(figure).draw()  # type: ignore[no-untyped-call]
    return figure


def boxes_of(text: Text) -> list[Box]:
    """Left, bottom, right, top in pixels; of slanted text those of short pieces of it."""
    whole = np.array(text.get_window_extent().extents)
    slope = np.radians(text.get_rotation())
    if not abs(np.sin(2 * slope)) > 0.01:
        return [whole]
    figure = text.get_figure(root=True)
    assert figure is not None
    high = float(text.get_fontsize()) * figure.dpi / 72
    across, up = np.cos(slope), np.sin(slope)
    long = (whole[2] - whole[0] - high * abs(up)) / across
    start = np.array((whole[0] + high * up / 2, whole[1] + high * across / 2))
    middles = [start + part * long * np.array((across, up)) for part in np.linspace(0.02, 0.98, 40)]
    return [np.array((*(at - high / 3), *(at + high / 3))) for at in middles]


def overlap(one: Box, other: Box) -> float:
    """How deep two boxes lie in one another, in pixels."""
    return float(min(min(one[2], other[2]) - max(one[0], other[0]), min(one[3], other[3]) - max(one[1], other[1])))


def test_every_picture_of_the_gallery_is_tested() -> None:
    assert GALLERY.keys() == NAMED.keys()


@pytest.mark.parametrize(("style", "width"), LOOKS)
@pytest.mark.parametrize("name", NAMED)
def test_text_is_whole_and_hides_no_other_text(name: str, style: str, width: str) -> None:
    figure = drawn(name, style, width)
    assert len(figure.axes) == PANELS.get(name, 1)
    found = [(one, boxes_of(one)) for one in texts_of(figure)]
    told = [one.get_text() for one, _ in found]
    for words in NAMED[name]:
        shorter = words.removesuffix(" TFLOP/s") if width == "column" and ":" in words else words
        assert any(shorter in text for text in told), words
    for text, boxes in found:
        for box in boxes:
            assert min(box[:2]) >= 0 and box[2] <= figure.bbox.width and box[3] <= figure.bbox.height, text.get_text()
    for (first, mine), (second, others) in combinations(found, 2):
        deepest = max(overlap(one, other) for one in mine for other in others)
        assert deepest < 0.15 * float(first.get_fontsize()) * figure.dpi / 72, f"{first!r} covers {second!r}"


@pytest.mark.parametrize("name", NAMED)
def test_a_picture_says_what_it_shows_and_of_what(name: str) -> None:
    one = picture(name)
    gpu = re.findall(r"--gpu ([\w-]+)", GALLERY[name].command) or ["h100-sxm5-80gb"]
    assert gpu[0] in one.title + one.subtitle
    assert any(words in one.subtitle for words in ("head_dim 128", "rows on", "new tokens"))
    assert one.caption.endswith(".") and one.rows
    assert one.figure().get_figheight() < TALLEST_INCHES
    bare = one.figure(caption="none")
    assert not bare.texts and bare.get_figheight() < one.figure().get_figheight()
    for axes in bare.axes:
        assert axes.get_title(loc="left") or axes.get_xlabel() or axes.get_legend()
        # what is drawn stands within the axes
        (left, right), (bottom, top) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
        for line in axes.lines:
            if line.get_transform() == axes.transData and np.size(line.get_xdata()):
                xs, ys = np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)
                slack = 1.0 + 1e-9 if line.get_marker() in ("None", "") else 1.0
                assert xs.max() <= right * slack and bottom <= ys.max() <= top * slack and left <= xs.max()
        assert not any(isinstance(text, Annotation) and not text.get_text() and text.arrow_patch is None
                       for text in axes.texts)  # fmt: skip


def test_the_gallery_is_there() -> None:
    assert gallery.stale() == []
    assert sum(path.stat().st_size for path in gallery.FOLDER.iterdir()) < 3e6
